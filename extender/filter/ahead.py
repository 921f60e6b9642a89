"""Which nodes to claim before a pod asks for them (pure): for the pods behind this one, and for what atelet serves."""

from collections.abc import Iterator

from ateplace.cluster.state import Node
from ateplace.extender.context import Case, Sent
from ateplace.extender.fit import answerable, capacity, knows_all, no_room, service, unfit
from ateplace.extender.served import Service


def ahead(case: Case, best: Node, seen: list[Node], warm: Iterator[Node], cold: Iterator[Node]) -> tuple[Node, ...]:
    """Nodes that the pool's other pending pods will need and that may not be answered yet, the best first.

    Bounded by need, and by the setting: so many nodes, those that are open and unused already included. Cold ones are
    added when half of those are used up.
    """
    pool = case.ledger.pools.get(case.demand.pool)
    spare = case.rules.open_ahead
    if pool is None or not spare or case.demand.placeholder:
        return ()
    attempt = case.ledger.picks.attempts.get(case.demand.uid)
    counted = attempt is not None and bool(attempt.node)
    need = pool.pending - (not counted) - (capacity(case, best) - 1)
    if need <= 0:
        return ()
    found: list[Node] = []
    limits = case.limits.take(best) if case.limits else None
    for node in [*seen] if case.demand.choosy else _also_seen(seen, warm):
        if node is not best and not (limits and limits.refuses(node)):
            need -= capacity(case, node)
            if not answerable(case, node):
                limits = limits.take(node) if limits else None
                found.append(node)
            elif not node.pools[case.demand.pool].picks:
                spare -= 1
            if need <= 0 or len(found) >= spare:
                return tuple(found)
    if spare < case.rules.open_ahead / 2:
        return tuple(found)  # enough for now: looking for cold nodes among all that were sent is not free
    for node in cold:
        if node is not best and not (limits and limits.refuses(node)):
            limits = limits.take(node) if limits else None
            found.append(node)
            need -= capacity(case, node)
        if need <= 0 or len(found) >= spare:
            break
    return tuple(found)


def _also_seen(seen: list[Node], warm: Iterator[Node]) -> Iterator[Node]:
    """The rest of the ranking, remembered for `explain` as it is looked at."""
    for node in warm:
        seen.append(node)
        yield node


def unserved(case: Case, sent: Sent) -> list[Node]:
    """Nodes to claim, or to touch, for pods that ask for what atelet serves: those that may have it, and do not
    advertise it because their atelet is not there yet. As many as the pool's pods need, claimed ones first."""
    pool, nodes, want = case.ledger.pools.get(case.demand.pool), case.ledger.nodes, case.served
    if pool is None or want is None:
        return []
    most = {name: max((node.room.get(name, 0) for node in nodes.values()), default=0) for name, _ in want.amounts}
    each = min((units // amount for name, amount in want.amounts if (units := most[name])), default=0)
    awaited = [
        node
        for name in sent.all()
        if (node := nodes.get(name)) is not None
        and not unfit(case, node)
        and service(case, node)[0] is Service.AWAITED
        and not no_room(case, node)
    ]
    need = max(1, pool.unbound - pool.unbound_placeholders)
    found: list[Node] = []
    limits = case.limits
    for node in sorted(awaited, key=lambda node: (not node.claim_count, node.name)):
        if limits and limits.refuses(node):
            continue
        if need <= 0 or len(found) >= max(1, case.rules.open_ahead):
            break
        takes = capacity(case, node)
        need -= max(1, min(takes, each) if each else takes)
        if not answerable(case, node) and knows_all(case, node):
            limits = limits.take(node) if limits else None
            found.append(node)  # a node that another replica has claimed lately is left to that one
    return found
