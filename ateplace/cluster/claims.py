"""Pools on nodes: which claims exist, in which state, and who holds them.

The life of one claim (one pool on one node):

               acknowledge / node_seen               pod_seen there             last pod_gone
      NONE ------------------------------> FRESH ----------------> HELD -----------------------> LINGERING
       ^                                     |                      ^   acknowledge (a touch)      |
       |                                     |                      +------- then pod_seen --------+
       +---- node_seen without the key ------+------------------------------------------------------+

- A pod holds its pool's claim on its node from the moment our watch shows it bound there until the object is gone;
  Succeeded and Failed ones hold nothing, Terminating ones do. A placeholder holds it only while its pool is known to
  be there and `warm`.
- The reply rule: filter answers a node only when this process itself wrote its claim, acknowledged, less than half a
  linger ago (`answerable`). That a claim looks HELD in a watch is no reason to answer it.
- A node's events are ordered by resourceVersion, so an event older than an acknowledged write cannot undo it; another
  uid under the same name is another node, about which nothing that was written or read before is true.
- A node is our own while this process opened it and every claim on it is one that this process wrote. Others keep off
  such a node until its atelet is there (`extender.fit`), so all that is on its way to it is among our picks.
"""

from collections.abc import Mapping
from math import inf

from ateplace.cluster.records import NodeRecord, PodRecord
from ateplace.cluster.state import Node, Pool, State, Tenant
from ateplace.cluster.tables import Book


