"""The ledger: who is where, which claims exist and in which state, what is in flight.

Pure: no I/O, no clock (every verb that needs the time is given a monotonic one), confined to one event loop. It can be
rebuilt from the API at any time; only picks in flight are memory of our own.

    what the watches show   node_seen, node_gone     pod_seen, pod_gone        pool_seen, pool_gone
    (`cluster.feed`)        atelet_seen, atelet_gone daemonset_seen, daemonset_gone  quota_seen
    what we did             claims.sending, claims.acknowledge                 a claim that this process writes
                            picks.assume, picks.forget, picks.failed           a node that filter answers
                            picks.note_refusal                                 a pod that no node was found for
                            others_read, others_changed                        other people's pods on a node
    what is known           nodes, pools, pods, templates, zones               read only (`cluster.state`)
                            claims.nodes, claims.state, claims.live, claims.is_ours
                            picks.attempts, picks.unpicked, picks.in_flight    `cluster.picks` has their life
                            owners.pool_of, owners.pool_named                  whose pod it is
                            quotas, pools_of, held_nodes                       what a namespace may have, and has
                            subscribe                                          to hear of what changed
                            generation                                         to see whether anything has

Each part keeps one thing, with its rules: `tables` the entries and how they come and go, `ownership` which pool a pod
belongs to, `claims` a claim's life and the reply rule, `picks` what is in flight.

Every verb is O(1) in the number of nodes, pods and pools, except those about a whole node or pool (node_gone,
pool_seen, pool_gone), which are linear in what that node or pool has, and those about an atelet DaemonSet whose
template has changed, which look at every node. Entries go when nothing speaks for them. Every verb may be called again
with what it was told before.
"""

from collections import Counter
from math import inf

from ateplace import names
from ateplace.cluster.atelets import AteletNeed, Templates
from ateplace.cluster.claims import Claims, headroom_cooled
from ateplace.cluster.ownership import Move, Ownership
from ateplace.cluster.picks import EXPIRY, UNSEEN, Picks
from ateplace.cluster.pool_rules import Quota
from ateplace.cluster.records import AteletRecord, AteletTemplate, NodeRecord, PodRecord, PoolRecord
from ateplace.cluster.state import Node, Pool, Reading
from ateplace.cluster.tables import READ, Listener, Tables

__all__ = ["EXPIRY", "READ", "UNSEEN", "Ledger"]


