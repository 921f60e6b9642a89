"""A pool's pods, and what becomes of those of a pool that is being deleted.

    Terminating, within its grace          draining
    Terminating, and its grace is over     overdue
    of a ReplicaSet that goes              overdue: not deleted yet, and the garbage collector is about to
    of anything else                       staying: no controller is going to delete it

Whether pods stay cannot be read from the pool: the garbage collector may have orphaned them and taken its own finalizer
off before we look, or before we were started. So their owners are asked: pods of a ReplicaSet that has, or is without,
a living Deployment stay, and so do pods without a controller. The same is asked of placeholders: their Deployment is
ours and goes in every case (`reconciler.headroom`), but a client may have orphaned them; those of a pool that is gone
hold nothing.

Which pods are the pool's is said by the UID label, so that one that was renamed out of its ReplicaSet is found, too.
"""

from collections.abc import AsyncIterator, Callable, Set
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from ateplace import errors, names
from ateplace.cluster.records import PoolRecord
from ateplace.kube import Kube, paths, selectors
from ateplace.kube.objects import Bare, Metadata, OwnerReference

SLACK: Final = 30.0
"""Seconds by which a pod may be over its grace: kubelets report late, and our clock is not the API server's."""
SETS: Final = 16
"""Most ReplicaSets that one look reads. A client that may create pods can name any number of owners."""


class Fates(Struct):
    draining: int = 0
    overdue: int = 0
    staying: int = 0


class PoolPods:
    def __init__(self, kube: Kube, pool_label: str, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._kube = kube
        self._pool_label = pool_label
        self._clock = clock

    async def fates(self, record: PoolRecord, deployments: Set[str]) -> Fates:
        """What becomes of the pool's pods. `deployments` are alive, and do not go with the pool."""
        found, sets = Fates(), dict[str, bool]()
        async for meta in self._all(record):
            left = self._left(meta)
            if left is not None:
                found.draining += left >= 0
                found.overdue += left < 0
                continue
            owner = _controller(meta, "ReplicaSet")
            if owner and owner.uid not in sets and len(sets) < SETS:
                sets[owner.uid] = await self._stays(record, owner, deployments)
            stays = owner is None or sets.get(owner.uid, False)
            found.staying += stays
            found.overdue += not stays
        return found

    async def described(self, record: PoolRecord) -> list[str]:
        """Each of the pool's pods, and how it ends."""
        return [self._describe(meta) async for meta in self._all(record)]

    def _describe(self, meta: Metadata) -> str:
        left = self._left(meta)
        held = f", held by {', '.join(meta.finalizers)}" if meta.finalizers else ""
        if left is None:
            return f"{meta.name}: not deleted yet{held}"
        over = f"{-left:.0f} s over its grace period" if left < 0 else f"{left:.0f} s left"
        return f"{meta.name}: Terminating{held}, {over}"

    def _left(self, meta: Metadata) -> float | None:
        return seconds_left(meta, self._clock())

    async def _stays(self, record: PoolRecord, owner: OwnerReference, deployments: Set[str]) -> bool:
        """Whether a ReplicaSet is going to stay."""
        try:
            path = paths.REPLICA_SETS.named(owner.name, record.namespace)
        except errors.NotFound:
            return True  # nothing is called so, and the garbage collector, too, cannot ask for it
        try:
            found = (await self._kube.get(path, Bare)).metadata
        except errors.NotFound:
            return False
        deployment = _controller(found, "Deployment")
        alive = found.uid == owner.uid and found.deletion_timestamp is None
        return alive and (deployment is None or deployment.uid in deployments)

    async def _all(self, record: PoolRecord) -> AsyncIterator[Metadata]:
        """The pool's ateoms and placeholders that have not ended, as the API server has them now: whatever carries its
        UID, and what carries its name and no UID. The ledger counts the same ones: any of them may hold a claim."""
        without_uid = selectors.unlabelled(names.POOL_UID_LABEL)
        named = (selectors.labelled(label, record.name) for label in (self._pool_label, names.PLACEHOLDER_LABEL))
        asked = (
            selectors.labelled(names.POOL_UID_LABEL, record.uid),
            *(selectors.both(one, without_uid) for one in named),
        )
        alive = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        path = paths.PODS.within(record.namespace)
        for labels in asked:
            if labels is None:
                continue  # a pool may have a name that no pod can carry
            async for pod in self._kube.list(path, Bare, query={"labelSelector": labels, **alive}):
                if pod.metadata.is_mirror:
                    continue
                if pod.metadata.label(self._pool_label) or pod.metadata.label(names.PLACEHOLDER_LABEL):
                    yield pod.metadata


def seconds_left(meta: Metadata, now: datetime) -> float | None:
    """Until a Terminating pod should be gone at the latest; None when it is not Terminating."""
    if meta.deletion_timestamp is None:
        return None
    try:
        end = datetime.fromisoformat(meta.deletion_timestamp)
        return (end - now).total_seconds() + SLACK
    except (ValueError, TypeError):
        return 0.0


def _controller(meta: Metadata, kind: str) -> OwnerReference | None:
    """The controller that owns it, if that is one of this kind of Kubernetes' own."""
    owners = meta.owner_references or ()
    return next((owner for owner in owners if owner.controller and owner.is_a("apps", kind)), None)