class Tenancy:
    def __init__(self, book: Book) -> None:
        self.claimed: dict[str, Node] = {}
        """Nodes with at least one claim."""
        self._book = book
        self._nodes = book.nodes
        self._pools = book.pools

    # What the watches show.

    def node_seen(self, node: Node, record: NodeRecord, now: float) -> None:
        if node.record and node.record.uid != record.uid:
            self.disown(node, now)
        node.record = record
        node.room = dict(record.allocatable)
        if node.own and not self.is_ours(record.name, record.claims):
            _share(node)
        for pool, tenant in list(node.tenants.items()):
            if pool not in record.claims:
                if tenant.value is not None and record.version >= tenant.version:
                    self._set_claim(node, pool, tenant, None, now)
            elif not record.labelled and record.version >= tenant.version:
                tenant.sent = -inf
        for pool, value in record.claims.items():
            tenant = self._book.tenant(node, pool)
            if tenant.value != value and record.version >= tenant.version:
                self._set_claim(node, pool, tenant, value, now)

    def disown(self, node: Node, now: float) -> None:
        """The Node object is gone: its claims, our writes to it and what we read about it went with it."""
        self._book.unread(node.name)
        _share(node)
        for pool, tenant in list(node.tenants.items()):
            if tenant.value is not None:
                self._set_claim(node, pool, tenant, None, now)

    def move_in(self, record: PodRecord, pool_uid: str) -> None:
        """A pod of the pool is bound to its node."""
        tenant = self._book.tenant(self._nodes[record.node], pool_uid)
        if record.placeholder:
            tenant.placeholders += 1
        else:
            tenant.ateoms += 1

    def move_out(self, record: PodRecord, pool: Pool, now: float) -> None:
        """A pod of the pool is bound to its node no longer."""
        node, warm = self._nodes[record.node], pool.warm
        tenant = node.tenants[pool.uid]
        held = tenant.holders(warm=warm)
        if record.placeholder:
            tenant.placeholders -= 1
        else:
            tenant.ateoms -= 1
        if held and not tenant.holders(warm=warm):
            tenant.unused = now
        self._book.drop_tenant(node, pool.uid, tenant)

    # What we did.

    def sending(self, name: str, pool_uid: str, value: str, *, opening: bool) -> None:
        """This process is about to write a claim: what it says, to tell it from what others write.

        `opening`: the write is refused unless the node has no claim of anybody's.
        """
        node = self._nodes.get(name)
        if node and (opening or node.own):
            node.wrote[pool_uid] = value

    def acknowledge(
        self,
        name: str,
        node_uid: str,
        pool_uid: str,
        *,
        value: str,
        version: int,
        sent: float,
        now: float,
        opened: bool = False,
    ) -> None:
        """The API server took a write of the claim (and the label) that was sent at `sent`. `opened`: there was no
        claim on the node before it."""
        node = self._nodes.get(name)
        if node is None or node.record is None or node.record.uid != node_uid:
            return
        if node.record.version >= version and not (node.record.labelled and pool_uid in node.record.claims):
            return  # the watch was quicker, and shows that somebody has undone it since
        self._book.generation += 1
        tenant = self._book.tenant(node, pool_uid)
        if tenant.version <= version:
            if tenant.value != value and node.record.version < version:
                self._set_claim(node, pool_uid, tenant, value, now)
            tenant.sent, tenant.version = max(tenant.sent, sent), version
        if opened and (node.record.version < version or self.is_ours(name, node.record.claims)):
            node.own = True
        self._book.tell_node(name)

    # Questions.

    def is_ours(self, name: str, claims: Mapping[str, str]) -> bool:
        """Whether each of a node's claims says what this process wrote there, last or (while it is ours) before."""
        node = self._nodes.get(name)
        return node is not None and all(
            value == node.wrote.get(pool) or (node.own and pool in node.tenants and value == node.tenants[pool].value)
            for pool, value in claims.items()
        )

    def live(self, name: str, pool_uid: str) -> int:
        """How many pods hold (or would hold) this pool's claim on that node."""
        pool = self._pools.get(pool_uid)
        tenant = pool.nodes.get(name) if pool else None
        return tenant.holders(warm=pool.warm) if pool and tenant else 0

    def state(self, name: str, pool_uid: str) -> State:
        pool = self._pools.get(pool_uid)
        tenant = pool.nodes.get(name) if pool else None
        if pool is None or tenant is None or tenant.value is None:
            return State.NONE
        if tenant.holders(warm=pool.warm):
            return State.HELD
        return State.LINGERING if tenant.unused > tenant.changed else State.FRESH

    # Inside.

    def _set_claim(self, node: Node, pool_uid: str, tenant: Tenant, value: str | None, now: float) -> None:
        node.claims += (value is not None) - (tenant.value is not None)
        tenant.value, tenant.changed = value, now
        if value is None:
            tenant.sent, tenant.version = -inf, 0
            self._book.drop_tenant(node, pool_uid, tenant)
        if node.claims:
            self.claimed[node.name] = node
            node.claimed_since = min(node.claimed_since, now)
        else:
            self.claimed.pop(node.name, None)
            node.claimed_since = inf
            _share(node)
            node.review_atelets(now)
        self._book.tell_pool(pool_uid)


def answerable(tenant: Tenant | None, after: float) -> bool:
    """The reply rule: whether this process wrote the claim, acknowledged, since that moment (`ateplace.clock`).

    `after` is half a linger ago, or the beginning of the call if that is earlier. Why such a claim is still there: the
    reconciler removes one only after it has seen it unchanged for a whole linger, and then read consistently that no
    pod of the pool is on the node and none is unbound, with the version that it decided on. Suppose it did so after our
    write. If it had not seen the write, its version is too old and the removal conflicts. If it had, that read came a
    linger after the write, and so after our answer; the pod that we answered was there then, unbound or on the node.
    The same holds however short the linger is for a write sent since the call began: the pod was there before it.
    """
    return tenant is not None and tenant.sent >= after


def cool(pool: Pool, now: float) -> None:
    """Its placeholders hold nothing from now on."""
    for tenant in pool.nodes.values():
        if tenant.placeholders and not tenant.ateoms:
            tenant.unused = now


def _share(node: Node) -> None:
    node.own = False
    node.wrote.clear()
