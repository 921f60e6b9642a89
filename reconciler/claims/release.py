"""Carries out a node's plan: one patch that adds, or a read that proves and one patch that releases.

Writers never need each other's state: a claim is a key of its own. What guards a write:

- Adding carries `metadata.uid`: a Node that is gone is not found, one recreated under its name is refused. It needs no
  version, because a claim too many is merely released later.
- Releasing carries `metadata.uid` and the `resourceVersion` that it was decided on, so that a claim touched since, by
  an extender whose watch or ours is behind, stays. The label goes in the same patch as the last claim. A Node that
  others write to all the time has another version by then: it is read again, and where the very claims that were
  decided on stand, the removal carries the version of that reading.

Before a release the API server itself is asked (no cache of ours) whether the pool has a pod on the node, or one that
is unbound and may be on its way (`reconciler.claims.unbound`). Nothing that is bound later can have been answered
before: see the release rule in docs/architecture.md. What cannot be asked about one pool keeps that pool's claim, and
no other's.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from ateplace import errors, names
from ateplace.cluster.claims import boottime, claim_metadata, claim_value
from ateplace.cluster.feed import View
from ateplace.cluster.records import FINISHED, NodeRecord, node_record, refusal
from ateplace.cluster.resources import requests
from ateplace.cluster.state import Node
from ateplace.kube import Kube, objects, paths, selectors
from ateplace.kube.objects import Pod
from ateplace.reconciler import metrics
from ateplace.reconciler.claims.plan import Plan, Release, decide
from ateplace.reconciler.claims.unbound import Unbound, asks_for
from ateplace.reconciler.events import Events, about_node, about_pool
from ateplace.settings import Settings

log = logging.getLogger(__name__)

LOOK_AGAIN = 2.0
"""Seconds until a release that a read forbade is tried again."""
ATTEMPTS = 8
"""How often a release is tried that others' writes to the Node keep overtaking."""


class Version(Struct, rename="camel"):
    resource_version: str


class Written(Struct):
    """All that is read of the API server's answer, which is the whole Node."""

    metadata: Version


