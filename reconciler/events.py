"""Kubernetes Events: what `kubectl describe` says about a Node, a WorkerPool or a Pod.

Best effort by design: saying something never delays or fails the work. Every bound drops, and counts what it drops:

- one object gets a few at once, then one in half a minute;
- the same words about the same object within ten minutes raise the count of the Event that is there;
- all together are written a few a second, by one task, from a short queue, half of which is kept for warnings:
  a thousand nodes that are claimed at once must not hide that one of them gets no atelet.
"""

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from ateplace import errors, names
from ateplace.cluster.records import PoolRecord
from ateplace.kube import Kube, paths
from ateplace.reconciler import metrics

log = logging.getLogger(__name__)

COMPONENT: Final = "ateplace-reconciler"
WARNING: Final = "Warning"
WAITING: Final = 256
"""Most Events that wait to be written."""
REMEMBERED: Final = 1024
"""Most objects, and most Events, that are remembered."""
OBJECT_BURST, OBJECT_SECONDS = 10, 30.0
ALL_BURST, ALL_SECONDS = 50, 0.2
SAME_SECONDS: Final = 600.0


class About(Struct, frozen=True):
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


def about_node(name: str, uid: str) -> About:
    return About("v1", "Node", "", name, uid)


def about_pool(pool: PoolRecord) -> About:
    return About(f"{names.GROUP}/{names.POOL_VERSION}", names.POOL_KIND, pool.namespace, pool.name, pool.uid)


def about_pod(namespace: str, name: str, uid: str) -> About:
    return About("v1", "Pod", namespace, name, uid)


class Words(Struct, frozen=True):
    about: About
    kind: str
    reason: str
    message: str


class Budget:
    """So many at once, then one every so many seconds; `left` is kept as time goes by."""

    __slots__ = ("_at", "_burst", "_left", "_seconds")

    def __init__(self, burst: int, seconds: float, now: float) -> None:
        self._burst, self._seconds = burst, seconds
        self._left, self._at = float(burst), now

    def wait(self, now: float) -> float:
        """Seconds until one may be taken."""
        self._left = min(self._burst, self._left + (now - self._at) / self._seconds)
        self._at = now
        return max(0.0, (1 - self._left) * self._seconds)

    def take(self, now: float) -> bool:
        if self.wait(now) > 0:
            return False
        self._left -= 1
        return True


class Written(Struct):
    name: str
    count: int
    at: float


class Events:
    """`say` and `warn` from anywhere in the loop; written while `run` runs."""

    def __init__(self, kube: Kube, identity: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._identity = identity
        self._clock = clock
        self._queue: asyncio.Queue[Words] = asyncio.Queue()
        self._budgets: OrderedDict[str, Budget] = OrderedDict()
        self._written: OrderedDict[Words, Written] = OrderedDict()

    def say(self, about: About, reason: str, message: str) -> None:
        self._put(Words(about, "Normal", reason, message))

    def warn(self, about: About, reason: str, message: str) -> None:
        self._put(Words(about, WARNING, reason, message))

    async def run(self) -> None:
        """Write what was said, until cancelled."""
        everything = Budget(ALL_BURST, ALL_SECONDS, self._clock())
        while True:
            words = await self._queue.get()
            await asyncio.sleep(everything.wait(self._clock()))
            everything.take(self._clock())
            try:
                await self._write(words)
                metrics.EVENTS_SENT.inc()
            except errors.KubeError as error:
                metrics.EVENTS_DROPPED.labels("refused").inc()
                log.debug("cannot write an Event", extra={"reason": words.reason, "error": str(error)})

    def forget(self) -> None:
        """At the end of a term: what waits would be said in the next one, as if it happened then."""
        while not self._queue.empty():
            self._queue.get_nowait()
            metrics.EVENTS_DROPPED.labels("term").inc()

    def _put(self, words: Words) -> None:
        now = self._clock()
        budget = self._budgets.get(words.about.uid)
        if budget is None:
            budget = self._budgets[words.about.uid] = Budget(OBJECT_BURST, OBJECT_SECONDS, now)
        self._budgets.move_to_end(words.about.uid)
        _trim(self._budgets)
        if not budget.take(now):
            metrics.EVENTS_DROPPED.labels("object").inc()
            return
        if self._queue.qsize() >= (WAITING if words.kind == WARNING else WAITING // 2):
            metrics.EVENTS_DROPPED.labels("queue").inc()
        else:
            self._queue.put_nowait(words)

    async def _write(self, words: Words) -> None:
        about = words.about
        namespace = about.namespace or "default"
        now, clock = datetime.now(UTC).isoformat(timespec="microseconds"), self._clock()
        before = self._written.get(words)
        if before and clock - before.at < SAME_SECONDS:
            before.count += 1
            before.at = clock
            series = {"count": before.count, "lastObservedTime": now}
            try:
                await self._kube.patch(paths.EVENTS.named(before.name, namespace), {"series": series}, object)
                return
            except errors.NotFound:
                log.debug("the Event to be counted up has expired", extra={"reason": words.reason})
        name = f"{about.name[:200]}.{uuid.uuid4().hex[:16]}"
        regarding = {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        }
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": now,
            "regarding": regarding,
            "type": words.kind,
            "reason": words.reason,
            "action": words.reason,
            "note": words.message[:1024],
            "reportingController": COMPONENT,
            "reportingInstance": self._identity[:128],
        }
        await self._kube.create(paths.EVENTS.within(namespace), body, object)
        self._written[words] = Written(name, 1, clock)
        _trim(self._written)


def _trim(remembered: OrderedDict[Any, Any]) -> None:
    while len(remembered) > REMEMBERED:
        remembered.popitem(last=False)
