"""How many placeholders a pool should have (pure): the annotation, the cluster-wide default, the cap.

A value that is no number from 0 to 1000 changes nothing: a typing error must not take a running pool's headroom away.
"""

import re
from typing import Final

from msgspec import Struct

from ateplace import names
from ateplace.settings import Headroom

MOST: Final = 1000
NUMBER: Final = re.compile(r"[0-9]{1,4}", re.ASCII)


class Quota(Struct, frozen=True):
    count: int
    reason: str = ""
    """What the Event about it is called; empty when there is nothing to say."""
    message: str = ""


def quota(annotation: str, present: int, settings: Headroom) -> Quota:
    """What the annotation asks for; `present` placeholders are there now. An empty annotation is none."""
    if not annotation:
        return Quota(min(settings.default, settings.cap))
    if not NUMBER.fullmatch(annotation) or int(annotation) > MOST:
        shown = annotation[:40] + ("…" if len(annotation) > 40 else "")
        count = min(present, settings.cap)
        return Quota(
            count,
            "BadHeadroom",
            f"The annotation {names.HEADROOM_ANNOTATION} must be a number from 0 to {MOST}, not {shown!r}: "
            f"the headroom stays at {count}",
        )
    count = int(annotation)
    if count > settings.cap:
        return Quota(
            settings.cap,
            "HeadroomCapped",
            f"A headroom of {count} is asked for, and this cluster gives a pool at most {settings.cap}",
        )
    return Quota(count)
