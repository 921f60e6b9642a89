"""Placeholders that gave way, counted, and timed until the next one is bound in their place.

The reconciler's leader counts those that a scheduler preempted, an extender those that it evicted itself. Each is
counted by one process, so that sums over all are right.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final

from ateplace.process import metrics

REMEMBERED: Final = 1000
"""Most placeholders of one pool that wait for their refill."""
SECONDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)

PREEMPTED: Final = metrics.counter(
    "placeholders_preempted_total",
    "Placeholders that gave way: those that a scheduler preempted (the leading reconciler), or that this extender "
    "ended for ateoms.",
    ["pool"],
)
REFILL: Final = metrics.histogram(
    "placeholder_refill_seconds",
    "From a placeholder that gave way to the next one of its pool that is bound (leading reconciler, extender).",
    SECONDS,
)


class Refills:
    """By pool UID. The caller says when a pool is gone (`forget`)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._owed: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        """When its placeholders that are not replaced yet gave way."""

    def owe(self, pool_uid: str, pool: str) -> None:
        """One gave way; `pool` is what people call its pool."""
        PREEMPTED.labels(pool).inc()
        self._owed[pool_uid].append(self._clock())

    def paid(self, pool_uid: str, wanted: int = REMEMBERED) -> None:
        """A placeholder was bound. Of those that are owed no more than `wanted` are going to be replaced."""
        owed = self._owed.pop(pool_uid, None)
        if not owed:
            return
        while len(owed) > max(1, wanted):
            owed.popleft()
        REFILL.observe(self._clock() - owed.popleft())
        if owed:
            self._owed[pool_uid] = owed

    def forget(self, pool_uid: str) -> None:
        self._owed.pop(pool_uid, None)

    def clear(self) -> None:
        self._owed.clear()

    def __len__(self) -> int:
        """How many pools are owed something."""
        return len(self._owed)
