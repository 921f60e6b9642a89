"""Rules about where a pool's ateoms may be that no field of a WorkerPool can express, as annotations say (pure).

    on a WorkerPool  ateplace.ate.dev/min-nodes: "2"        on so many nodes at least, once the pool has as many ateoms
                     ateplace.ate.dev/max-per-node: "10"    so many on one node at most
                     ateplace.ate.dev/same: <label key>     all on nodes with one value of this label
    on a Namespace   ateplace.ate.dev/max-nodes: "5"        its pools hold so many nodes at most, together
                     ateplace.ate.dev/max-headroom: "10"    and have so many placeholders

A rule that cannot be read is never taken for "no rule": no ateom of the pool is placed until it can be read, the pools
of a namespace get no further node or placeholder, and the sentence in `wrong` is what their scheduler, an Event and
`explain` say. Ateoms that run are left alone. `extender.rules` and `reconciler.headroom` decide by these rules.
"""

import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from ateplace import names
from ateplace.printable import printable

MOST: Final = 1000
SHOWN: Final = 40
"""Characters of a wrong value that are shown."""

_NUMBER: Final = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


class PoolRules(Struct, frozen=True, gc=False):
    min_nodes: int = 0
    """0: no such rule."""
    max_per_node: int = 0
    same: str = ""
    wrong: str = ""
    """Why they cannot be read; empty when they can."""


NONE: Final = PoolRules()


class Quota(Struct, frozen=True, gc=False):
    """What all pools of a namespace may have together; None: no such rule. What cannot be read allows nothing more."""

    max_nodes: int | None = None
    max_headroom: int | None = None
    wrong_nodes: str = ""
    wrong_headroom: str = ""

    @property
    def wrong(self) -> str:
        return "; ".join(filter(None, (self.wrong_nodes, self.wrong_headroom)))


def quota(said: Callable[[str], str]) -> Quota | None:
    """None for a Namespace that has none."""
    nodes, headroom = said(names.MAX_NODES_ANNOTATION), said(names.MAX_HEADROOM_ANNOTATION)
    if not (nodes or headroom):
        return None
    wanted = f"a whole number from 0 to {MOST}"
    most, spare = (0 if value == "0" else number(value) for value in (nodes, headroom))
    return Quota(
        most,
        spare,
        _wrong(names.MAX_NODES_ANNOTATION, nodes, wanted) if nodes and most is None else "",
        _wrong(names.MAX_HEADROOM_ANNOTATION, headroom, wanted) if headroom and spare is None else "",
    )


def pool_rules(said: Callable[[str], str]) -> PoolRules:
    """`said`: what an annotation says; empty when it is not there."""
    wishes = [said(key) for key in (names.MIN_NODES_ANNOTATION, names.MAX_PER_NODE_ANNOTATION, names.SAME_ANNOTATION)]
    if not any(wishes):
        return NONE
    low, high, same = wishes
    wrong = [
        *(
            _wrong(key, value, f"a whole number from 1 to {MOST}")
            for key, value in ((names.MIN_NODES_ANNOTATION, low), (names.MAX_PER_NODE_ANNOTATION, high))
            if value and number(value) is None
        ),
        *([_wrong(names.SAME_ANNOTATION, same, "the key of a label")] if same and not _is_label_key(same) else ()),
    ]
    if wrong:
        return PoolRules(wrong="; ".join(wrong))
    return PoolRules(number(low) or 0, number(high) or 0, same)


def number(value: str) -> int | None:
    """None for what is no whole number from 1 to MOST."""
    return int(value) if _NUMBER.fullmatch(value) and int(value) <= MOST else None


def _is_label_key(value: str) -> bool:
    prefix, slash, name = value.rpartition("/")
    return _NAME.fullmatch(name) is not None and (not slash or _PREFIX.fullmatch(prefix) is not None)


def _wrong(key: str, value: str, wanted: str) -> str:
    shown = printable(value[:SHOWN] + ("…" if len(value) > SHOWN else ""))
    return f'{key} must be {wanted}, not "{shown}"'
