"""The periodic full comparison: what does the API server have that our events did not tell us?

Each round lists every watched kind afresh and holds it against the watch's copy. A difference alone means little: the
watch may be a moment behind the list. It counts as missed when the watch has since been read past the list's
version and the same object, unchanged, still differs. That must never happen; when it does, it is
counted and logged, and the copy is not trusted any longer: the process ends and starts again from a full list.

What is due but waits in no queue is counted too, and queued: an event was lost between the ledger and us. Some of it is
due only by a copy that is behind (our own write is not in it yet), so that counts, too, only once the watches of nodes
and pools have been read past what there was when we first looked.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ateplace import errors
from ateplace.cluster.feed import View
from ateplace.kube.watch import Watch
from ateplace.reconciler import metrics
from ateplace.reconciler.workqueue import Queue

log = logging.getLogger(__name__)

QUEUE_PATIENCE = 5.0
"""Seconds that something due may be in no queue: our own writes take a moment to come back."""
SURVEY_POLL = 1.0


class Suspect(Struct, frozen=True):
    """An object that a list and a watch disagree on."""

    version: int
    """Its own version in the list; 0 when the list does not have it."""
    kept: object
    """What the watch has of it."""


class WatchDiffers(errors.AteplaceError):
    """A watch's copy is wrong."""


class Compare:
    """`round()` makes one comparison; `nodes` and `pools` are the queues that everything due should be in."""

    def __init__(self, view: View, due: dict[Queue, Callable[[], list[str]]]) -> None:
        self._view = view
        self._due = due

    async def run(self, every: float) -> None:
        """A round every so many seconds, for ever; trouble with the API server only postpones one."""
        while True:
            await asyncio.sleep(every)
            try:
                await self.round()
            except errors.KubeError as error:
                log.warning("full comparison failed", extra={"error": str(error)})

    async def round(self) -> None:
        """Compare everything once; raises WatchDiffers when a watch's copy is wrong."""
        await self._queues()
        for watch in self._view.watches:
            missed = await differences(watch, give_up=self._view.reason)
            if missed:
                metrics.MISSED.labels("watch").inc(len(missed))
                log.error("a watch missed changes", extra={"watch": watch.name, "objects": missed[:10]})
                raise WatchDiffers(f"the watch of {watch.name} differs from the API server on {len(missed)} objects")
        metrics.COMPARED.inc()

    async def _queues(self) -> None:
        forgotten = {queue: self._unknown(queue) for queue in self._due}
        if not any(forgotten.values()):
            return
        versions = {watch: await _version(watch) for watch in (self._view.nodes, self._view.pools)}
        await asyncio.sleep(QUEUE_PATIENCE)
        for watch, version in versions.items():
            if not await _reached(watch, version, give_up=self._view.reason):
                return
        for queue, before in forgotten.items():
            for key in before & self._unknown(queue):
                metrics.MISSED.labels(queue.name).inc()
                log.error("a key was due and was not in its queue", extra={"queue": queue.name, "key": key})
                queue.add(key)

    def _unknown(self, queue: Queue) -> set[str]:
        return {key for key in self._due[queue]() if not queue.knows(key)}


async def differences(watch: Watch[Any, Any], *, give_up: Callable[[], str]) -> list[str]:
    """Keys of objects that the watch should know and does not, or knows wrongly. Usually one list, kept nowhere."""
    found, version = await _suspects(watch)
    if not found:
        return []
    if not await _reached(watch, version, give_up=give_up):
        return []
    again, _ = await _suspects(watch)
    return [key for key, suspect in again.items() if found.get(key) == suspect]


async def _reached(watch: Watch[Any, Any], version: int, *, give_up: Callable[[], str]) -> bool:
    """Wait until the watch has been read up to a version; False when the view is too old to tell."""
    while watch.version < version:
        if give_up():
            return False
        await asyncio.sleep(SURVEY_POLL)
    return True


async def _version(watch: Watch[Any, Any]) -> int:
    """What the API server's version is now; 0 when it has nothing of this kind to list."""
    async for at, *_ in watch.fresh():
        return at
    return 0


async def _suspects(watch: Watch[Any, Any]) -> tuple[dict[str, Suspect], int]:
    store = watch.store
    found: dict[str, Suspect] = {}
    latest, count = 0, 0
    async for at, key, version, record in watch.fresh():
        latest = at
        count += 1
        kept = store.get(key)
        if kept != record:
            found[key] = Suspect(version, kept)
    if count != len(store) or found:
        listed = set()
        async for at, key, _, _ in watch.fresh():
            latest = at
            listed.add(key)
        for key, kept in tuple(store.items()):
            if key not in listed:
                found[key] = Suspect(0, kept)
    return found, latest
