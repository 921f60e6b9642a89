"""A queue of keys to look at: each at most once at a time, few at once, failing ones ever later.

              add                    a slot is free             handled
    (unknown) ---> ready (in order) ---------------> under way ---------> (unknown)
        ^            ^     ^                           |  | add meanwhile
        |  seconds   |     +---------------------------+--+
        +-- later ---+          failed: later, after the key's backoff

Level-triggered: a key says "look at this", never what happened to it, so adding one that waits already costs nothing
and changes nothing. What is kept is one entry per key that waits, runs or has failed.

Keys have lanes (a tenant's namespace): lanes take turns, and one lane never has more than a quarter of the slots,
whether others wait or not. So a tenant whose keys are many, or slow, does not make another tenant's wait, and has no
more than two requests beside it where there are eight slots.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from ateplace import errors
from ateplace.reconciler import metrics

log = logging.getLogger(__name__)

Handle = Callable[[str], Awaitable[float | None]]
"""Looks at a key; the answer is when to look again (seconds), or None for "when it is added again"."""

FIRST_DELAY = 0.05
LONGEST_DELAY = 30.0
FAILURES = 16
"""How many are counted at most."""
CONFLICTS = 4
"""What conflicts count for at most, however many: a pod that arrives meanwhile must not wait because others write to
its node often, and an API server that says "not this version" is not overloaded."""


class Queue:
    """`add` from anywhere in the loop; keys are handled while `run` runs, and ignored otherwise."""

    def __init__(self, name: str, handle: Handle, *, workers: int, lane: Callable[[str], str] | None = None) -> None:
        """`lane` says whose a key is, when it becomes ready; without it all keys are alike."""
        self.name = name
        self._handle = handle
        self._workers = workers
        self._lane = lane or _alike
        self._share = workers if lane is None else max(1, workers // 4)
        """Slots that one lane may have at a time."""
        self._running = False
        self._ready: dict[str, str] = {}
        """Lane by key."""
        self._lanes: dict[str, dict[str, None]] = {}
        """The ready keys of each lane that has some, in order; the lane whose turn it is comes first."""
        self._taken: Counter[str] = Counter()
        """Slots that each lane has."""
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._dirty: set[str] = set()
        self._later: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._unseen: set[str] = set()
        """What was there when `run` began and has not been looked at yet."""
        self._seen = asyncio.Event()
        self._seconds = metrics.RECONCILE_SECONDS.labels(name)

    def __len__(self) -> int:
        return len(self._ready)

    def knows(self, key: str) -> bool:
        """Whether the key waits, is under way or will be looked at later."""
        return key in self._ready or key in self._busy or key in self._later

    def add(self, key: str) -> None:
        """Look at the key as soon as possible; one that keeps failing keeps its backoff."""
        if not self._running:
            return
        if key in self._busy:
            self._dirty.add(key)
        elif key not in self._failures:
            if handle := self._later.pop(key, None):
                handle.cancel()
            self._make_ready(key)
            self._pump()

    def add_after(self, key: str, seconds: float) -> None:
        """Look at the key in so many seconds, or sooner when it is due sooner already."""
        if not self._running or key in self._ready:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if handle := self._later.get(key):
            if handle.when() <= when:
                return
            handle.cancel()
        self._later[key] = loop.call_at(when, self._due, key)

    async def run(self, everything: Callable[[], Iterable[str]]) -> None:
        """Handle keys, first every one there is, until cancelled; what is under way then is cancelled too."""
        self._running = True
        try:
            for key in everything():
                self._make_ready(key)
            self._unseen.update(self._ready)
            self._tell_seen()
            self._pump()
            await asyncio.get_running_loop().create_future()
        finally:
            self._running = False
            tasks = tuple(self._busy.values())
            for task in tasks:
                task.cancel()
            for handle in self._later.values():
                handle.cancel()
            self._later.clear()
            self._ready.clear()
            self._lanes.clear()
            self._failures.clear()
            self._unseen.clear()
            self._seen.clear()
            if tasks:
                await asyncio.wait(tasks)
            self._dirty.clear()

    async def seen(self) -> None:
        """Return once every key that was there when `run` began has been looked at, with success or without."""
        await self._seen.wait()

    def _tell_seen(self) -> None:
        if not self._unseen:
            self._seen.set()

    def _due(self, key: str) -> None:
        del self._later[key]
        if key in self._busy:
            self._dirty.add(key)
        else:
            self._make_ready(key)
            self._pump()

    def _make_ready(self, key: str) -> None:
        if key not in self._ready:
            lane = self._ready[key] = self._lane(key)
            self._lanes.setdefault(lane, {})[key] = None

    def _pump(self) -> None:
        while self._running and len(self._busy) < self._workers:
            lane = next((lane for lane in self._lanes if self._taken[lane] < self._share), None)
            if lane is None:
                return
            keys = self._lanes.pop(lane)
            key = next(iter(keys))
            del keys[key], self._ready[key]
            if keys:
                self._lanes[lane] = keys  # last in the round from now on
            self._taken[lane] += 1
            self._busy[key] = asyncio.get_running_loop().create_task(self._work(key, lane))

    async def _work(self, key: str, lane: str) -> None:
        started = time.monotonic()
        again: float | None = None
        failed, outcome, most = True, "cancelled", FAILURES
        try:
            again = await self._handle(key)
            failed, outcome = False, "ok"
        except errors.Conflict as error:
            outcome, most = "conflict", CONFLICTS
            log.debug("another client wrote first", extra=self._fields(key, error))
        except errors.KubeError as error:
            outcome = type(error).__name__
            log.warning("cannot reconcile, trying again later", extra=self._fields(key, error))
            if isinstance(error, errors.TooManyRequests):
                again = error.retry_after
        except Exception:
            outcome = "error"
            log.exception("reconcile failed", extra={"queue": self.name, "key": key})
        finally:
            del self._busy[key]
            self._taken[lane] -= 1
            if not self._taken[lane]:
                del self._taken[lane]
            metrics.RECONCILES.labels(self.name, outcome).inc()
            self._seconds.observe(time.monotonic() - started)
            self._settle(key, again, failed=failed, most=most)

    def _settle(self, key: str, again: float | None, *, failed: bool, most: int) -> None:
        dirty = key in self._dirty
        self._dirty.discard(key)
        if not self._running:
            return
        self._unseen.discard(key)
        self._tell_seen()
        if failed:
            count = self._failures[key] = min(self._failures.get(key, 0) + 1, most)
            delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** (count - 1)) * random.uniform(0.5, 1.0)  # noqa: S311
            self.add_after(key, max(delay, again or 0.0))
        else:
            self._failures.pop(key, None)
            if dirty:
                self._make_ready(key)
            elif again is not None:
                self.add_after(key, again)
        self._pump()

    def _fields(self, key: str, error: Exception) -> dict[str, object]:
        return {"queue": self.name, "key": key, "error": str(error), "failures": self._failures.get(key, 0) + 1}


def _alike(_: str) -> str:
    return ""