class Ledger:
    def __init__(self) -> None:
        tables = self._tables = Tables()
        self.nodes = tables.nodes
        self.pools = tables.pools
        self.pods = tables.pods
        self.owners = Ownership(tables)
        self.claims = Claims(tables)
        self.picks = Picks(tables, self.owners)
        self.templates = Templates()
        """The atelet DaemonSets."""
        self.zones: Counter[str] = Counter()
        """How many nodes each zone has; those without a zone are one of their own."""
        self.quotas: dict[str, Quota] = {}
        """By Namespace: few have one."""
        self._atelets: dict[str, str] = {}
        """The node of each atelet pod, by the pod's UID."""

    @property
    def generation(self) -> int:
        """Changes with everything that a decision about a pod can depend on, but for the time."""
        return self._tables.generation

    def subscribe(
        self, *, node: Listener | None = None, pool: Listener | None = None, namespace: Listener | None = None
    ) -> None:
        """Call `node` with a node's name, `pool` with a pool's UID, after anything about it changed, `namespace` with a
        Namespace's name when its quota has."""
        self._tables.subscribe(node=node, pool=pool, namespace=namespace)

    def namespace_of(self, pool_uid: str) -> str:
        """A pool's namespace; empty for one that is gone, or has not been seen yet."""
        return self._tables.namespace_of(pool_uid)

    def others_read(self, name: str, node_uid: str, reading: Reading) -> None:
        """Other people's pods on a node were listed. Nothing happens when it is another node by now."""
        self._tables.others_read(name, node_uid, reading)

    def others_changed(self, name: str) -> None:
        """What was listed there is true no longer."""
        self._tables.others_changed(name)

    # Nodes.

    def node_seen(self, record: NodeRecord, now: float) -> None:
        self.picks.expire(now)
        node = self._tables.node(record.name)
        before = node.record
        if before is None or not _same_node(before, record):
            self._tables.generation += 1
        if before is None or before.labels != record.labels or before.taints != record.taints:
            self._need_atelet(node, record, now)
        self._locate(node, record)
        if before is None or before.uid != record.uid:
            node.advertised, node.ready_longest = frozenset(), 0.0
        if before is None or before.allocatable != record.allocatable:
            node.advertised |= {name for name, _ in record.allocatable if "/" in name}
        if node.record is None:
            self.picks.expect_refused(inf)  # it may be what they waited for
        self.claims.node_seen(node, record, now)
        node.weigh()
        self._tables.tell_node(record.name)

    def node_gone(self, name: str, now: float) -> None:
        node = self.nodes.get(name)
        if node:
            self._tables.generation += 1
            self.claims.node_gone(node, now)
            self._locate(node, None)
            node.record, node.atelet = None, AteletNeed()
            node.review_atelets(now)
            node.weigh()
            self._tables.drop_node(node)
            self._tables.tell_node(name)

    def _locate(self, node: Node, record: NodeRecord | None) -> None:
        """Count the node in its zone: before its record changes."""
        zone = record.labels.get(names.ZONE_LABEL, "") if record else ""
        if (node.record is None) is (record is None) and node.zone == zone:
            return
        if node.record is not None:
            self.zones[node.zone] -= 1
            if not self.zones[node.zone]:
                del self.zones[node.zone]
        node.zone = zone
        if record is not None:
            self.zones[zone] += 1

    # Pods.

    def pod_seen(self, record: PodRecord, now: float) -> None:
        self.picks.expire(now)
        old = self.pods.get(record.uid)
        if old and not record.finished and _same_place(old, record):
            self.pods[record.uid] = record
            return
        if old:
            self._unfile(old, now)
        if record.node or record.finished:
            self.picks.drop(record.uid)
        if not record.finished:
            self._file(record)

    def pod_gone(self, uid: str, now: float) -> None:
        record = self.pods.get(uid)
        if record:
            self._unfile(record, now)
        self.picks.drop(uid)

    def _file(self, record: PodRecord) -> None:
        self._tables.generation += 1
        self.pods[record.uid] = record
        pool_uid = self.owners.file(record)
        if record.node:
            self._tables.node(record.node).load(record.shape, placeholder=record.placeholder, times=1)
        else:
            self.picks.file(record)
        self._join(record, pool_uid)

    def _unfile(self, record: PodRecord, now: float) -> None:
        self._tables.generation += 1
        del self.pods[record.uid]
        self._leave(record, self.owners.unfile(record), now)
        if record.node:
            node = self.nodes[record.node]
            node.load(record.shape, placeholder=record.placeholder, times=-1)
            self._tables.drop_node(node)
        else:
            self.picks.unfile(record)

    def _join(self, record: PodRecord, pool_uid: str) -> None:
        tables = self._tables
        if not pool_uid:
            tables.tell_node(record.node)
            return
        pool = tables.pool(pool_uid)
        pool.namespace = pool.namespace or record.namespace
        pool.pods += 1
        pool.ateoms += not record.placeholder
        if not record.node:
            pool.unbound += 1
            pool.unbound_placeholders += record.placeholder
            if not self.picks.picked(record.uid):
                self.picks.expect(record, pool_uid, 1)
        else:
            self.claims.pod_bound(record, pool_uid)
            tables.tell_node(record.node)
        tables.tell_pool(pool_uid)

    def _leave(self, record: PodRecord, pool_uid: str, now: float) -> None:
        tables = self._tables
        if not pool_uid:
            tables.tell_node(record.node)
            return
        pool = self.pools[pool_uid]
        pool.pods -= 1
        pool.ateoms -= not record.placeholder
        if not record.node:
            pool.unbound -= 1
            pool.unbound_placeholders -= record.placeholder
            if not self.picks.picked(record.uid):
                self.picks.expect(record, pool_uid, -1)
        else:
            self.claims.pod_left(record, pool, now)
            tables.tell_node(record.node)
        tables.tell_pool(pool_uid)
        tables.drop_pool(pool)

    # Pools.

    def pool_seen(self, record: PoolRecord, now: float) -> None:
        self._tables.generation += 1
        pool = self._tables.pool(record.uid)
        known = pool.record is not None
        if not known:
            for pod in self.owners.prove(record):
                self._leave(pod, record.uid, now)
                self._join(pod, "")
            pool = self._tables.pool(record.uid)
        if record.replicas > (pool.record.replicas if pool.record else 0):
            pool.raised = now
        was_warm, pool.record, pool.gone = pool.warm, record, False
        pool.namespace = record.namespace
        self._move(self.owners.name(record), now)
        if was_warm and not pool.warm:
            headroom_cooled(pool, now)
        if was_warm != pool.warm or not known:  # its pods may have been there first, and claim their nodes from now on
            for name in tuple(pool.nodes):
                self._tables.tell_node(name)
        self._tables.tell_pool(record.uid)

    def pool_gone(self, uid: str, now: float) -> None:
        pool = self.pools.get(uid)
        if not pool or not pool.record:
            return
        self._tables.generation += 1
        record = pool.record
        if pool.warm:
            headroom_cooled(pool, now)
        pool.record, pool.gone = None, True
        self._move(self.owners.unname(record), now)
        for name in tuple(pool.nodes):
            self._tables.tell_node(name)
        self._tables.tell_pool(uid)
        self._tables.drop_pool(pool)

    def pools_of(self, namespace: str) -> list[Pool]:
        """Those that are there, and those that are gone and still hold something. Linear in all pools."""
        return [pool for pool in self.pools.values() if pool.namespace == namespace]

    def held_nodes(self, namespace: str) -> set[str]:
        """Nodes that have a claim or a pod of its pools, or a pick in flight."""
        return {name for pool in self.pools_of(namespace) for name in pool.nodes}

    # Namespaces.

    def quota_seen(self, namespace: str, quota: Quota | None) -> None:
        """A Namespace has this quota; None: no longer any."""
        if self.quotas.get(namespace) == quota:
            return
        self._tables.generation += 1
        if quota:
            self.quotas[namespace] = quota
        else:
            del self.quotas[namespace]
        for pool in self.pools_of(namespace):
            self._tables.tell_pool(pool.uid)
        self._tables.tell_namespace(namespace)

    def _move(self, moves: list[Move], now: float) -> None:
        for pod, before, after in moves:
            self._leave(pod, before, now)
            self._join(pod, after)

    # Atelets.

    def daemonset_seen(self, template: AteletTemplate, now: float) -> None:
        if self.templates.put(template):
            self._need_atelets(now)

    def daemonset_gone(self, uid: str, now: float) -> None:
        if self.templates.drop(uid):
            self._need_atelets(now)

    def _need_atelets(self, now: float) -> None:
        self._tables.generation += 1
        for name, node in self.nodes.items():
            if node.record and self._need_atelet(node, node.record, now):
                self._tables.tell_node(name)

    def _need_atelet(self, node: Node, record: NodeRecord, now: float) -> bool:
        before, node.atelet = node.atelet, self.templates.need(record)
        if node.atelet.daemonsets != before.daemonsets:
            node.review_atelets(now)
        return node.atelet != before

    def is_atelet(self, pod_uid: str) -> bool:
        """Whether the watch of atelet's pods has shown it."""
        return pod_uid in self._atelets

    def atelet_seen(self, record: AteletRecord, now: float) -> None:
        self._tables.generation += 1
        before = self._atelets.get(record.uid)
        if before is not None and before != record.node:
            self.atelet_gone(record.uid, now)
        self._atelets[record.uid] = record.node
        node = self._tables.node(record.node)
        node.atelets[record.uid] = record
        node.review_atelets(now)
        self._tables.tell_node(record.node)

    def atelet_gone(self, uid: str, now: float) -> None:
        name = self._atelets.pop(uid, None)
        if name is not None:
            self._tables.generation += 1
            node = self.nodes[name]
            del node.atelets[uid]
            node.review_atelets(now)
            self._tables.tell_node(name)
            self._tables.drop_node(node)


def _same_node(old: NodeRecord, new: NodeRecord) -> bool:
    """Whether an update, a heartbeat for instance, changed nothing but the version."""
    return (
        old.uid == new.uid
        and old.labelled is new.labelled
        and old.claims == new.claims
        and old.labels == new.labels
        and old.taints == new.taints
        and old.allocatable == new.allocatable
        and old.slots == new.slots
        and old.annotation_bytes == new.annotation_bytes
        and old.deleting is new.deleting
    )


def _same_place(old: PodRecord, new: PodRecord) -> bool:
    """Whether an update changed nothing that is counted."""
    return (
        old.node == new.node
        and old.pool_uid == new.pool_uid
        and old.pool == new.pool
        and old.shape is new.shape
        and old.placeholder is new.placeholder
        and old.gated is new.gated
    )
