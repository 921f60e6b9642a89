"""Keeps each pool's placeholders: a Deployment of as many as its headroom says, in the shape of its ateoms.

    pool with headroom, its Deployment known ──> ours made, or made right ──> watched, like the pool and its Deployment
    ours under its old name                  ──> orphaned and made under its new one, which takes its ReplicaSet over
    headroom 0, annotation gone, pool going  ──> ours deleted
    pool gone without us (orphaned, our finalizer taken off by hand) ──> ours deleted, once a read has proved it

Nothing is compared field by field: what the API server makes of our Deployment is its own business. Ours is written
again when what we want, or its generation, labels or owner, are not what they were when we last wrote it; a write
that changes nothing costs the API server no version. After a restart each is written once.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from ateplace import errors, names
from ateplace.cluster.feed import View
from ateplace.cluster.records import PodRecord, PoolRecord
from ateplace.cluster.resources import CPU, MEMORY
from ateplace.kube import Kube, paths
from ateplace.kube.objects import Metadata
from ateplace.kube.watch import Watch
from ateplace.reconciler.events import Events, about_pool
from ateplace.reconciler.headroom import metrics, placeholder
from ateplace.reconciler.headroom.placeholder import AteomShape, Deployment, DeploymentRecord, Json
from ateplace.reconciler.headroom.size import Quota, quota, share
from ateplace.reconciler.workqueue import Queue
from ateplace.settings import Settings

log = logging.getLogger(__name__)

WORKERS: Final = 8
"""Pools looked after at the same time; half as many of one namespace."""
NOWHERE: Final = "HeadroomNowhere"
OVER_QUOTA: Final = "HeadroomOverQuota"
GIVEN_UP: Final = frozenset({NOWHERE, OVER_QUOTA})
"""Reasons for which there may be no placeholders for a while: their Deployment stays."""
NOWHERE_LOOK: Final = 5.0
"""Seconds until it is asked again whether some node will do."""
LOOK_AGAIN: Final = 1.0
"""Seconds until a name that is taken, or a pool that should be gone, is looked at again."""


class Written(Struct, frozen=True):
    """What we last wrote for a pool, and what the API server made of it."""

    wanted: bytes
    waiting: int
    """How many it was told to replace first, beside the one that may be missing."""
    uid: str
    generation: int


class Bare(Struct):
    metadata: Metadata


class Headroom:
    """`run` while leading."""

    def __init__(
        self, kube: Kube, view: View, settings: Settings, events: Events, leading: Callable[[], bool] = lambda: True
    ) -> None:
        self._kube = kube
        self._leading = leading
        self._view = view
        self._settings = settings
        self._events = events
        self._plain: set[str] = set()
        """Pools whose image cannot be pulled ahead."""
        self._records: dict[str, PoolRecord] = {}
        self._deployments: dict[str, dict[str, DeploymentRecord]] = defaultdict(dict)
        """By pool UID, then by the Deployment's UID."""
        self._written: dict[str, Written] = {}
        self._said: dict[str, frozenset[str]] = {}
        self._refusals: dict[str, str] = {}
        """By pool: why the API server does not take its placeholders."""
        self._watched: set[str] = set()
        """Pools whose pods matter: those that change their shape, leave some of it open, or have no ateom on a node."""
        self.wanted: dict[str, tuple[str, int]] = {}
        """By pool UID: the pool as people call it, and its placeholders, if any are wanted."""
        self.queue = Queue("headroom", self.reconcile, workers=WORKERS, lane=self._lane)
        view.ledger.subscribe(pool=self._pool_changed, namespace=self._quota_changed)
        view.follow_pods(self._pod_changed)

    def _lane(self, uid: str) -> str:
        """Whose a pool is; placeholders of a pool that is gone are their namespace's."""
        there = next(iter(self._deployments.get(uid, {}).values()), None)
        return there.namespace if there else self._view.ledger.namespace_of(uid)

    async def run(self) -> None:
        """Until cancelled."""
        watch = Watch(
            self._kube,
            paths.DEPLOYMENTS.everywhere,
            Deployment,
            partial(placeholder.deployment_record, webhook=self._settings.webhook),
            self._changed,
            name="deployments",
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(watch.run())
                await watch.synced.wait()
                group.create_task(self.queue.run(lambda: {**self._view.ledger.pools, **self._deployments}))
        finally:
            # The watch was this term's own; the next one begins with nothing known, written or said.
            for known in (self.wanted, self._deployments, self._written, self._said, self._watched, self._plain):
                known.clear()

    def _pool_changed(self, uid: str) -> None:
        """The ledger tells of every pod; only the pool itself matters here."""
        pool = self._view.ledger.pools.get(uid)
        record = pool.record if pool else None
        if record is not self._records.get(uid):
            before = self._records.get(uid)
            if record:
                self._records[uid] = record
            else:
                metrics.forget(_shown(self._records.pop(uid)))
            self.queue.add(uid)
            for one in (before, record):
                if one and one.namespace in self._view.ledger.quotas:
                    self._quota_changed(one.namespace)

    def _quota_changed(self, namespace: str) -> None:
        """What one pool of a namespace gets depends on what the others ask for."""
        for pool in self._view.ledger.pools_of(namespace):
            self.queue.add(pool.uid)

    def _pod_changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        """A pod that came, went or was bound may change what its pool's placeholders should be."""
        if old and new and old.node == new.node and old.finished is new.finished:
            return
        for pod in (old, new):
            uid = self._view.ledger.owners.pool_of(pod) if pod else ""
            if uid in self.wanted and (uid in self._watched or self._stranded(uid)):
                self.queue.add(uid)

    def _stranded(self, uid: str) -> bool:
        """Whether the pool has ateoms and none of them is on a node."""
        pool = self._view.ledger.pools.get(uid)
        return pool is not None and 0 < pool.ateoms == pool.unbound - pool.unbound_placeholders

    def _changed(self, _: str, old: DeploymentRecord | None, new: DeploymentRecord | None) -> None:
        if old:
            known = self._deployments[old.pool_uid]
            known.pop(old.uid, None)
            if not known:
                del self._deployments[old.pool_uid]
            self.queue.add(old.pool_uid)
        if new:
            self._deployments[new.pool_uid][new.uid] = new
            self.queue.add(new.pool_uid)

    async def reconcile(self, uid: str) -> float | None:
        """One look at one pool; when to look again."""
        if not self._leading():
            return LOOK_AGAIN
        pool = self._view.ledger.pools.get(uid)
        record = pool.record if pool else None
        # Labels can be copied: in another namespace than the pool's they say nothing.
        there = [one for one in self._deployments.get(uid, {}).values() if not one.deleting]
        found = [one for one in there if record is None or one.namespace == record.namespace]
        ours = [one for one in found if one.ours]
        if record is None or record.deleting:
            self._forget(uid)
            self._said.pop(uid, None)
            self._plain.discard(uid)
            return await self._clear(uid, ours, proved=record is not None) if ours else None
        present = ours[0].replicas if ours else 0
        asked = quota(record.headroom, present, record.replicas, self._settings.headroom)
        own = [one for one in found if not one.ours]
        source = max(own, key=lambda one: (*one.rank, one.uid), default=None)
        shape = self._filled_in(uid, source.shape) if source and source.shape else None
        asked = self._shared(record, asked, present)
        asked = self._limited(uid, asked, present, source.starved if source else 0, shape)
        self._say(record, asked, shape)
        if not asked.count and asked.reason not in GIVEN_UP:
            self._forget(uid)
            for one in ours:
                await self._delete(one)
            return None
        self.wanted[uid] = (_shown(record), asked.count)
        if shape is None:
            return None  # its Deployment will come, and the watch will say so
        if any(one.old for one in self._deployments.get(uid, {}).values() if one.namespace == record.namespace):
            return await self._rename(ours)
        prepull = self._settings.headroom.prepull and uid not in self._plain
        make = partial(placeholder.deployment, record, shape, asked.count, self._settings, prepull=prepull)
        mine = ours[0] if ours else None
        try:
            await self._keep(record, make, mine)
        except (errors.Forbidden, errors.Invalid) as error:
            self._tell_refusal(record, error)
            raise
        self._refusals.pop(uid, None)
        self._watch_pods(uid, shape, mine)
        return NOWHERE_LOOK if asked.reason == NOWHERE else None

    def _shared(self, record: PoolRecord, asked: Quota, present: int) -> Quota:
        """What the quota of its namespace leaves it."""
        ledger, namespace = self._view.ledger, record.namespace
        allowed = ledger.quotas.get(namespace)
        if allowed is None:
            return asked
        before = (one.record for one in ledger.pools_of(namespace) if one.record and one.record.name < record.name)
        return share(asked, present, namespace, allowed, sum(map(self._asked, before)))

    def _asked(self, record: PoolRecord) -> int:
        _, present = self.wanted.get(record.uid, ("", 0))
        return 0 if record.deleting else quota(record.headroom, present, record.replicas, self._settings.headroom).count

    def _limited(self, uid: str, asked: Quota, present: int, starved: int, shape: AteomShape | None) -> Quota:
        """Less where it would harm: placeholders give way to ateoms that a ResourceQuota keeps from being made, and
        none comes back while it does. There are none where ateoms wait and no node will ever do: they would only make
        the cluster grow."""
        if asked.count and shape and self._stranded(uid):
            nodes = [node.record for node in self._view.ledger.nodes.values() if node.record]
            if nodes and not any(map(shape.goes_to, nodes)):
                words = "No node matches the node selector of its ateoms, which wait: no placeholders until one does"
                return Quota(0, NOWHERE, words)
        if asked.count and starved:
            left = min(present, max(0, asked.count - starved))
            kept = f"{left} of {asked.count} placeholders stay"
            words = f"A ResourceQuota prevents {starved} ateoms from being created: {kept}"
            return Quota(left, OVER_QUOTA, words)
        return asked

    def _filled_in(self, uid: str, shape: AteomShape) -> AteomShape:
        if not _open(shape):
            return shape
        pool_of = self._view.ledger.owners.pool_of
        live = (one for one in self._view.ateoms.store.values() if not one.finished and pool_of(one) == uid)
        return shape.filled_in({one.shape.requests for one in live})

    def _watch_pods(self, uid: str, shape: AteomShape, ours: DeploymentRecord | None) -> None:
        rolling = ours is not None and ours.outdated > 0
        if rolling or _open(shape) or self._stranded(uid):
            self._watched.add(uid)
        else:
            self._watched.discard(uid)

    async def _rename(self, ours: list[DeploymentRecord]) -> float | None:
        """Let go of the ReplicaSet, and with it of the room that it holds: the next one with its selector has it."""
        for one in ours:
            if one.old:
                await self._delete(one, propagation="Orphan")
        return LOOK_AGAIN

    async def _keep(self, pool: PoolRecord, make: Callable[..., Json], ours: DeploymentRecord | None) -> None:
        before = self._written.get(pool.uid)
        there = self._view.ledger.pools.get(pool.uid)
        waiting = 0
        if ours and ours.outdated > 0:
            waiting = there.unbound_placeholders if there else 0
        elif ours:
            waiting = before.waiting if before else ours.spare  # nothing is being replaced: it does not matter
        wanted = make(waiting=waiting)
        encoded = msgspec.json.encode(wanted, order="deterministic")
        if before and ours and _in_order(before, ours, encoded, wanted):
            return
        if before and ours and ours.uid == before.uid and ours.generation < before.generation:
            return  # our own write is on its way back to us
        try:
            written = await self._write(wanted, ours)
        except errors.Invalid as error:
            plain = placeholder.without_prepull(wanted)
            if plain == wanted:
                raise
            written = await self._write(plain, ours)
            self._no_image_volumes(pool, error)
        if written is None:
            self.queue.add_after(pool.uid, LOOK_AGAIN)
            return
        if not before or before.wanted != encoded:
            log.info("headroom set", extra={"pool": _shown(pool), "placeholders": wanted["spec"]["replicas"]})
        elif ours and written.metadata.generation != ours.generation:
            log.warning("headroom was changed by another client, and changed back", extra={"pool": _shown(pool)})
        meta = written.metadata
        self._written[pool.uid] = Written(encoded, waiting, meta.uid, meta.generation)

    async def _write(self, wanted: Json, ours: DeploymentRecord | None) -> Bare | None:
        """Make it, or make it right; None when the name is another's."""
        meta = wanted["metadata"]
        collection = paths.DEPLOYMENTS.within(meta["namespace"])
        if ours is None:
            try:
                return await self._kube.create(collection, wanted, Bare, query=names.FIELD_MANAGER)
            except errors.Conflict:
                return await self._taken(paths.DEPLOYMENTS.named(meta["name"], meta["namespace"]), meta)
        path = paths.DEPLOYMENTS.named(meta["name"], meta["namespace"])
        live = await self._kube.get(path, Json)
        body = {**live, "spec": wanted["spec"]}
        body["metadata"] = {**live["metadata"], "ownerReferences": meta["ownerReferences"], "labels": meta["labels"]}
        return await self._kube.replace(path, body, Bare, query=names.FIELD_MANAGER)

    async def _taken(self, path: str, wanted: Json) -> Bare | None:
        """There is a Deployment with our name. The placeholders of a former pool go; any other Deployment stays."""
        try:
            found = placeholder.deployment_record(await self._kube.get(path, Deployment), self._settings.webhook)
        except errors.NotFound:
            return None
        pool_uid = wanted["labels"][names.POOL_UID_LABEL]
        if found and found.ours and found.pool_uid != pool_uid and not found.deleting:
            await self._delete(found)
        elif found is None or not found.ours:
            pool = self._view.ledger.pools.get(pool_uid)
            log.warning("the name of the headroom's Deployment is taken", extra={"deployment": path})
            if pool and pool.record:
                words = f"There is a Deployment {wanted['name']} that is not ours: this pool gets no headroom"
                self._events.warn(about_pool(pool.record), "HeadroomNameTaken", words)
        return None

    async def _clear(self, uid: str, ours: list[DeploymentRecord], *, proved: bool) -> float | None:
        """Delete the placeholders of a pool that is going, or gone; a pool that our watch does not show is read."""
        for one in ours:
            if not proved:
                path = paths.POOLS.named(one.labels[names.PLACEHOLDER_LABEL], one.namespace)
                try:
                    pool = await self._kube.get(path, Bare)
                except errors.NotFound:
                    pool = None
                if pool and pool.metadata.uid == uid and pool.metadata.deletion_timestamp is None:
                    return LOOK_AGAIN  # our watch is behind
            await self._delete(one)
        return None

    async def _delete(self, one: DeploymentRecord, propagation: str = "Background") -> None:
        path = paths.DEPLOYMENTS.named(one.name, one.namespace)
        try:
            await self._kube.delete(path, uid=one.uid, propagation=propagation)
        except (errors.NotFound, errors.Conflict):
            return  # gone, or another one by now: the watch will say
        words = "headroom removed" if propagation == "Background" else "headroom renamed"
        log.info(words, extra={"deployment": f"{one.namespace}/{one.name}"})

    def _forget(self, uid: str) -> None:
        self.wanted.pop(uid, None)
        self._written.pop(uid, None)
        self._refusals.pop(uid, None)
        self._watched.discard(uid)

    def _say(self, pool: PoolRecord, asked: Quota, shape: AteomShape | None) -> None:
        """Each thing once, until it is no longer so."""
        words = {asked.reason: asked.message} if asked.reason else {}
        if asked.count and shape and not shape.reserves:
            each = self._settings.headroom
            words["AteomsReserveNothing"] = (
                "The pool's ateoms request neither CPU nor memory, so nothing is reserved for them; "
                f"each placeholder holds {each.cpu} CPU and {each.memory} of memory"
            )
        for reason, message in words.items():
            if message not in self._said.get(pool.uid, ()):
                log.warning(
                    "the pool does not get the headroom that it asks for",
                    extra={"pool": _shown(pool), "reason": reason},
                )
                self._events.warn(about_pool(pool), reason, message)
        if words:
            self._said[pool.uid] = frozenset(words.values())
        else:
            self._said.pop(pool.uid, None)

    def _tell_refusal(self, pool: PoolRecord, error: errors.Refused) -> None:
        """Once for each reason: it is tried again with a backoff, and every pool has few Events to spend."""
        words = f"The API server rejects this pool's placeholders: {error}"
        if self._refusals.get(pool.uid) != words:
            self._refusals[pool.uid] = words
            self._events.warn(about_pool(pool), "HeadroomRefused", words)

    def _no_image_volumes(self, pool: PoolRecord, error: errors.Invalid) -> None:
        self._plain.add(pool.uid)
        log.warning("images are not pulled ahead", extra={"pool": _shown(pool), "error": str(error)})
        words = "The API server rejects image volumes for this pool, so the ateom image is not pulled ahead of a burst"
        self._events.warn(about_pool(pool), "NoImageVolumes", words)


def _open(shape: AteomShape) -> bool:
    """Whether something may fill in what the template leaves open. With a runtime class, live pods ask for more than
    their containers do, and placeholders as well."""
    return not shape.runtime_class and not {CPU, MEMORY} <= shape.fixed


def _in_order(before: Written, ours: DeploymentRecord, encoded: bytes, wanted: Json) -> bool:
    same = before.wanted == encoded and before.uid == ours.uid and before.generation == ours.generation
    return same and ours.owned and ours.labels == wanted["metadata"]["labels"]


def _shown(pool: PoolRecord) -> str:
    return f"{pool.namespace}/{pool.name}"
