"""The ledger: who is where, which claims exist and in which state, what is in flight.

Pure: no I/O, no clock (every verb that needs the time is given a monotonic one), confined to one event loop. It is
filled by `ateplace.cluster.feed` from the watches, by the extender with its picks and by whoever writes a claim with
the API server's acknowledgement. It can be rebuilt from the API at any time; only picks in flight are
memory of our own.

This module takes what the watches show, and tells those that keep one thing each, with its rules:

- `ateplace.cluster.tables`: the entries themselves, how they come and go, who hears of changes;
- `ateplace.cluster.ownership`: which pool a pod belongs to;
- `ateplace.cluster.claims`: claims, their states, who holds them and which were our own writes;
- `ateplace.cluster.picks`: picks in flight, and unbound pods that have none.

Every verb is O(1) in the number of nodes, pods and pools, except those about a whole node or pool (node_gone,
pool_seen, pool_gone), which are linear in what that node or pool has, and those about an atelet DaemonSet whose
template has changed, which look at every node. Entries go when nothing speaks for them.
"""

from math import inf

from ateplace.cluster.atelets import AteletNeed, Templates
from ateplace.cluster.claims import Tenancy, cool
from ateplace.cluster.ownership import Membership, Move
from ateplace.cluster.picks import EXPIRY, UNSEEN, Picks
from ateplace.cluster.records import AteletRecord, AteletTemplate, NodeRecord, PodRecord, PoolRecord
from ateplace.cluster.state import Node
from ateplace.cluster.tables import READ, Book

__all__ = ["EXPIRY", "READ", "UNSEEN", "Ledger"]


