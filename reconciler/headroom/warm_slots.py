"""How many more of a pool's ateoms would start warm now: where atelet is Ready on a node that the pool has claimed.

    used         its ateoms that are on nodes, warm or not
    free         room for more of them beside everything of ours that is there
    placeholder  its placeholders there: an ateom that takes the place of one starts warm too

So used + free is how many ateoms the pool's nodes hold without another node. Free room of a node that several pools
have claimed is free for each of them. Pods of others are not watched, so `free` is the most that there can be.

Linear in pods and claims: it is counted when metrics are scraped, and the exposition is made once a second at most.
"""

from typing import Final

from msgspec import Struct

from ateplace.cluster.ledger import Ledger
from ateplace.cluster.resources import Shape
from ateplace.cluster.state import Node, Pool, PoolOnNode

CONDITIONS: Final = "node.kubernetes.io/"
"""Taints by which Kubernetes says that a node is cordoned, or not well: no further ateom goes there."""


class WarmSlots(Struct, frozen=True):
    used: int
    free: int = 0
    placeholder: int = 0


def warm_slots(ledger: Ledger, ateoms_per_node: int = 0) -> dict[str, WarmSlots]:
    """By pool, as people call it. `ateoms_per_node`: the setting, 0 for no limit."""
    shapes = _shapes(ledger)
    return {
        f"{pool.record.namespace}/{pool.record.name}": _count(ledger, pool, shapes.get(uid), ateoms_per_node)
        for uid, pool in ledger.pools.items()
        if pool.record and not pool.record.deleting
    }


def _shapes(ledger: Ledger) -> dict[str, Shape]:
    """What an ateom of each pool takes; where there is none, what its placeholders do."""
    ateoms: dict[str, Shape] = {}
    placeholders: dict[str, Shape] = {}
    for one in ledger.pods.values():
        if not one.terminating:
            (placeholders if one.placeholder else ateoms).setdefault(ledger.owners.pool_of(one), one.shape)
    return placeholders | ateoms


def _count(ledger: Ledger, pool: Pool, shape: Shape | None, ateoms_per_node: int) -> WarmSlots:
    rules, there = pool.record.rules if pool.record else None, pool.nodes
    used = sum(one.ateoms for one in there.values())
    if shape is None or rules is None or rules.wrong:
        return WarmSlots(used)
    spread = sum(one.ateoms > 0 for one in there.values()) < rules.min_nodes
    free = placeholder = 0
    for name, one in there.items():
        node = ledger.nodes[name]
        if _is_warm(node, one) and not (spread and one.ateoms):
            room = node.takes(shape)
            if rules.max_per_node:
                room = min(room, rules.max_per_node - one.ateoms - one.placeholders)
            if ateoms_per_node:
                room = min(room, ateoms_per_node - node.ateoms - one.placeholders)
            free += max(0, room)
            placeholder += one.placeholders
    return WarmSlots(used, free, placeholder)


def _is_warm(node: Node, there: PoolOnNode) -> bool:
    record = node.record
    return (
        there.value is not None
        and node.atelet_ready
        and record is not None
        and not record.deleting
        and not any(key.startswith(CONDITIONS) for key, _, _ in record.taints)
    )
