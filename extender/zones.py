"""Where a pool is, by zone (pure): for choosing the zone in which it has the least when it needs another node.

A node without the label is in a zone of its own, together with all others that have none. Where all nodes are in one
zone there is nothing to choose, and nothing is counted.
"""

from ateplace.extender.context import Case
from ateplace.extender.fit import capacity


def zoned(case: Case) -> bool:
    """Whether there are several zones."""
    return len(case.ledger.zones) > 1


def ateoms_by_zone(case: Case, *, filled: bool = False) -> dict[str, int]:
    """How many ateoms the pool has in each zone, picks in flight included. `filled`: with those that its claimed nodes
    still take."""
    counts: dict[str, int] = {}
    pool, nodes = case.ledger.pools.get(case.demand.pool), case.ledger.nodes
    for name, there in pool.nodes.items() if pool else ():
        node = nodes[name]
        if node.record is not None:
            more = capacity(case, node) if filled and there.value is not None else 0
            counts[node.zone] = counts.get(node.zone, 0) + there.ateoms + there.picks + more
    return counts


def placeholders_by_zone(case: Case) -> dict[str, int]:
    """The same for its placeholders."""
    counts: dict[str, int] = {}
    pool, nodes = case.ledger.pools.get(case.demand.pool), case.ledger.nodes
    for name, there in pool.nodes.items() if pool else ():
        zone = nodes[name].zone
        counts[zone] = counts.get(zone, 0) + there.placeholders + there.picks
    return counts
