"""WorkerPools: a finalizer from first sight, and an end that always comes.

    seen ── finalizer added ── deletion asked for ──┬─ its pods stay: let go at once ───────────────────> gone
                                                    └─ delete its Deployments ─ pods gone ─ claims gone ─ let go

Kubernetes' garbage collector deletes what a pool owns in the background only once the pool itself is gone, and our
finalizer keeps it, so we delete its Deployments ourselves: those that it controls, or that have no other owner. In the
foreground the collector does so as well, and it does not matter who is first.

Only pods that are going to end are waited for (`reconciler.pool_pods` says which those are). Pods that stay keep the
old UID's claims for as long as they live, which needs no finalizer. How many pods our watch counts only paces the
looks: a pod that a list does not show is not waited for.

Pods within their grace, which may be an hour, are *draining*: that is as it should be, and said as such. What is over
its grace, or is not deleted although its Deployment is, is stuck, and warned about.

Letting go too early is harmless: claims of a pool that is gone are released like any other unused ones. So
claims are waited for only for a moment: a Node that does not take our writes must not keep a pool. Claims that were
written lately, and so have to linger (`reconciler.claims.plan`), are not waited for at all.
"""

import enum
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final

from msgspec import Struct

from ateplace import errors, names
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import PoolRecord
from ateplace.cluster.state import Pool
from ateplace.kube import Kube, paths
from ateplace.kube.objects import Bare, Metadata
from ateplace.reconciler import metrics
from ateplace.reconciler.events import Events, about_pool
from ateplace.reconciler.pool_pods import Fates, PoolPods
from ateplace.settings import Settings

log = logging.getLogger(__name__)

LOOK_AGAIN: Final = 2.0
"""Least seconds between looks at a pool being deleted; its pods' and claims' ends are told by events."""
PATIENCE: Final = 1 / 4
"""Of the time that a deletion has taken: so much later is the next look, at most `LONGEST` seconds. A deletion that
does not end costs ever fewer requests."""
LONGEST: Final = 30.0
SOON: Final = 0.2
"""The same after deleting Deployments: without pods, nothing else would tell."""
SAY_AGAIN: Final = 300.0
"""Seconds between Events about one slow deletion."""
NAMED: Final = 3
"""How many pods an Event names."""
CLAIMS_SECONDS: Final = 10.0
"""For how long claims are waited for once the pods are gone; usually it takes one."""


class Stage(enum.StrEnum):
    """What a pool's deletion waits for."""

    DEPLOYMENTS = "deployments"
    DRAINING = "draining"
    """Pods within their grace."""
    PODS = "pods"
    """Pods that should be gone."""
    CLAIMS = "claims"


class Deletion(Struct):
    """One that is under way."""

    since: float
    entered: float
    """When it came to its stage."""
    said: float
    looked: float = -inf
    stage: Stage = Stage.DEPLOYMENTS

    def enter(self, stage: Stage, now: float) -> None:
        if stage is not self.stage:
            self.stage, self.entered, self.said = stage, now, now


def awaited(pool: Pool, deployments: int, fates: Fates, before: float) -> Stage | None:
    """What keeps a pool that is being deleted; None when nothing does.

    Deployments and pods are counted by the API server, claims by our watch: those that have not changed since `before`.
    """
    if deployments:
        return Stage.DEPLOYMENTS
    if fates.overdue:
        return Stage.PODS
    if fates.draining:
        return Stage.DRAINING
    if any(there.value is not None and there.changed <= before for there in pool.nodes.values()):
        return Stage.CLAIMS
    return None