class NodeClaims:
    """`reconcile(node)` makes one node's claims what live pods justify."""

    def __init__(
        self, kube: Kube, view: View, settings: Settings, events: Events, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kube = kube
        self._view = view
        self._settings = settings
        self._pool_label = settings.substrate.pool_label
        self._events = events
        self._clock = clock
        self.unbound = Unbound(settings.cluster.stale_after, clock)
        view.follow_pods(self.unbound.changed)
        self._written: dict[str, int] = {}
        """By node: the version of our last release, until the watch has shown it."""
        self._no_room: set[str] = set()
        """Nodes that have no room for a claim."""
        self._told: dict[str, tuple[str, frozenset[str]]] = {}
        """By node: its UID, and the pools whose claims on it have been told of, or were there when the term began."""

    def begin(self) -> None:
        """At the beginning of a term: what is claimed already is no news."""
        for name, node in self._view.ledger.claims.nodes.items():
            if node.record:
                self._told[name] = node.record.uid, _claiming(node)

    def forget(self) -> None:
        """At the end of a term: what was written and told since is another's to know."""
        self._written.clear()
        self._no_room.clear()
        self._told.clear()

    async def reconcile(self, name: str) -> float | None:
        """One look; when to look again."""
        plan = decide(self._view.ledger, self.unbound, name, self._clock(), self._settings)
        self._note_refusal(name, plan)
        self._note_claims(name)
        if plan is None:
            self._written.pop(name, None)
            return None
        if self._written.get(name, 0) > plan.version:
            return None  # our own write is on its way back to us, and will bring us here again
        self._written.pop(name, None)
        try:
            if plan.add or plan.label is not None:
                await self._add(name, plan)
            elif plan.release and (self._view.reason() or await self._release(name, plan)):
                return LOOK_AGAIN
        except errors.NotFound:
            return None  # the Node is gone, and the watch will say so
        return plan.again

    def due(self, name: str) -> bool:
        """Whether there is something to do about a node, now or later, that an event has announced or should have."""
        plan = decide(self._view.ledger, self.unbound, name, self._clock(), self._settings)
        if plan is None or self._written.get(name, 0) > plan.version:
            return False
        return bool(plan.add or plan.release or plan.label is not None or plan.again is not None)

    async def _add(self, name: str, plan: Plan) -> None:
        value = claim_value()
        metadata = claim_metadata(plan.uid, plan.add, value)
        if plan.label is False:
            metadata |= {"labels": {names.NODE_LABEL: None}, "resourceVersion": str(plan.version)}
        sent = boottime()
        version = await self._patch(name, metadata)
        for pool in plan.add:
            self._view.ledger.claims.acknowledge(
                name, plan.uid, pool, value=value, version=version, sent=sent, now=self._clock()
            )
            log.info("claimed", extra={"node": name, "pool": self._pool(pool)})
        metrics.CLAIMS_ADDED.inc(len(plan.add))
        if plan.label is not None:
            self._written[name] = version
        if plan.label is not None and not plan.add:
            metrics.LABELS_REPAIRED.inc()
            log.info("label repaired", extra={"node": name, "labelled": plan.label})

    async def _release(self, name: str, plan: Plan) -> set[str]:
        """Release what nothing speaks for; the pools that something does speak for."""
        used = await self._used(name, plan.release)
        free = [release for release in plan.release if release.pool_uid not in used]
        if not free:
            return used
        self._written[name] = await self._remove(name, plan, free)
        metrics.CLAIMS_RELEASED.inc(len(free))
        for release in free:
            log.info("claim released", extra={"node": name, "pool": self._pool(release.pool_uid)})
            self._tell(name, plan.uid, release.pool_uid, "Released", "WorkerPool {pool} no longer needs node {node}")
        return used

    async def _remove(self, name: str, plan: Plan, free: Sequence[Release]) -> int:
        """The Node's version without these claims. Conflict when one of them was touched, or it changes too fast."""
        version, label = plan.version, plan.last and len(free) == len(plan.release)
        for attempt in range(ATTEMPTS):
            metadata: dict[str, object] = {
                "uid": plan.uid,
                "resourceVersion": str(version),
                "annotations": {names.claim_key(release.pool_uid): None for release in free},
            }
            if label:
                metadata["labels"] = {names.NODE_LABEL: None}
            try:
                return await self._patch(name, metadata)
            except errors.Conflict:
                node = await self._node(name)
                claims = {release.pool_uid: release.value for release in free}
                if attempt == ATTEMPTS - 1 or node.uid != plan.uid or not claims.items() <= node.claims.items():
                    raise
                version, label = node.version, label and claims == node.claims
        raise AssertionError("the last attempt returns or raises")

    async def _node(self, name: str) -> NodeRecord:
        query = {"fieldSelector": f"metadata.name={name}"}
        async for node in self._kube.list(paths.NODES.everywhere, objects.Node, query=query):
            return node_record(node)
        raise errors.NotFound(f"there is no Node {name}", status=404)

    async def _used(self, name: str, releases: Sequence[Release]) -> set[str]:
        """Pools that the API server, asked now, says have a pod here or (if that matters) one that may come."""
        patient = [release for release in releases if release.patient]
        asked = [self._labelled(releases, selectors.on_node(name)), self._labelled(patient, selectors.on_node(""))]
        asked += [self._unlabelled_or_refused(name, release) for release in releases]
        return {pool for pools in await asyncio.gather(*asked) for pool in pools}

    async def _unlabelled_or_refused(self, name: str, release: Release) -> set[str]:
        """One pool's claim stays when nothing can be learnt about its pods; that keeps no other pool's."""
        try:
            return await self._unlabelled(name, release)
        except errors.Refused as error:
            pool = self._pool(release.pool_uid)
            log.warning("claim stays: its pool's pods cannot be listed", extra={"pool": pool, "reason": str(error)})
            return {release.pool_uid}

    async def _labelled(self, releases: Sequence[Release], fields: str) -> set[str]:
        # A claim made by hand may name what no label can hold; then no pod has that label either.
        asked = {release.pool_uid: release for release in releases}
        labels = selectors.labelled_any(names.POOL_UID_LABEL, asked)
        found: set[str] = set()
        if labels is None:
            return found
        async for pod in self._kube.list(
            paths.PODS.everywhere, Pod, query={"labelSelector": labels, "fieldSelector": fields}
        ):
            pool_uid = pod.metadata.label(names.POOL_UID_LABEL)
            if _live(pod) and self._holds(pod) and self._counts(pod, asked[pool_uid], pool_uid):
                found.add(pool_uid)
        return found

    def _counts(self, pod: Pod, release: Release, key: str) -> bool:
        """Whether a pod is on its node, or may be bound by the claim."""
        if pod.spec.node_name:
            return True
        if pod.spec.scheduling_gates:
            return False
        if release.never and asks_for(requests(pod.spec, pod.status), release.never):
            return False
        refused = any(map(refusal, (pod.status.conditions or ()) if pod.status else ()))
        return not (refused and self.unbound.refused(pod.metadata.uid, key) > release.answers)

    async def _unlabelled(self, name: str, release: Release) -> set[str]:
        """The same for pods without our UID label, which belong to the pool that has their namespace and name."""
        pool = self._view.ledger.pools.get(release.pool_uid)
        if pool is None or pool.record is None:
            return set()
        path = paths.PODS.within(pool.record.namespace)
        named = selectors.labelled(self._pool_label, pool.record.name)
        labels = selectors.both(named, selectors.unlabelled(names.POOL_UID_LABEL))
        if labels is None:
            return set()
        key = f"{pool.record.namespace}/{pool.record.name}"
        async for pod in self._kube.list(path, Pod, query={"labelSelector": labels}):
            unbound = not pod.spec.node_name and release.patient and self._counts(pod, release, key)
            if _live(pod) and not pod.metadata.is_mirror and (pod.spec.node_name == name or unbound):
                return {release.pool_uid}
        return set()

    def _holds(self, pod: Pod) -> bool:
        """Whether a pod with the pool's UID holds its claim: an ateom, or a placeholder of a pool that is there and
        wants it warm; not one in another namespace, and no mirror pod."""
        meta = pod.metadata
        pool = self._view.ledger.pools.get(meta.label(names.POOL_UID_LABEL))
        record = pool.record if pool else None
        if meta.is_mirror or (record and record.namespace != meta.namespace):
            return False
        if meta.label(names.PLACEHOLDER_LABEL):
            return record is not None and record.warm
        return bool(meta.label(self._pool_label))

    async def _patch(self, name: str, metadata: dict[str, object]) -> int:
        """The Node's version after it."""
        path = paths.NODES.named(name)
        written = await self._kube.patch(path, {"metadata": metadata}, Written, query=names.FIELD_MANAGER)
        return int(written.metadata.resource_version)

    def _note_refusal(self, name: str, plan: Plan | None) -> None:
        if plan is None or not plan.no_room:
            self._no_room.discard(name)
        elif name not in self._no_room:
            self._no_room.add(name)
            metrics.CLAIMS_REFUSED.inc()
            log.error("no room for a claim", extra={"node": name, "reason": plan.no_room})
            self._events.warn(about_node(name, plan.uid), "ClaimRefused", f"No room for a claim: {plan.no_room}")

    def _note_claims(self, name: str) -> None:
        """Report claims that have appeared, from whichever replica; one that was only touched has been reported."""
        node = self._view.ledger.nodes.get(name)
        if node is None or node.record is None or not node.claim_count:
            self._told.pop(name, None)
            return
        uid, claimed = node.record.uid, _claiming(node)
        before = self._told.get(name, ("", frozenset()))
        for pool in sorted(claimed - before[1] if before[0] == uid else claimed):
            self._tell(name, uid, pool, "Claimed", "Node {node} was claimed for atelet by WorkerPool {pool}")
        self._told[name] = uid, claimed

    def _tell(self, name: str, node_uid: str, pool_uid: str, reason: str, words: str) -> None:
        pool = self._view.ledger.pools.get(pool_uid)
        message = words.format(node=name, pool=self._pool(pool_uid))
        self._events.say(about_node(name, node_uid), reason, message)
        if pool and pool.record:
            self._events.say(about_pool(pool.record), reason, message)

    def _pool(self, uid: str) -> str:
        """A pool's name for people; its UID when it has none any more."""
        pool = self._view.ledger.pools.get(uid)
        return f"{pool.record.namespace}/{pool.record.name}" if pool and pool.record else uid


def _claiming(node: Node) -> frozenset[str]:
    """The pools that have a claim on a node."""
    return frozenset(uid for uid, tenant in node.pools.items() if tenant.value is not None)


def _live(pod: Pod) -> bool:
    return pod.status is None or pod.status.phase not in FINISHED
