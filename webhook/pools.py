"""Which WorkerPools there are, and their UIDs.

From a watch; a pool that it does not have is asked for once, directly, before anybody is told that it does not
exist: a pool's first pods are often created in the same second as the pool. A "no" is never remembered.

Why a cached "yes" is safe here: the UID of a live pool never changes. A pool that was deleted and made again
under its name within the watch's delay (milliseconds) may lend its old UID to a pod that nobody's new
Deployment made; the reconciler treats that pod like any other pod of a deleted pool. A watch that has shown no
sign of life for `stale_after` is not believed at all.
"""

import asyncio
import logging
import re
from typing import Final

from msgspec import Struct

from ateplace import errors
from ateplace.kube import Kube, objects, paths
from ateplace.kube.watch import Watch
from webhook import metrics

log = logging.getLogger(__name__)

NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LONGEST_NAME: Final = 253

PATIENCE: Final = 3.0
"""Seconds for a direct look; API servers wait 5 s for our answer."""
LOOKS: Final = 16
"""Direct looks at the same time; more wait their turn, within their patience."""


class PriorityClass(Struct, rename="camel"):
    metadata: objects.Metadata
    global_default: bool = False


class Pools:
    """UIDs of WorkerPools by namespace and name."""

    def __init__(self, kube: Kube, stale_after: float) -> None:
        self._kube = kube
        self._stale_after = stale_after
        self._looking: dict[str, asyncio.Task[str | None]] = {}
        self._turns = asyncio.Semaphore(LOOKS)
        self.watch: Watch[objects.WorkerPool, str] = Watch(
            kube,
            paths.POOLS.everywhere,
            objects.WorkerPool,
            lambda pool: pool.metadata.uid,
            _ignore,
            name="workerpools",
        )
        self._uids = self.watch.store

    def known(self, namespace: str, name: str) -> str | None:
        """The pool's UID as the watch has it; None when it must be asked for."""
        uid = self._uids.get(f"{namespace}/{name}")
        return uid if uid is not None and self.watch.staleness() <= self._stale_after else None

    async def find(self, namespace: str, name: str) -> str | None:
        """The UID, asked for directly; None when there is no such pool. Raises KubeError when nobody knows.

        Callers share a look. Its "yes" is good for whoever joined it; its "no" may have been decided before the pool
        of somebody who joined late was created, so they look again, together.
        """
        if not (_valid(namespace) and _valid(name)):
            return None
        key = f"{namespace}/{name}"
        try:
            async with asyncio.timeout(PATIENCE):
                joined = key in self._looking
                uid = await self._shared_look(key, namespace, name)
                if uid is None and joined:
                    uid = await self._shared_look(key, namespace, name)
                return uid
        except TimeoutError as error:
            raise errors.Unreachable("the API server did not answer in time") from error

    async def _shared_look(self, key: str, namespace: str, name: str) -> str | None:
        task = self._looking.get(key)
        if task is None:
            task = asyncio.create_task(self._look(namespace, name), name=f"look for pool {key}")
            self._looking[key] = task
            task.add_done_callback(lambda done: self._looked(key, done))
        return await asyncio.shield(task)

    def _looked(self, key: str, task: asyncio.Task[str | None]) -> None:
        self._looking.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever asked may have gone; it is counted already

    def unready(self) -> str | None:
        """Why pods should not be sent here."""
        if not self.watch.synced.is_set():
            return "the list of WorkerPools has not arrived yet"
        return stale(self.watch.staleness(), self._stale_after)

    async def _look(self, namespace: str, name: str) -> str | None:
        outcome = "failed"
        try:
            async with asyncio.timeout(PATIENCE), self._turns:
                uid = (await self._kube.get(paths.POOLS.named(name, namespace), objects.WorkerPool)).metadata.uid
            outcome = "found"
        except errors.NotFound:
            outcome = "absent"
            return None
        except TimeoutError as error:
            raise errors.Unreachable("the API server did not answer in time") from error
        else:
            return uid
        finally:
            metrics.LOOKUPS.labels(outcome).inc()


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

    def unready(self) -> str | None:
        """Why pods should not be sent here."""
        if not self.watch.synced.is_set():
            return "the list of PriorityClasses has not arrived yet"
        return stale(self.watch.staleness(), self._stale_after)


def stale(seconds: float, limit: float) -> str | None:
    """A watch that is too old, as a reason."""
    return f"no sign of life from the API server for {seconds:.0f} s" if seconds > limit else None


def _valid(name: str) -> bool:
    return len(name) <= LONGEST_NAME and NAME.fullmatch(name) is not None


def _ignore(_key: str, _old: object, _new: object) -> None:
    """Reviews read the store; nothing has to happen on a change."""
