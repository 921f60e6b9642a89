"""Bursts: many ateoms of a pool created within moments, and how long each took from created to bound (pure).

    first one created ... next ones, each within GAP ... SIZE of them: a burst ... all bound or gone, none new: over

Times are those at which the map's watch showed it, so that they are finer than the whole seconds of the API's stamps.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ateplace.cli.map.wire import Burst

GAP = 2.0
"""Seconds without a new ateom after which the next one belongs to another burst."""
SIZE = 10
"""Ateoms that make it worth a mark."""


@dataclass
class _Run:
    pool: str
    began: float
    newest: float
    number: int = 0
    """0 until it is large enough."""
    created: int = 0
    open: set[str] = field(default_factory=set)
    """Not bound yet."""
    took: list[float] = field(default_factory=list)
    last_bound: float | None = None
    changed: bool = True

    def burst(self, *, over: bool) -> Burst:
        ordered = sorted(self.took)
        return Burst(
            number=self.number,
            pool=self.pool,
            began=self.began,
            last_bound=self.last_bound,
            created=self.created,
            bound=len(ordered),
            p50=percentile(ordered, 50),
            p99=percentile(ordered, 99),
            over=over,
        )


class Bursts:
    def __init__(self) -> None:
        self._running: list[_Run] = []
        self._newest: dict[str, _Run] = {}
        self._waiting: dict[str, tuple[_Run, float]] = {}
        """Pod to its run and the time it was created."""
        self._numbers = 0

    @property
    def open(self) -> bool:
        """Whether one may still change by time alone."""
        return bool(self._running)

    def created(self, pool: str, pod: str, at: float) -> None:
        """An ateom has been seen for the first time, on no node."""
        run = self._newest.get(pool)
        if run is None or at - run.newest > GAP:
            run = self._newest[pool] = _Run(pool, at, at)
            self._running.append(run)
        run.newest, run.changed = at, True
        run.created += 1
        if run.created == SIZE:
            self._numbers += 1
            run.number = self._numbers
        run.open.add(pod)
        self._waiting[pod] = run, at

    def bound(self, pod: str, at: float) -> None:
        """It is on a node."""
        run, since = self._waiting.pop(pod, (None, 0.0))
        if run:
            run.open.discard(pod)
            run.took.append(at - since)
            run.last_bound, run.changed = at, True

    def gone(self, pod: str) -> None:
        """It is gone without ever having been bound."""
        run, _ = self._waiting.pop(pod, (None, 0.0))
        if run:
            run.open.discard(pod)
            run.changed = True

    def changed(self, now: float) -> Iterator[Burst]:
        """Bursts that are not as they were at the last call."""
        still = []
        for run in self._running:
            over = not run.open and now - run.newest > GAP
            if run.number and (run.changed or over):
                yield run.burst(over=over)
            run.changed = False
            if not over:
                still.append(run)
            elif self._newest.get(run.pool) is run:
                del self._newest[run.pool]
        self._running = still


def percentile(ordered: list[float], percent: int) -> float | None:
    """The smallest value that so many percent do not exceed (nearest rank); None of nothing."""
    if not ordered:
        return None
    rank = max(1, -(-len(ordered) * percent // 100))
    return round(ordered[rank - 1], 3)
