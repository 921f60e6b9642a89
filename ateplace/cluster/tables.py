"""The tables that the ledger is kept in: one entry for each node, pool and pod, and who wants to hear of changes.

An entry is made by whatever first speaks of it, a watch, a pick or another object that names it, and goes when nothing
speaks for it any more. What was read of a node's other pods goes when it is believed no longer.
"""

from collections.abc import Callable
from typing import Final

from ateplace.cluster.expiring import Expiring
from ateplace.cluster.records import PodRecord
from ateplace.cluster.state import Node, Pool, PoolOnNode, Reading

READ: Final = 60.0
"""For how long what was read of a node's other pods is believed, and kept."""

Listener = Callable[[str], None]


class Tables:
    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.pools: dict[str, Pool] = {}
        self.pods: dict[str, PodRecord] = {}
        """Live pods by UID."""
        self.generation = 0
        """Changes with everything that a decision about a pod can depend on, but for the time."""
        self._readings: Expiring[str, None] = Expiring(READ)
        """Nodes that were read."""
        self._on_node: list[Listener] = []
        self._on_pool: list[Listener] = []
        self._on_namespace: list[Listener] = []

    def subscribe(
        self, *, node: Listener | None = None, pool: Listener | None = None, namespace: Listener | None = None
    ) -> None:
        """Call `node` with a node's name, `pool` with a pool's UID, `namespace` with a Namespace's name, after anything
        about it changed."""
        if node:
            self._on_node.append(node)
        if pool:
            self._on_pool.append(pool)
        if namespace:
            self._on_namespace.append(namespace)

    def tell_node(self, name: str) -> None:
        if name:
            for listener in self._on_node:
                listener(name)

    def tell_pool(self, uid: str) -> None:
        for listener in self._on_pool:
            listener(uid)

    def tell_namespace(self, name: str) -> None:
        for listener in self._on_namespace:
            listener(name)

    # Entries come,

    def node(self, name: str) -> Node:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name)
        return node

    def pool(self, uid: str) -> Pool:
        pool = self.pools.get(uid)
        if pool is None:
            pool = self.pools[uid] = Pool(uid)
        return pool

    def pool_on_node(self, node: Node, pool_uid: str) -> PoolOnNode:
        there = node.pools.get(pool_uid)
        if there is None:
            there = node.pools[pool_uid] = self.pool(pool_uid).nodes[node.name] = PoolOnNode()
        return there

    def namespace_of(self, pool_uid: str) -> str:
        """A pool's namespace; empty for one that is gone, or has not been seen yet."""
        pool = self.pools.get(pool_uid)
        return pool.record.namespace if pool and pool.record else ""

    # and go, unless something still speaks for them.

    def drop_pool_on_node(self, node: Node, pool_uid: str, there: PoolOnNode) -> None:
        if there.empty():
            del node.pools[pool_uid]
            pool = self.pools[pool_uid]
            del pool.nodes[node.name]
            self.drop_pool(pool)
            self.drop_node(node)

    def drop_pool(self, pool: Pool) -> None:
        if not (pool.record or pool.nodes or pool.pods or pool.picks):
            self.pools.pop(pool.uid, None)

    def drop_node(self, node: Node) -> None:
        if not (node.record or node.pools or node.atelets or node.pods):
            self.nodes.pop(node.name, None)

    # What was read of nodes.

    def others_read(self, name: str, node_uid: str, reading: Reading) -> None:
        """The pods of a node were listed."""
        node = self.nodes.get(name)
        if node and node.record and node.record.uid == node_uid:
            self.generation += 1
            node.reading = reading
            self._readings.put(name, None, reading.at)

    def others_changed(self, name: str) -> None:
        """What was read about a node is true no longer: it is gone, or a pod is preempted there."""
        node = self.nodes.get(name)
        if node:
            self.generation += 1
            node.reading = None
            self._readings.pop(name)

    def forget_readings(self, now: float) -> None:
        """What was read long ago, an entry for every pod of a node, is believed no more."""
        for name, _ in self._readings.expire(now):
            if node := self.nodes.get(name):
                node.reading = None
