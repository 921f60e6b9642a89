"""Kubernetes quantities as integers."""

import functools
import re
from typing import Final

QUANTITY = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:([eE][+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
LONGEST: Final = 64
"""Characters of a quantity. The API server writes none with more than 21: texts are cached, so they are bounded."""
MOST: Final = 2**63 - 1
"""The API server cuts larger quantities down to this. It bounds what 1e999 costs, too."""


@functools.lru_cache(maxsize=4096)
def quantity(text: str, scale: int = 0) -> int:
    """A Kubernetes quantity times 10^scale, rounded up, at most `MOST`; ValueError when it is none."""
    match = QUANTITY.fullmatch(text) if len(text) <= LONGEST else None
    if not match or not (match[2] or match[3]):
        raise ValueError(f"not a quantity: {text[:LONGEST]!r}")
    sign, whole, fraction, exponent, suffix = match.groups()
    fraction = fraction or ""
    number = int((whole or "") + fraction)
    power = scale - len(fraction) + (int(exponent[1:]) if exponent else DECIMAL.get(suffix or "", 0))
    number <<= BINARY.get(suffix or "", 0)
    number = -number if sign == "-" else number
    result = number * int(10**power) if power >= 0 else -(-number // int(10**-power))
    return max(-MOST, min(result, MOST))
