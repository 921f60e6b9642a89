"""Pods that were not placed, looked at again: how they come back when something changed that no scheduler looks at.

A scheduler tries refused pods again when a Node changes or a bound pod goes, and else after five minutes. What it does
not see: an atelet that is Ready again (a bound pod's status moves no pod), a DaemonSet that tolerates more, what we
read of a node getting old, our own watch catching up with the event that brought the pod back a moment too early, the
end of the time for which `hold-warm` keeps a pod from cold nodes, and other rules of its pool. So such a pod is decided
upon again, and when a node would do by now, that node is claimed: the change of the Node is the event that brings the
pod back.

One timer for all pods that want the same of one pool, soon after each refusal and then ever more rarely, until a claim
was acknowledged or no such pod waits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from msgspec import Struct

from ateplace import errors
from ateplace.cluster.resources import Shape
from ateplace.extender.context import TryAgain
from ateplace.extender.demand import Demand
from ateplace.extender.filter.placeholders import Names

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
    under: object = None
    """The rules that the pod was refused under."""
    look: asyncio.Task[None] | None = None
    """The look under way."""


class Retry:
    """`waits`: whether such a pod waits. `claim`: claim the node that it would get now, and say whether that was
    acknowledged."""

    def __init__(self, waits: Callable[[Demand], bool], claim: Callable[[Demand, Names], Awaitable[bool]]) -> None:
        self._waits = waits
        self._claim = claim
        self._kinds: dict[Key, Wait] = {}
        """The one that was refused longest ago first."""

    def later(self, demand: Demand, names: Names, delay: float = 0.0, under: object = None) -> None:
        """Such a pod was not placed, under these rules; look again after `delay` seconds, or soon."""
        key = (demand.pool, demand.shape, demand.placeholder)
        self._forget(key)
        if len(self._kinds) >= MOST:
            self._forget(next(iter(self._kinds)))
        self._start(key, demand, names, delay or FIRST, under)

    def changed(self, pool: str, rules: object) -> None:
        """A pool may have other rules now: then look again soon."""
        for key, wait in tuple(self._kinds.items()):
            if key[0] == pool and wait.under != rules:
                self._forget(key)
                self._start(key, wait.demand, wait.names, FIRST, rules)

    def close(self) -> None:
        for key in tuple(self._kinds):
            self._forget(key)

    def _start(self, key: Key, demand: Demand, names: Names, delay: float, under: object) -> None:
        timer = asyncio.get_running_loop().call_later(delay, self._begin, key)
        self._kinds[key] = Wait(demand, names, delay, timer, under)

    def _begin(self, key: Key) -> None:
        wait = self._kinds[key]
        wait.look = asyncio.get_running_loop().create_task(self._look(key, wait))

    async def _look(self, key: Key, wait: Wait) -> None:
        claimed = False
        waits = self._waits(wait.demand)
        if waits:
            try:
                claimed = await self._claim(wait.demand, wait.names)
            except (TryAgain, errors.KubeError, TimeoutError):
                claimed = False  # it was logged where it failed
        if self._kinds.get(key) is wait:
            del self._kinds[key]
            if waits and not claimed:
                self._start(key, wait.demand, wait.names, min(2 * wait.delay, LAST), wait.under)

    def _forget(self, key: Key) -> None:
        if wait := self._kinds.pop(key, None):
            wait.timer.cancel()
            if wait.look:
                wait.look.cancel()
