"""Filter's decision: which node a pod should go to, or why it goes to none (pure).

The order of preference, better first:

1. a node that has not failed this pod before;
2. atelet Ready there, then claimed with atelet on its way, then cold;
3. a node that already serves the pod's pool (no further claim, no patch in the scheduling cycle);
4. of nodes that are new to the pool, one in the zone where it has the fewest ateoms (only where there are several);
5. the fuller one;
6. the first by name, so that two replicas that see the same cluster choose alike.

Zones come before the fuller one only among nodes that have no ateom of the pool: those that have are filled first, so
that no node more is used than without zones. They come before warmth only among nodes that the pool has claimed ahead.

Placeholders have an order of their own (`extender.filter.placeholders`).

Only nodes that the scheduler sent are considered: they have passed its own filters, the pods it has just assumed
included, so full nodes are not among them. Nodes are ranked lazily, a tier at a time, and the first that will do is
taken: usually that looks at the pool's own nodes and at none of the names.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf
from typing import Final

from msgspec import Struct, structs

from ateplace.cluster.resources import Amounts
from ateplace.cluster.state import Node, PoolOnNode, Warmth
from ateplace.extender.context import Case, Sent
from ateplace.extender.filter.ahead import ahead
from ateplace.extender.filter.placeholders import steer
from ateplace.extender.fit import (
    CHANGED,
    HELD_BACK,
    UNCLAIMED,
    ateoms_by_zone,
    capacity,
    drop,
    no_room,
    zoned,
)

Ranked = tuple[int, float, str, Node]
"""Sorts the better first; names differ, so nodes are never compared. The first is the pool's ateoms in the node's zone;
OCCUPIED for a node that has some itself, and where there is one zone only."""
OCCUPIED: Final = -1
SORTED_BELOW = 64
EXPLAINED = 5
ALSO: Final = 8
"""Most nodes that a pod with preferences is answered beside its own: each of them is written at least twice a linger
while such pods come."""


class Choice(Struct, frozen=True, gc=False):
    node: Node
    also: tuple[str, ...] = ()
    """More nodes to answer, once they are claimed: for a pod with preferences of its own."""
    ahead: tuple[Node, ...] = ()
    """Nodes to claim at the same time for the pods that come next."""
    ranking: tuple[tuple[str, Warmth, float], ...] = ()
    """The best claimed nodes with their warmth and fullness, for `explain`."""


def choose(
    case: Case, sent: Sent, *, excluded: Collection[str] = (), hold: bool = False, full: bool = True
) -> Choice | None:
    """The node for this pod; None when none of them will do (`refusals` says why).

    `excluded` were tried in this call, in vain. `hold`: open no cold node while a warm one has placeholders that are
    large enough; the scheduler then preempts those. `full`: also a node that is full by our count, which the scheduler
    has not sent unless it knows better.
    """
    if case.limits and (apart := case.limits.apart(case.ledger)):
        elsewhere = choose(structs.replace(case, limits=apart), sent, excluded=excluded, hold=hold, full=full)
        if elsewhere:
            return elsewhere
    if case.demand.placeholder:
        placed = steer(case, sent, excluded)
        return Choice(placed) if placed else None
    attempt = case.ledger.picks.attempts.get(case.demand.uid)
    avoid = attempt.avoid if attempt else ()
    warm = _warm(case, sent, {*avoid, *excluded})
    counted_full = _counted_full(case, sent, {*avoid, *excluded}) if full else iter(())
    seen: list[Node] = []
    best = next(warm, None) or next(counted_full, None)
    if best is not None:
        seen.append(best)
    elif hold and _placeholders_elsewhere(case):
        return None
    else:
        best = next(_cold(case, sent, {*avoid, *excluded}), None)
        if best is None and avoid:
            best = (
                next(_warm(case, sent, excluded), None)
                or (next(_counted_full(case, sent, excluded), None) if full else None)
                or next(_cold(case, sent, excluded), None)
            )
    if best is None:
        return None
    also: tuple[str, ...] = ()
    if case.demand.choosy:
        seen += (*warm, *counted_full)
        counted, also = _several(case, seen)
        best = counted or next(_cold(case, sent, {*avoid, *excluded}), best)
    following = ahead(case, best, seen, warm, _cold(case, sent, excluded))
    ranking = tuple((node.name, node.warmth(), node.fullness) for node in seen[:EXPLAINED])
    return Choice(best, tuple(name for name in also if name != best.name), following, ranking)


def refusals(case: Case, names: Iterable[str], *, hold: bool = False, denied: Collection[str] = ()) -> dict[str, str]:
    """Why each node will not do. `denied`: the API server refuses to have them claimed."""
    found = {}
    for name in names:
        node = case.ledger.nodes.get(name)
        if node is None:
            found[name] = drop(case, node)
        else:
            # Refusals are kept for a while: with the ledger's own names, and not another copy of thousands in each.
            found[node.name] = (
                drop(case, node)
                or no_room(case, node)
                or (UNCLAIMED if name in denied else HELD_BACK if hold else CHANGED)
            )
    return found


def _warm(case: Case, sent: Sent, excluded: Collection[str]) -> Iterator[Node]:
    """The claimed nodes among those sent that take this pod, the best first."""
    return (node for node in _ranked(case) if _takes(case, node, sent, excluded))


def _counted_full(case: Case, sent: Sent, excluded: Collection[str]) -> Iterator[Node]:
    """The same for claimed nodes that look full: the scheduler will not have sent one, unless our count is behind."""
    pool, counted = case.demand.pool, case.demand.shape.counted

    def rank(node: Node) -> tuple[bool, bool, float, str]:
        there = node.pools.get(pool)
        return not node.atelet_ready, there is None or there.value is None, -node.fullness, node.name

    full = [node for node in case.ledger.claims.nodes.values() if _full(node, counted) and node.name in sent]
    yield from (node for node in sorted(full, key=rank) if _takes(case, node, sent, excluded))


def _takes(case: Case, node: Node, sent: Sent, excluded: Collection[str]) -> bool:
    return node.name in sent and node.name not in excluded and not drop(case, node) and not no_room(case, node)


def _ranked(case: Case) -> Iterator[Node]:
    """Every claimed node that does not look full: Ready before on its way, in each the pool's own before others, in
    each the fuller first."""
    ledger, counted = case.ledger, case.demand.shape.counted
    pool = ledger.pools.get(case.demand.pool)
    own, nodes, spread = pool.nodes if pool else {}, ledger.nodes, zoned(case)
    best = _fullest(own, nodes, counted, spread=spread)
    if best is not None:
        yield best  # mostly no more are asked for
    ateoms = ateoms_by_zone(case) if spread else {}
    ready: list[Ranked] = []
    coming: list[Ranked] = []
    claimed = 0
    for name, there in own.items():
        if there.value is not None:
            claimed += 1
            node = nodes[name]
            if node is not best and not _full(node, counted):
                new = spread and not (there.ateoms or there.picks)
                ranked = (ateoms.get(node.zone, 0) if new else OCCUPIED, -node.fullness, name, node)
                (ready if node.atelet_ready else coming).append(ranked)
    if spread:
        ready, coming = _least_first(ready, coming, ateoms)
    yield from _best_first(ready)
    others_ready: list[Ranked] = []
    others_coming: list[Ranked] = []
    if claimed < len(ledger.claims.nodes):
        for name, node in ledger.claims.nodes.items():
            if (name not in own or own[name].value is None) and not _full(node, counted):
                ranked = (ateoms.get(node.zone, 0) if spread else OCCUPIED, -node.fullness, name, node)
                (others_ready if node.atelet_ready else others_coming).append(ranked)
    yield from _best_first(others_ready)
    yield from _best_first(coming)
    yield from _best_first(others_coming)


def _least_first(
    ready: list[Ranked], coming: list[Ranked], ateoms: Mapping[str, int]
) -> tuple[list[Ranked], list[Ranked]]:
    """Of the nodes that were claimed ahead, a Ready one waits for those of zones where the pool has less, those that
    have some of it included: which atelet is quicker does not say where the pool should be."""
    least = min((ateoms.get(node.zone, 0) for *_, node in (*ready, *coming)), default=0)
    return [one for one in ready if one[0] <= least], coming + [one for one in ready if one[0] > least]


def _fullest(
    own: Mapping[str, PoolOnNode], nodes: Mapping[str, Node], counted: Amounts, *, spread: bool
) -> Node | None:
    """The first of the ranking, if it is one of the pool's own nodes whose atelet is Ready. `spread`: only one that has
    ateoms of the pool.

    A pool may have hundreds, and this is where a call's time goes: whether a node is full is asked only of those that
    would be better than the best so far.
    """
    best, most = None, -1.0
    for name, there in own.items():
        node = nodes[name]
        share = node.fullness
        if (
            share >= most
            and node.atelet_ready
            and there.value is not None
            and (share > most or best is None or name < best.name)
            and not (spread and not (there.ateoms or there.picks))
            and not _full(node, counted)
        ):
            best, most = node, share
    return best


def _full(node: Node, counted: Amounts) -> bool:
    """A resource that the node does not have is one that the scheduler ignores (the gating resource), or else it does
    not send the node."""
    used, room = node.used, node.room
    for name, amount in counted:  # noqa: SIM110 - a generator would take longer than what it does, and it runs often
        if used.get(name, 0) + amount > room.get(name, inf):
            return True
    return False


def _best_first(ranked: list[Ranked]) -> Iterator[Node]:
    heapq.heapify(ranked)
    while ranked:
        yield heapq.heappop(ranked)[3]


def _cold(case: Case, sent: Sent, excluded: Collection[str]) -> Iterator[Node]:
    """Unclaimed nodes that take this pod: of the zone where the pool will have the fewest ateoms, in the order of their
    names."""
    if zoned(case):
        yield from _cold_by_zone(case, sent, excluded)
        return
    nodes, named = case.ledger.nodes, sent.all()
    # Usually the first few will do; only where more are refused is the whole list put in order.
    count = len(excluded) + 32
    few = sorted(named) if len(named) < max(SORTED_BELOW, 4 * count) else heapq.nsmallest(count, named)
    for rest in (False, True):
        for name in (sorted(named)[count:] if len(few) < len(named) else ()) if rest else few:
            node = nodes.get(name)
            if node is None or node.claim_count or name in excluded or drop(case, node) or no_room(case, node):
                continue
            yield node


def _cold_by_zone(case: Case, sent: Sent, excluded: Collection[str]) -> Iterator[Node]:
    """Each one that is yielded counts as filled: a caller that asks for more opens it too."""
    nodes = case.ledger.nodes
    zones: dict[str, list[str]] = {}
    for name in sent.all():
        node = nodes.get(name)
        if node is not None and not node.claim_count and name not in excluded:
            zones.setdefault(node.zone, []).append(name)
    for queue in zones.values():
        heapq.heapify(queue)
    ateoms = ateoms_by_zone(case, filled=True)
    while zones:
        zone = min(zones, key=lambda each: (ateoms.get(each, 0), zones[each][0]))
        node = nodes[heapq.heappop(zones[zone])]
        if not zones[zone]:
            del zones[zone]
        if not drop(case, node) and not no_room(case, node):
            yield node
            ateoms[zone] = ateoms.get(zone, 0) + capacity(case, node)


def _several(case: Case, warm: list[Node]) -> tuple[Node | None, tuple[str, ...]]:
    """For a pod with preferences: the node where the pick is counted, if one is open; and some of those its pool holds,
    taken evenly from the fullest to the emptiest, so that the pod's preferences find a choice.

    Of the latter only those whose atelet is bound: a pod that goes where it was not counted could take the room that
    is kept for an atelet that is still to come. Where one of a burst has just been sent, and atelet is not there yet,
    the next ones are counted as well: else each would get a fresh node for itself.
    """
    held, fresh, coming = [], None, None
    for node in warm:
        there = node.pools.get(case.demand.pool)
        if there is None or not (there.ateoms or there.picks):
            fresh = fresh or node
        elif node.atelet_bound:
            if _takes_uncounted(case, node):
                held.append(node.name)
        elif there.picks:
            coming = coming or node
    step = max(1, -(-len(held) // ALSO))
    return coming or fresh, tuple(sorted(held[::step]))


def _takes_uncounted(case: Case, node: Node) -> bool:
    """Whether the node takes this pod even if all that its pools have on their way went there, wherever they were
    counted. No scheduler counts our cap, pods without requests, or what atelet serves; all else it does."""
    shape, pools = case.demand.shape, case.ledger.pools
    if shape.requests is shape.counted and not (case.rules.ateoms_per_node or case.limits or case.served):
        return True
    return capacity(case, node) > sum(pools[uid].picks for uid in node.pools)


def _placeholders_elsewhere(case: Case) -> bool:
    """Whether some warm node has placeholders large enough to make room for this pod."""
    return not case.demand.placeholder and any(
        node.atelet_ready
        and node.placeholders
        and all(node.reserved.get(name, 0) >= amount for name, amount in case.demand.shape.requests)
        for node in case.ledger.claims.nodes.values()
    )
