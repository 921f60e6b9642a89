"""Which WorkerPools there are, and their UIDs.

From a watch; a pool that it does not have is asked for directly before a pod is told that its pool does not exist: a
pool's first pods are often created in the same second as the pool. Any pod may send us reviews of invented pools, so
direct looks are bounded: so many at once and a second, so many reviews that wait for one, and at most one look a second
for the same name. A review that comes sooner after a "no" waits for the next look: an old "no" is no answer to it.
Whatever is being looked for is found at once when the watch brings it.

Why a cached "yes" is safe here: the UID of a live pool never changes. A pool that was deleted and made again
under its name within the watch's delay (milliseconds) may lend its old UID to a pod of the new
pool's Deployment; the reconciler treats that pod like any other pod of a deleted pool. A watch that has shown no
sign of life for `stale_after` is not believed at all.
"""

import asyncio
import logging
import math
import re
from collections import Counter
from typing import Final

from msgspec import Struct

from ateplace import errors
from ateplace.kube import Kube, objects, paths
from ateplace.kube.watch import Watch
from ateplace.webhook import metrics

log = logging.getLogger(__name__)

NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LONGEST_NAME: Final = 253

PATIENCE: Final = 3.0
"""Seconds for a direct look; API servers wait 5 s for our answer."""
LOOKS: Final = 16
"""Direct looks at the same time; more wait their turn, within their patience."""
RATE: Final = 20.0
"""Direct looks a second, after as many at once."""
MOMENT: Final = 1.0
"""Seconds from a "no" to the next look for the same pool."""
WAITING: Final = 128
"""Reviews that wait for a look; further ones are told to come back. At most half of them are one client's."""


class PriorityClass(Struct, rename="camel"):
    metadata: objects.Metadata
    global_default: bool = False


