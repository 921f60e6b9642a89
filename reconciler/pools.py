"""WorkerPools: a finalizer from first sight, and an end that always comes.

    seen ── finalizer added ── deletion asked for ──┬─ its pods stay: let go at once ───────────────────> gone
                                                    └─ delete its Deployments ─ pods gone ─ claims gone ─ let go

Kubernetes' garbage collector deletes what a pool owns in the background only once the pool itself is gone, and our
finalizer keeps it, so we delete its Deployments ourselves. In the foreground the collector does so as well, and it
does not matter who is first.

Nothing is waited for that nobody will end. Whether pods stay cannot be read from the pool: the collector may have
orphaned them and taken its own finalizer off before we look, or before we were started. So we ask the pods' owners:
pods of a ReplicaSet that has, or is without, a living Deployment stay, and so do pods without a controller. Pods that
stay keep the old UID's claims for as long as they live, which needs no finalizer. The same is asked of placeholders:
their Deployment is ours and goes in every case (`reconciler.headroom`), but somebody may have orphaned them; those of
a pool that is gone hold nothing.

Which pods are the pool's is said by the UID label, so that one that was renamed out of its ReplicaSet is found, too.
How many our watch counts only paces the looks: what nobody can find, nobody must wait for.

Letting go too early would be harmless: claims of a pool that is gone are released like any other's that nobody uses.
"""

import enum
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence, Set
from functools import partial
from math import inf
from typing import Final

from msgspec import Struct

from ateplace import errors, names
from ateplace.cluster.claim_patch import MANAGER
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import PoolRecord
from ateplace.cluster.state import Pool
from ateplace.kube import Kube, paths, selectors
from ateplace.kube.objects import Metadata, OwnerReference
from ateplace.settings import Settings
from reconciler import metrics
from reconciler.events import Events, about_pool

log = logging.getLogger(__name__)

LOOK_AGAIN: Final = 2.0
"""Seconds between looks at a pool being deleted; its pods' and claims' ends are told by events."""
SOON: Final = 0.2
"""The same after deleting Deployments: without pods, nothing else would tell."""
SAY_AGAIN: Final = 300.0
"""Seconds between Events about one slow deletion."""
NAMED: Final = 3
"""How many pods an Event names."""


class Stage(enum.StrEnum):
    """What a pool's deletion waits for."""

    DEPLOYMENTS = "deployments"
    PODS = "pods"
    CLAIMS = "claims"