class Ledger:
    """What its parts keep, do and answer is its own: bound here once, because the filter asks too often for a call in
    between."""

    def __init__(self) -> None:
        book = self._book = Book()
        self.nodes = book.nodes
        self.pools = book.pools
        self.pods = book.pods
        self.subscribe = book.subscribe
        self.namespace_of = book.namespace_of
        self.read = book.read
        self.unread = book.unread

        members = self._members = Membership(book)
        self.pool_named = members.pool_named
        self.pool_of = members.pool_of

        tenancy = self._tenancy = Tenancy(book)
        self.claimed = tenancy.claimed
        self.sending = tenancy.sending
        self.acknowledge = tenancy.acknowledge
        self.is_ours = tenancy.is_ours
        self.live = tenancy.live
        self.state = tenancy.state

        picks = self._picks = Picks(book, members)
        self.attempts = picks.attempts
        self.adrift = picks.adrift
        self.assume = picks.assume
        self.refused = picks.refused
        self.expire = picks.expire
        self.forget = picks.forget
        self.failed = picks.failed
        self.is_adrift = picks.is_adrift
        self.in_flight = picks.in_flight
        self.waits = picks.waits

        self.templates = Templates()
        """The atelet DaemonSets."""
        self._atelets: dict[str, str] = {}
        """The node of each atelet pod, by the pod's UID."""

    @property
    def generation(self) -> int:
        """Changes with everything that a decision about a pod can depend on, but for the time."""
        return self._book.generation

    # Nodes.

    def node_seen(self, record: NodeRecord, now: float) -> None:
        self.expire(now)
        node = self._book.node(record.name)
        before = node.record
        if before is None or not _same_node(before, record):
            self._book.generation += 1
        if before is None or before.labels != record.labels or before.taints != record.taints:
            self._need_atelet(node, record, now)
        if before is None or before.uid != record.uid:
            node.advertised, node.ready_longest = frozenset(), 0.0
        if before is None or before.allocatable != record.allocatable:
            node.advertised |= {name for name, _ in record.allocatable if "/" in name}
        if node.record is None:
            self._picks.forgive(inf)  # it may be what they waited for
        self._tenancy.node_seen(node, record, now)
        node.weigh()
        self._book.tell_node(record.name)

    def node_gone(self, name: str, now: float) -> None:
        node = self.nodes.get(name)
        if node:
            self._book.generation += 1
            self._tenancy.disown(node, now)
            node.record, node.atelet = None, AteletNeed()
            node.review_atelets(now)
            node.weigh()
            self._book.drop_node(node)
            self._book.tell_node(name)

    # Pods.

    def pod_seen(self, record: PodRecord, now: float) -> None:
        self.expire(now)
        old = self.pods.get(record.uid)
        if old and not record.finished and _same_place(old, record):
            self.pods[record.uid] = record
            return
        if old:
            self._unfile(old, now)
        if record.node or record.finished:
            self._picks.drop(record.uid)
        if not record.finished:
            self._file(record)

    def pod_gone(self, uid: str, now: float) -> None:
        record = self.pods.get(uid)
        if record:
            self._unfile(record, now)
        self._picks.drop(uid)

    def _file(self, record: PodRecord) -> None:
        self._book.generation += 1
        self.pods[record.uid] = record
        pool_uid = self._members.file(record)
        if record.node:
            self._book.node(record.node).load(record.shape, placeholder=record.placeholder, times=1)
        else:
            self._picks.file(record)
        self._join(record, pool_uid)

    def _unfile(self, record: PodRecord, now: float) -> None:
        self._book.generation += 1
        del self.pods[record.uid]
        self._leave(record, self._members.unfile(record), now)
        if record.node:
            node = self.nodes[record.node]
            node.load(record.shape, placeholder=record.placeholder, times=-1)
            self._book.drop_node(node)
        else:
            self._picks.unfile(record)

    def _join(self, record: PodRecord, pool_uid: str) -> None:
        book = self._book
        if not pool_uid:
            book.tell_node(record.node)
            return
        pool = book.pool(pool_uid)
        pool.pods += 1
        pool.ateoms += not record.placeholder
        if not record.node:
            pool.unbound += 1
            pool.unbound_placeholders += record.placeholder
            if not self._picks.picked(record.uid):
                self._picks.expect(record, pool_uid, 1)
        else:
            self._tenancy.move_in(record, pool_uid)
            book.tell_node(record.node)
        book.tell_pool(pool_uid)

    def _leave(self, record: PodRecord, pool_uid: str, now: float) -> None:
        book = self._book
        if not pool_uid:
            book.tell_node(record.node)
            return
        pool = self.pools[pool_uid]
        pool.pods -= 1
        pool.ateoms -= not record.placeholder
        if not record.node:
            pool.unbound -= 1
            pool.unbound_placeholders -= record.placeholder
            if not self._picks.picked(record.uid):
                self._picks.expect(record, pool_uid, -1)
        else:
            self._tenancy.move_out(record, pool, now)
            book.tell_node(record.node)
        book.tell_pool(pool_uid)
        book.drop_pool(pool)

    # Pools.

    def pool_seen(self, record: PoolRecord, now: float) -> None:
        self._book.generation += 1
        pool = self._book.pool(record.uid)
        known = pool.record is not None
        if not known:
            for pod in self._members.prove(record):
                self._leave(pod, record.uid, now)
                self._join(pod, "")
            pool = self._book.pool(record.uid)
        if record.replicas > (pool.record.replicas if pool.record else 0):
            pool.raised = now
        was_warm, pool.record, pool.gone = pool.warm, record, False
        self._move(self._members.name(record), now)
        if was_warm and not pool.warm:
            cool(pool, now)
        if was_warm != pool.warm or not known:  # its pods may have been there first, and claim their nodes from now on
            for name in tuple(pool.nodes):
                self._book.tell_node(name)
        self._book.tell_pool(record.uid)

    def pool_gone(self, uid: str, now: float) -> None:
        pool = self.pools.get(uid)
        if not pool or not pool.record:
            return
        self._book.generation += 1
        record = pool.record
        if pool.warm:
            cool(pool, now)
        pool.record, pool.gone = None, True
        self._move(self._members.unname(record), now)
        for name in tuple(pool.nodes):
            self._book.tell_node(name)
        self._book.tell_pool(uid)
        self._book.drop_pool(pool)

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
        self._book.generation += 1
        for name, node in self.nodes.items():
            if node.record and self._need_atelet(node, node.record, now):
                self._book.tell_node(name)

    def _need_atelet(self, node: Node, record: NodeRecord, now: float) -> bool:
        before, node.atelet = node.atelet, self.templates.need(record)
        if node.atelet.daemonsets != before.daemonsets:
            node.review_atelets(now)
        return node.atelet != before

    def is_atelet(self, pod_uid: str) -> bool:
        """Whether the watch of atelet's pods has shown it."""
        return pod_uid in self._atelets

    def atelet_seen(self, record: AteletRecord, now: float) -> None:
        self._book.generation += 1
        before = self._atelets.get(record.uid)
        if before is not None and before != record.node:
            self.atelet_gone(record.uid, now)
        self._atelets[record.uid] = record.node
        node = self._book.node(record.node)
        node.atelets[record.uid] = record
        node.review_atelets(now)
        self._book.tell_node(record.node)

    def atelet_gone(self, uid: str, now: float) -> None:
        name = self._atelets.pop(uid, None)
        if name is not None:
            self._book.generation += 1
            node = self.nodes[name]
            del node.atelets[uid]
            node.review_atelets(now)
            self._book.tell_node(name)
            self._book.drop_node(node)


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