class Pools:
    """UIDs of WorkerPools by namespace and name."""

    def __init__(self, kube: Kube, stale_after: float) -> None:
        self._kube = kube
        self._stale_after = stale_after
        self._looks: dict[str, Look] = {}
        self._absent: dict[str, float] = {}
        """When the last "no" was decided, for a moment; the oldest first."""
        self._turns = asyncio.Semaphore(LOOKS)
        self._free_at = -math.inf
        """When a look may begin that has to wait for none of `RATE`; each begun moves it on."""
        self._waiting: Counter[str] = Counter()
        """Reviews that wait, by client."""
        self.watch: Watch[objects.WorkerPool, str] = Watch(
            kube,
            paths.POOLS.everywhere,
            objects.WorkerPool,
            lambda pool: pool.metadata.uid,
            self._changed,
            name="workerpools",
        )
        self._uids = self.watch.store

    def known(self, namespace: str, name: str) -> str | None:
        """The pool's UID as the watch has it; None when it must be asked for."""
        uid = self._uids.get(f"{namespace}/{name}")
        return uid if uid is not None and self.watch.staleness() <= self._stale_after else None

    async def find(self, namespace: str, name: str, client: str = "") -> str | None:
        """The UID, asked for directly; None when there is no such pool. Raises KubeError when it cannot be known now.

        Callers share a look. Its "yes" is good for every caller that joined it; its "no" may have been decided before
        the pool of a caller that joined late was created, so these look again, together.
        """
        if not (_valid(namespace) and _valid(name)):
            return None
        if self._waiting.total() >= WAITING or self._waiting[client] >= WAITING // 2:
            metrics.LOOKUPS.labels("crowded").inc()
            raise errors.Unavailable("too many reviews wait for lookups of WorkerPools")
        self._waiting[client] += 1
        key = f"{namespace}/{name}"
        try:
            async with asyncio.timeout(PATIENCE):
                joined = key in self._looks
                uid = await self._shared_look(key, namespace, name)
                if uid is None and joined:
                    uid = await self._shared_look(key, namespace, name)
                return uid
        except TimeoutError as error:
            raise errors.Unreachable("the API server did not answer in time") from error
        finally:
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client]

    async def _shared_look(self, key: str, namespace: str, name: str) -> str | None:
        look = self._looks.get(key)
        if look is None:
            look = self._looks[key] = Look()
            look.task = asyncio.create_task(self._look(look, key, namespace, name), name=f"look for pool {key}")
        look.askers += 1
        try:
            return await asyncio.shield(look.answer)
        finally:
            look.askers -= 1
            if not look.askers and not look.answer.done():
                self._end(key, look)
                look.answer.cancel()

    def _end(self, key: str, look: "Look") -> None:
        """Nothing is to be looked for any more: it was found, or every asker has gone."""
        if self._looks.get(key) is look:
            del self._looks[key]
        if look.task is not None:
            look.task.cancel()

    def _changed(self, key: str, _: str | None, uid: str | None) -> None:
        look = self._looks.get(key)
        if look is not None and uid is not None and not look.answer.done():
            look.answer.set_result(uid)
            self._end(key, look)

    def unready(self) -> str:
        """Why pods should not be sent here; empty when they may."""
        if not self.watch.synced.is_set():
            return "the list of WorkerPools has not arrived yet"
        return stale(self.watch.staleness(), self._stale_after)

    async def _look(self, look: "Look", key: str, namespace: str, name: str) -> None:
        """Answer the look, whatever happens; when this is cancelled it has been answered, or has no asker left."""
        try:
            uid = await self._ask(key, namespace, name)
        except Exception as error:  # noqa: BLE001 - the askers raise it
            self._looks.pop(key, None)
            look.answer.set_exception(error)
            look.answer.exception()  # every asker may have gone; it is counted already
        else:
            self._looks.pop(key, None)
            look.answer.set_result(uid)

    async def _ask(self, key: str, namespace: str, name: str) -> str | None:
        outcome = "failed"
        try:
            await self._when_due(key)
            async with asyncio.timeout(PATIENCE), self._turns:
                uid = (await self._kube.get(paths.POOLS.named(name, namespace), objects.WorkerPool)).metadata.uid
            outcome = "found"
        except asyncio.CancelledError:
            outcome = "needless"
            raise
        except errors.NotFound:
            outcome = "absent"
            self._remember_absent(key)
            return None
        except TimeoutError as error:
            raise errors.Unreachable("the API server did not answer in time") from error
        else:
            return uid
        finally:
            metrics.LOOKUPS.labels(outcome).inc()

    async def _when_due(self, key: str) -> None:
        """Wait until this look does not exceed the rate, nor come too soon after a "no"."""
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._absent.get(key, -math.inf) + MOMENT - clock()))
        now = clock()
        # As many as a second allows may go at once.
        self._free_at = max(self._free_at, now - 1.0) + 1 / RATE
        await asyncio.sleep(max(0.0, self._free_at - now))

    def _remember_absent(self, key: str) -> None:
        now = asyncio.get_running_loop().time()
        self._absent.pop(key, None)
        self._absent[key] = now
        while (oldest := next(iter(self._absent))) != key and self._absent[oldest] < now - MOMENT:
            del self._absent[oldest]


class Look:
    """One look for one pool, and who waits for its answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.askers = 0


class DefaultClasses:
    """The names of the PriorityClasses with globalDefault, from a watch."""

    def __init__(self, kube: Kube, stale_after: float) -> None:
        self._stale_after = stale_after
        self.watch: Watch[PriorityClass, bool] = Watch(
            kube,
            paths.PRIORITY_CLASSES.everywhere,
            PriorityClass,
            lambda each: each.global_default or None,
            _ignore,
            name="priorityclasses",
        )

    @property
    def names(self) -> dict[str, bool]:
        """They are the keys."""
        return self.watch.store

    def unready(self) -> str:
        """Why pods should not be sent here; empty when they may."""
        if not self.watch.synced.is_set():
            return "the list of PriorityClasses has not arrived yet"
        return stale(self.watch.staleness(), self._stale_after)


def stale(seconds: float, limit: float) -> str:
    """Why a watch is too old; empty when it is not."""
    return f"no sign of life from the API server for {seconds:.0f} s" if seconds > limit else ""


def _valid(name: str) -> bool:
    return len(name) <= LONGEST_NAME and NAME.fullmatch(name) is not None


def _ignore(_key: str, _old: object, _new: object) -> None:
    """Reviews read the store; nothing has to happen on a change."""
