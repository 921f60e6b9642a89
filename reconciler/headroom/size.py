"""How many placeholders a pool should have (pure): the annotation or label, the cluster-wide default, the cap.

A number, or a percentage of the pool's replicas, rounded up. A label cannot hold a percent sign, so `20percent` says
the same. Any other value changes nothing: a typing error must not take a running pool's headroom away.
"""

import re
from typing import Final

from msgspec import Struct

from ateplace import names
from ateplace.cluster import pool_rules
from ateplace.settings import Headroom

MOST: Final = 1000
CAPPED: Final = "HeadroomCapped"
NUMBER: Final = re.compile(r"[0-9]{1,4}", re.ASCII)
PERCENTAGE: Final = re.compile(r"([0-9]{1,4})(?:%|percent)", re.ASCII)


class Quota(Struct, frozen=True):
    count: int
    reason: str = ""
    """What the Event about it is called; empty when there is nothing to say."""
    message: str = ""


def quota(asked: str, present: int, replicas: int, settings: Headroom) -> Quota:
    """What a pool of so many replicas asks for; `present` placeholders are there now. Empty: it says nothing."""
    if not asked:
        return Quota(min(settings.default, settings.cap))
    count = _count(asked, replicas)
    if count is None:
        shown = asked[:40] + ("…" if len(asked) > 40 else "")
        count = min(present, settings.cap)
        return Quota(
            count,
            "BadHeadroom",
            f"{names.HEADROOM_ANNOTATION} must be a number from 0 to {MOST} or a percentage of the replicas, not "
            f"{shown!r}: the headroom stays at {count}",
        )
    if count > settings.cap:
        return Quota(
            settings.cap,
            CAPPED,
            f"A headroom of {count} is asked for, and this cluster gives a pool at most {settings.cap}",
        )
    return Quota(count)


def share(asked: Quota, present: int, namespace: str, allowed: pool_rules.Quota, before: int) -> Quota:
    """What the quota of its namespace leaves a pool. Its pools come in the order of their names, so that it does not
    depend on which asks first; those before this one ask for `before`. An unreadable quota leaves what is there."""
    if not asked.count:
        return asked
    if allowed.wrong_headroom:
        left = min(asked.count, present)
        return Quota(left, CAPPED, f"{allowed.wrong_headroom} (on the Namespace): the headroom stays at {left}")
    left = asked.count if allowed.max_headroom is None else max(0, allowed.max_headroom - before)
    if asked.count <= left:
        return asked
    words = f"The max-headroom of namespace {namespace} is {allowed.max_headroom}, for all its pools together"
    return Quota(left, CAPPED, f"{words}: {left} of {asked.count} placeholders are left for this one")


def _count(asked: str, replicas: int) -> int | None:
    """None when it is neither a number nor a percentage."""
    if NUMBER.fullmatch(asked) and int(asked) <= MOST:
        return int(asked)
    share = PERCENTAGE.fullmatch(asked)
    return -(-int(share[1]) * replicas // 100) if share and int(share[1]) <= MOST else None