class Pools:
    """`reconcile(uid)` looks after one pool's finalizer. `look_at` is called with nodes whose claims are now due."""

    def __init__(
        self,
        kube: Kube,
        ledger: Ledger,
        settings: Settings,
        events: Events,
        *,
        look_at: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._ledger = ledger
        self._settings = settings.reconciler
        self._pods = PoolPods(kube, settings.substrate.pool_label)
        self._events = events
        self._look_at = look_at
        self._clock = clock
        self._deletions: dict[str, Deletion] = {}
        self._wrong: dict[str, str] = {}
        """Pools whose rules cannot be read, and why, as was said."""
        metrics.UNREADABLE_RULES.set_function(lambda: len(self._wrong))
        for stage in Stage:
            metrics.DELETIONS_WAITING.labels(stage.value).set_function(partial(self._waiting, stage))
            metrics.DELETION_OLDEST.labels(stage.value).set_function(partial(self._oldest, stage))

    async def reconcile(self, uid: str) -> float | None:
        """One look; when to look again."""
        pool = self._ledger.pools.get(uid)
        record = pool.record if pool else None
        if record is None or names.FINALIZER not in record.finalizers:
            self._deletions.pop(uid, None)  # what others still hold is not ours to wait for
        self._judge_rules(uid, record)
        if pool is None or record is None:
            return None
        try:
            if record.deleting and names.FINALIZER in record.finalizers:
                return await self._delete(pool, record)
            if not record.deleting and names.FINALIZER not in record.finalizers:
                await self._finalizers(record, (*record.finalizers, names.FINALIZER))
                log.info("finalizer added", extra={"pool": _shown(record)})
        except errors.NotFound:
            log.debug("the pool is gone already", extra={"pool": _shown(record)})
        return None

    def forget(self) -> None:
        """At the end of a term: the next leader measures for itself how long they have waited."""
        self._deletions.clear()
        self._wrong.clear()

    def _judge_rules(self, uid: str, record: PoolRecord | None) -> None:
        """Say once what is wrong with them, until it is another thing."""
        wrong = record.rules.wrong if record else ""
        if record is None or not wrong:
            self._wrong.pop(uid, None)
        elif self._wrong.get(uid) != wrong:
            self._wrong[uid] = wrong
            log.warning("the pool's rules cannot be read", extra={"pool": _shown(record), "reason": wrong})
            self._events.warn(about_pool(record), "BadRule", f"No ateom of this pool is placed: {wrong}")

    def _waiting(self, stage: Stage) -> int:
        return sum(deletion.stage is stage for deletion in self._deletions.values())

    def _oldest(self, stage: Stage) -> float:
        since = (deletion.entered for deletion in self._deletions.values() if deletion.stage is stage)
        now = self._clock()
        return now - min(since, default=now)

    async def _delete(self, pool: Pool, record: PoolRecord) -> float | None:
        now = self._clock()
        deletion = self._deletions.get(pool.uid)
        if deletion is None:
            deletion = self._deletions[pool.uid] = Deletion(since=now, entered=now, said=now)
            log.info("pool is being deleted", extra={"pool": _shown(record)})
        if "orphan" in record.finalizers:
            await self._let_go(record, deletion)
            return None
        if pool.pods and now - deletion.looked < LOOK_AGAIN:
            return LOOK_AGAIN - (now - deletion.looked)  # many pods go one by one: not a read for each
        there = self._kube.list(paths.DEPLOYMENTS.within(record.namespace), Bare)
        deployments = [each.metadata async for each in there if each.metadata.deletion_timestamp is None]
        owned = [meta for meta in deployments if is_its_own(record, meta)]
        await self._delete_deployments(record, owned)
        fates = await self._pods.fates(record, {meta.uid for meta in deployments if meta not in owned})
        if fates.staying:
            log.info("its pods stay", extra={"pool": _shown(record), "pods": fates.staying})
        before = now + CLAIMS_SECONDS - self._settings.linger
        stage = None if fates.staying else awaited(pool, len(owned), fates, before)
        if stage is None:
            await self._let_go(record, deletion)
            return None
        deletion.enter(stage, now)
        deletion.looked = now
        if stage is Stage.CLAIMS:
            for name in pool.nodes:
                self._look_at(name)
            if now - deletion.entered >= CLAIMS_SECONDS:
                log.warning("claims are left to be released later", extra={"pool": _shown(record)})
                await self._let_go(record, deletion)
                return None
        if now - deletion.said >= self._settings.deletion_slow:
            deletion.said = now + SAY_AGAIN
            await self._say(pool, record, stage)
        later = min(LONGEST, max(LOOK_AGAIN, PATIENCE * (now - deletion.since)))
        return SOON if stage is Stage.DEPLOYMENTS else later

    async def _delete_deployments(self, record: PoolRecord, owned: Sequence[Metadata]) -> None:
        propagation = "Foreground" if "foregroundDeletion" in record.finalizers else "Background"
        for meta in owned:
            try:
                path = paths.DEPLOYMENTS.named(meta.name, record.namespace)
                await self._kube.delete(path, uid=meta.uid, propagation=propagation)
            except (errors.NotFound, errors.Conflict):
                continue
            log.info("deployment deleted", extra={"pool": _shown(record), "deployment": meta.name})

    async def _let_go(self, record: PoolRecord, deletion: Deletion) -> None:
        await self._finalizers(record, tuple(name for name in record.finalizers if name != names.FINALIZER))
        seconds = self._clock() - deletion.since
        self._deletions.pop(record.uid, None)
        metrics.DELETION_SECONDS.observe(seconds)
        log.info("pool released", extra={"pool": _shown(record), "seconds": round(seconds, 3)})

    async def _finalizers(self, record: PoolRecord, finalizers: tuple[str, ...]) -> None:
        """The list is replaced whole, so it carries the version that it was read at."""
        path = paths.POOLS.named(record.name, record.namespace)
        meta = {"uid": record.uid, "resourceVersion": str(record.version), "finalizers": finalizers}
        await self._kube.patch(path, {"metadata": meta}, Bare, query=names.FIELD_MANAGER)

    async def _say(self, pool: Pool, record: PoolRecord, stage: Stage) -> None:
        """The wait in words, with the first few of what it waits for."""
        if stage is Stage.CLAIMS:
            claimed = [name for name, tenant in pool.nodes.items() if tenant.value is not None]
            waiting = f"claims on {len(claimed)} nodes ({_few(claimed)})"
        elif stage is Stage.DEPLOYMENTS:
            waiting = "its Deployments to be deleted"
        else:
            found = await self._pods.described(record)
            waiting = f"{len(found)} pods ({_few(found)})"
        message = f"Deletion waits for {waiting}"
        if stage is Stage.DRAINING:
            log.info("pool is draining", extra={"pool": _shown(record), "awaited": waiting})
            self._events.say(about_pool(record), "Draining", message)
        else:
            log.warning("pool deletion is waiting", extra={"pool": _shown(record), "awaited": waiting})
            self._events.warn(about_pool(record), "DeletionWaiting", message)


def is_its_own(record: PoolRecord, meta: Metadata) -> bool:
    """Whether an object goes with the pool: the pool controls it, or is its only owner."""
    owners = meta.owner_references or ()
    own = [
        owner
        for owner in owners
        if owner.is_a(names.GROUP, names.POOL_KIND) and (owner.name, owner.uid) == (record.name, record.uid)
    ]
    return bool(own) and (len(own) == len(owners) or any(owner.controller for owner in own))


def _few(items: list[str]) -> str:
    more = f"; and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return "; ".join(items[:NAMED]) + more


def _shown(record: PoolRecord) -> str:
    return f"{record.namespace}/{record.name}"
