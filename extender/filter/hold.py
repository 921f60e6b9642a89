"""`hold-warm`: how long a pod is kept from cold nodes, and how it comes back when that is over.

A pod that is refused comes back when something happens to a pod or a node, and in a quiet cluster nothing does for
minutes. So when a hold is over and the pool still waits, somebody is told to open a node: that is what the pod is
waiting for, and the change of the Node is the event that brings it back. One timer for each pool that waits.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from extender.demand import Demand
from extender.filter.placeholders import Names
from extender.fit import Case

PODS: Final = 10_000
"""Pods whose time of holding back is remembered."""


class Hold:
    def __init__(self, seconds: float, open_for: Callable[[Demand, Names], None]) -> None:
        self._seconds = seconds
        self._open_for = open_for
        self._since: dict[str, float] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def may(self, case: Case) -> bool:
        """Whether this pod is still held back. The first call starts its time."""
        if not self._seconds or case.demand.placeholder:
            return False
        since = self._since.setdefault(case.demand.uid, case.now)
        if len(self._since) > PODS:
            del self._since[next(iter(self._since))]
        return case.now - since < self._seconds

    def refused(self, case: Case, sent: Names) -> None:
        """It was held back; see to it that it is not forgotten."""
        pool = case.demand.pool
        if pool not in self._timers:
            left = self._since.get(case.demand.uid, case.now) + self._seconds - case.now
            loop = asyncio.get_running_loop()
            self._timers[pool] = loop.call_later(max(0.0, left), self._over, case.demand, sent)

    def placed(self, uid: str) -> None:
        self._since.pop(uid, None)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _over(self, demand: Demand, sent: Names) -> None:
        del self._timers[demand.pool]
        self._open_for(demand, sent)