class Bare(Struct):
    """An object of which only the metadata matters."""

    metadata: Metadata

    @property
    def going(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    def controller(self, kind: str) -> OwnerReference | None:
        """The controller that owns it, if that is of this kind."""
        owners = self.metadata.owner_references or ()
        return next((owner for owner in owners if owner.controller and owner.kind == kind), None)


class Deletion(Struct):
    """One that is under way."""

    since: float
    said: float
    looked: float = -inf
    stage: Stage = Stage.DEPLOYMENTS


def awaited(pool: Pool, deployments: int, going: int) -> Stage | None:
    """What keeps a pool that is being deleted; None when nothing does.

    Deployments, and pods that are `going`, are counted by the API server; claims by our watch.
    """
    if deployments:
        return Stage.DEPLOYMENTS
    if going:
        return Stage.PODS
    if any(tenant.value is not None for tenant in pool.nodes.values()):
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
        self._pool_label = settings.substrate.pool_label
        self._events = events
        self._look_at = look_at
        self._clock = clock
        self._deletions: dict[str, Deletion] = {}
        for stage in Stage:
            metrics.DELETIONS_WAITING.labels(stage.value).set_function(partial(self._waiting, stage))
            metrics.DELETION_OLDEST.labels(stage.value).set_function(partial(self._oldest, stage))

    async def reconcile(self, uid: str) -> float | None:
        """One look; when to look again."""
        pool = self._ledger.pools.get(uid)
        record = pool.record if pool else None
        if record is None or names.FINALIZER not in record.finalizers:
            self._deletions.pop(uid, None)  # what others still hold is not ours to wait for
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
        """At the end of a term: whoever leads now knows how long they have waited."""
        self._deletions.clear()

    def _waiting(self, stage: Stage) -> int:
        return sum(deletion.stage is stage for deletion in self._deletions.values())

    def _oldest(self, stage: Stage) -> float:
        since = (deletion.since for deletion in self._deletions.values() if deletion.stage is stage)
        now = self._clock()
        return now - min(since, default=now)

    async def _delete(self, pool: Pool, record: PoolRecord) -> float | None:
        now = self._clock()
        deletion = self._deletions.get(pool.uid)
        if deletion is None:
            deletion = self._deletions[pool.uid] = Deletion(since=now, said=now)
            log.info("pool is being deleted", extra={"pool": _shown(record)})
        if "orphan" in record.finalizers:
            await self._let_go(record, deletion)
            return None
        if pool.pods and now - deletion.looked < LOOK_AGAIN:
            return LOOK_AGAIN - (now - deletion.looked)  # many pods go one by one: not a read for each
        deployments = [each async for each in self._kube.list(_deployments(record), Bare) if not each.going]
        owned = [each for each in deployments if any(o.uid == record.uid for o in each.metadata.owner_references or ())]
        await self._delete_deployments(record, owned)
        others = {each.metadata.uid for each in deployments if each not in owned}
        going, staying = await self._fate(record, others)
        if staying:
            log.info("its pods stay", extra={"pool": _shown(record), "pods": staying})
        stage = None if staying else awaited(pool, len(owned), going)
        if stage is None:
            await self._let_go(record, deletion)
            return None
        deletion.stage, deletion.looked = stage, now
        if stage is Stage.CLAIMS:
            for name in pool.nodes:
                self._look_at(name)
        if now - deletion.said >= self._settings.deletion_slow:
            deletion.said = now + SAY_AGAIN
            waiting = await self._explain(pool, record, stage)
            log.warning("pool deletion is waiting", extra={"pool": _shown(record), "awaited": waiting})
            self._events.warn(about_pool(record), "DeletionWaiting", f"Deletion waits for {waiting}")
        return SOON if stage is Stage.DEPLOYMENTS else LOOK_AGAIN

    async def _delete_deployments(self, record: PoolRecord, owned: Sequence[Bare]) -> None:
        propagation = "Foreground" if "foregroundDeletion" in record.finalizers else "Background"
        for deployment in owned:
            meta = deployment.metadata
            try:
                path = paths.DEPLOYMENTS.named(meta.name, record.namespace)
                await self._kube.delete(path, uid=meta.uid, propagation=propagation)
            except (errors.NotFound, errors.Conflict):
                continue
            log.info("deployment deleted", extra={"pool": _shown(record), "deployment": meta.name})

    async def _fate(self, record: PoolRecord, deployments: Set[str]) -> tuple[int, int]:
        """How many of the pool's pods are on their way out, and how many stay; `deployments` are alive and not its."""
        going = staying = 0
        sets: dict[str, bool] = {}
        async for pod in self._pods(record):
            owner = pod.controller("ReplicaSet")
            if pod.going:
                going += 1
                continue
            if owner and owner.uid not in sets:
                sets[owner.uid] = await self._stays(record, owner, deployments)
            if owner and not sets[owner.uid]:
                going += 1
            else:
                staying += 1
        return going, staying

    async def _stays(self, record: PoolRecord, owner: OwnerReference, deployments: Set[str]) -> bool:
        """Whether nobody is about to delete a ReplicaSet."""
        try:
            found = await self._kube.get(paths.REPLICA_SETS.named(owner.name, record.namespace), Bare)
        except errors.NotFound:
            return False
        deployment = found.controller("Deployment")
        alive = found.metadata.uid == owner.uid and not found.going
        return alive and (deployment is None or deployment.uid in deployments)

    async def _pods(self, record: PoolRecord) -> AsyncIterator[Bare]:
        """The pool's ateoms and placeholders that have not ended, as the API server has them now: whatever carries its
        UID, and what carries its name and no UID. The ledger counts the same ones: any of them may hold a claim."""
        path = paths.PODS.within(record.namespace)
        alive = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        without_uid = selectors.unlabelled(names.POOL_UID_LABEL)
        named = (selectors.labelled(label, record.name) for label in (self._pool_label, names.PLACEHOLDER_LABEL))
        asked = (
            selectors.labelled(names.POOL_UID_LABEL, record.uid),
            *(selectors.both(one, without_uid) for one in named),
        )
        for labels in asked:
            if labels is None:
                continue  # a pool may have a name that no pod can carry
            async for pod in self._kube.list(path, Bare, query={"labelSelector": labels, **alive}):
                if pod.metadata.is_mirror:
                    continue
                if pod.metadata.label(self._pool_label) or pod.metadata.label(names.PLACEHOLDER_LABEL):
                    yield pod

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
        await self._kube.patch(path, {"metadata": meta}, Bare, query=MANAGER)

    async def _explain(self, pool: Pool, record: PoolRecord, stage: Stage) -> str:
        """The wait in words, with the first few of what it waits for."""
        if stage is Stage.CLAIMS:
            claimed = [name for name, tenant in pool.nodes.items() if tenant.value is not None]
            return f"claims on {len(claimed)} nodes ({_few(claimed)})"
        if stage is Stage.DEPLOYMENTS:
            return "its Deployments to be deleted"
        found = []
        async for pod in self._pods(record):
            meta = pod.metadata
            held = f", held by {', '.join(meta.finalizers)}" if meta.finalizers else ""
            found.append(f"{meta.name}: {'Terminating' if pod.going else 'not deleted yet'}{held}")
        return f"{len(found)} pods ({_few(found)})"


def _deployments(record: PoolRecord) -> str:
    return paths.DEPLOYMENTS.within(record.namespace)


def _few(items: list[str]) -> str:
    more = f"; and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return "; ".join(items[:NAMED]) + more


def _shown(record: PoolRecord) -> str:
    return f"{record.namespace}/{record.name}"
