"""Where a placeholder goes (pure): to a warm node with room, but not all of a pool's to one.

The order of preference, better first:

1. a node that has not failed this placeholder before;
2. atelet Ready there, then on its way, then a cold node;
3. the zone with the fewest placeholders of its pool, then the node with the fewest, so that the loss of one zone or
   node does not take them all;
4. the first by name, so that two replicas that see the same cluster choose alike.

One exception to 2: when all the pool's placeholders are on the one node that is best, a cold node is opened
for this one. A pool's headroom is on two nodes at least, wherever there are two.

Placeholders of a pool whose headroom is not warm go by the same order, but claim nothing (`Case.claims_node`).
"""

from collections.abc import Collection, Iterable

from ateplace.cluster.state import Node
from ateplace.extender.context import Case, Sent
from ateplace.extender.fit import drop, no_room, placeholders_by_zone, zoned


def steer(case: Case, sent: Sent, excluded: Collection[str]) -> Node | None:
    """The node for this placeholder; None when none of those sent will do."""
    attempt = case.ledger.picks.attempts.get(case.demand.uid)
    avoid = attempt.avoid if attempt else ()
    zones = placeholders_by_zone(case) if zoned(case) else {}

    def rank(node: Node) -> tuple[bool, int, int, int, str]:
        return node.name in avoid, -node.warmth(), zones.get(node.zone, 0), _here(case, node), node.name

    best = min(_fitting(case, sent, case.ledger.claims.nodes, excluded), key=rank, default=None)
    if best is not None and best.name not in avoid and not _all_on(case, best):
        return best
    unclaimed = (name for name in sent.all() if name not in case.ledger.claims.nodes)
    cold = min(_fitting(case, sent, unclaimed, {*excluded, *avoid}), key=rank, default=None)
    return cold or best or min(_fitting(case, sent, sent.all(), excluded), key=rank, default=None)


def _fitting(case: Case, sent: Sent, among: Iterable[str], excluded: Collection[str]) -> list[Node]:
    nodes = (case.ledger.nodes.get(name) for name in among if name not in excluded and name in sent)
    return [node for node in nodes if node and not drop(case, node) and not no_room(case, node)]


def _here(case: Case, node: Node) -> int:
    """How many of this pool's placeholders are on the node, or on their way there."""
    there = node.pools.get(case.demand.pool)
    return there.placeholders + there.picks if there else 0


def _all_on(case: Case, node: Node) -> bool:
    """Whether the pool has placeholders, and none but on this node."""
    pool = case.ledger.pools.get(case.demand.pool)
    if pool is None or not _here(case, node):
        return False
    return not any(there.placeholders or there.picks for name, there in pool.nodes.items() if name != node.name)
