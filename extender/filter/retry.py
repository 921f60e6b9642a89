"""Refused pods, looked at again: how they come back when something changed that no scheduler looks at.

A scheduler tries refused pods again when a Node changes or a bound pod goes, and else after five minutes. What it does
not see: an atelet that is Ready again (a bound pod's status moves nobody), a DaemonSet that tolerates more, what we
read of a node getting old, and our own watch catching up with the event that brought the pod back a moment too early.
So whoever was refused is decided upon again from time to time, and when a node would do by now somebody is told to
claim it: the change of the Node is the event that brings the pod back.

One timer for all pods that want the same of one pool, soon after each refusal and then ever more rarely.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from msgspec import Struct

from ateplace.cluster.resources import Shape
from extender.demand import Demand
from extender.filter.placeholders import Names

FIRST: Final = 1.0
"""Seconds from a refusal to the first look; each further one takes twice as long, up to LAST."""
LAST: Final = 32.0
MOST: Final = 64
"""So many kinds of pods are looked at again; of more than that, those that were refused last."""

Key = tuple[str, Shape, bool]


class Among:
    """The nodes that were refused, as names that were sent."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def all(self) -> list[str]:
        return list(self._names)


class Wait(Struct, gc=False):
    demand: Demand
    names: Names
    delay: float
    timer: asyncio.TimerHandle


class Waiting:
    """`still`: whether such a pod waits. `wake`: see to it that it is tried again if it would be placed now, and say
    whether it was."""

    def __init__(self, still: Callable[[Demand], bool], wake: Callable[[Demand, Names], bool]) -> None:
        self._still = still
        self._wake = wake
        self._waits: dict[Key, Wait] = {}
        """The one that was refused longest ago first."""

    def refused(self, demand: Demand, names: Names) -> None:
        key = (demand.pool, demand.shape, demand.placeholder)
        self._forget(key)
        if len(self._waits) >= MOST:
            self._forget(next(iter(self._waits)))
        self._await(key, demand, names, FIRST)

    def close(self) -> None:
        for key in tuple(self._waits):
            self._forget(key)

    def _await(self, key: Key, demand: Demand, names: Names, delay: float) -> None:
        timer = asyncio.get_running_loop().call_later(delay, self._look, key)
        self._waits[key] = Wait(demand, names, delay, timer)

    def _forget(self, key: Key) -> None:
        if wait := self._waits.pop(key, None):
            wait.timer.cancel()

    def _look(self, key: Key) -> None:
        wait = self._waits.pop(key)
        if self._still(wait.demand) and not self._wake(wait.demand, wait.names):
            self._await(key, wait.demand, wait.names, min(2 * wait.delay, LAST))
