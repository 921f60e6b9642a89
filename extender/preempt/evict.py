"""Ending placeholders ourselves, in the call in which a scheduler wants to preempt them.

A scheduler takes two writes for each victim, one after the other, keeps the pod out of its queue meanwhile, and begins
anew for every pod of a burst. We need one write for each, all at once, and answer when our own watch has shown
that they are gone: by then the scheduler's own is about to. It has nothing left to preempt, and the end of the
placeholder is the event that brings the pod back (docs/decisions/2026-11-17-placeholders-are-ended-by-us.md).

Our right to delete pods ends at placeholders (deploy/base/headroom-policy.yaml). Where it was not granted, or the API
server does not answer, the scheduler preempts as ever.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from typing import Final

from ateplace import errors
from ateplace.cluster.expiring import Expiring
from ateplace.cluster.feed import View
from ateplace.cluster.records import PodRecord
from ateplace.cluster.refills import PREEMPTED, Refills
from ateplace.extender.victims import Victims
from ateplace.kube import Kube, paths

log = logging.getLogger(__name__)

FORBIDDEN_SECONDS: Final = 60.0
"""For how long a placeholder is left to the scheduler after the API server has said that we may not end it."""
SEEN_SECONDS: Final = 0.25
"""How long we wait at most for our watch to show that they are gone."""


class Evictions:
    """Loop-confined."""

    def __init__(self, kube: Kube, view: View, victims: Victims) -> None:
        self._kube = kube
        self._store = view.placeholders.store
        self._ledger = view.ledger
        self._victims = victims
        self._refills = Refills()
        self._counted: dict[str, str] = {}
        """Pools by UID that something was counted for, as people call them."""
        self._forbidden: Expiring[str, None] = Expiring(FORBIDDEN_SECONDS)
        """Placeholders by UID that we may not end: a policy may be about one of them only."""
        self._awaited: dict[str, asyncio.Future[None]] = {}
        view.follow_pods(self._changed)
        self._ledger.subscribe(pool=self._pool_changed)

    def allowed(self, uid: str) -> bool:
        """Whether we may end it, for all we know."""
        self._forbidden.expire(time.monotonic())
        return uid not in self._forbidden

    def placeholders(self) -> Iterator[PodRecord]:
        """All that could be ended and go for no pod yet."""
        return (
            one
            for one in self._store.values()
            if one.node
            and not (one.finished or one.terminating)
            and self._victims.is_free(one.uid)
            and self.allowed(one.uid)
        )

    async def end(self, victims: Iterable[PodRecord], pool: str, until: float) -> set[str]:
        """End these placeholders, at the same time, to make room for ateoms of this pool; the UIDs of those that are
        gone. Never raises: a placeholder that is not gone may still be preempted."""
        ended = [one for one in await asyncio.gather(*(self._end(each, until) for each in victims)) if one]
        now = time.monotonic()
        for victim in ended:
            self._victims.ended(victim.uid, victim.node, pool, now)
        if len(ended) > 1:  # the next pods are tried as soon as we answer; one alone is brought back by the event
            await self._seen(victim.uid for victim in ended)
        return {victim.uid for victim in ended}

    async def _end(self, victim: PodRecord, until: float) -> PodRecord | None:
        path = paths.PODS.named(victim.name, victim.namespace)
        within = until - asyncio.get_running_loop().time()
        about = {"pod": f"{victim.namespace}/{victim.name}", "node": victim.node}
        try:
            await self._kube.delete(path, uid=victim.uid, deadline=within)
        except (errors.NotFound, errors.Conflict):
            return victim  # it was evicted or deleted meanwhile
        except errors.Forbidden as error:
            self._forbidden.put(victim.uid, None, time.monotonic())
            log.warning(
                "not allowed to end a placeholder, the scheduler preempts it", extra={**about, "reason": str(error)}
            )
            return None
        except (errors.KubeError, TimeoutError) as error:
            log.warning("placeholder could not be ended", extra={**about, "reason": str(error)})
            return None
        log.info("placeholder ended", extra=about)
        pool = self._ledger.owners.pool_of(victim)
        if self._known(pool):
            self._counted[pool] = f"{victim.namespace}/{victim.pool}"
            self._refills.owe(pool, self._counted[pool])
        return victim

    async def _seen(self, uids: Iterable[str]) -> None:
        loop = asyncio.get_running_loop()
        left = {uid: loop.create_future() for uid in uids if uid in self._ledger.pods}
        if left:
            self._awaited |= left
            await asyncio.wait(left.values(), timeout=SEEN_SECONDS)
            for uid in left:
                self._awaited.pop(uid, None)

    def _changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        if old and (new is None or new.uid != old.uid) and (awaited := self._awaited.pop(old.uid, None)):
            awaited.set_result(None)
        if self._counted and new and new.placeholder and new.node and not (old and old.node):
            self._refills.paid(self._ledger.owners.pool_of(new))

    def _known(self, uid: str) -> bool:
        pool = self._ledger.pools.get(uid)
        return pool is not None and pool.record is not None

    def _pool_changed(self, uid: str) -> None:
        if uid in self._counted and not self._known(uid):
            PREEMPTED.remove(self._counted.pop(uid))
            self._refills.forget(uid)
