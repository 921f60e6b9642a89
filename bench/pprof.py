"""Reads the profiles that Go's runtime writes (pprof: a gzipped protobuf), as far as flame pictures need them (pure).

https://github.com/google/pprof/blob/main/proto/profile.proto names the fields; their numbers are below.
"""

import gzip
from collections import Counter
from collections.abc import Iterator
from typing import Final

Stack = tuple[str, ...]

SAMPLE: Final = 2
LOCATION: Final = 4
FUNCTION: Final = 5
STRING: Final = 6
VARINT, BYTES = 0, 2
SKIPPED: Final = {1: 8, 5: 4}
"""Widths of what has a fixed one, which no field here has."""


def stacks(content: bytes) -> Counter[Stack]:
    """Samples by stack, the outermost function first. A profile's first value is how many samples there were."""
    texts: list[str] = []
    functions: dict[int, int] = {}
    locations: dict[int, list[int]] = {}
    samples: list[tuple[list[int], int]] = []
    for number, value in _fields(gzip.decompress(content)):
        if isinstance(value, int):
            continue
        if number == STRING:
            texts.append(value.decode("utf-8", "replace"))
        elif number == FUNCTION:
            known = dict(_fields(value))
            functions[_number(known[1])] = _number(known.get(2, 0))
        elif number == LOCATION:
            parts = list(_fields(value))
            lines = [dict(_fields(line)) for field, line in parts if field == 4 and isinstance(line, bytes)]
            (identity,) = (_number(part) for field, part in parts if field == 1)
            locations[identity] = [_number(line[1]) for line in lines]
        elif number == SAMPLE:
            parts = list(_fields(value))
            places = [place for field, part in parts if field == 1 for place in _packed(part)]
            samples.append((places, next(count for field, part in parts if field == 2 for count in _packed(part))))
    found: Counter[Stack] = Counter()
    for places, count in samples:
        # Innermost first in the file; a location's lines too, where functions were inlined.
        inner = [texts[functions[function]] for place in places for function in locations[place]]
        found[tuple(reversed(inner))] += count
    return found


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of every field."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(message, at)
            yield number, value
        elif kind == BYTES:
            length, at = _varint(message, at)
            yield number, message[at : at + length]
            at += length
        else:
            at += SKIPPED[kind]


def _packed(part: int | bytes) -> list[int]:
    """Repeated numbers, which may be written one by one or together."""
    if isinstance(part, int):
        return [part]
    found, at = [], 0
    while at < len(part):
        value, at = _varint(part, at)
        found.append(value)
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _number(part: int | bytes) -> int:
    assert isinstance(part, int)
    return part
