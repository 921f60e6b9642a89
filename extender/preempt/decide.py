"""Preempt: of the nodes where the scheduler could make room, those where it may (pure).

The scheduler's dry run never asks filter, so filter's drop rules are applied here; otherwise pods would be evicted for
one that is refused afterwards, again and again. A victim that the scheduler names stays named or the whole node goes:
no victim is invented, and none is spared without the scheduler knowing.

From Kubernetes 1.38 a candidate may come without victims: by the scheduler's own filters the pod fits there without
evictions, and filter has refused the node. If it would not any more, that is the best answer of all.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from ateplace.cluster.records import PodRecord
from ateplace.cluster.resources import PODS
from ateplace.cluster.state import Node
from ateplace.extender.context import Case
from ateplace.extender.fit import Freed, ateoms_by_zone, current_reading, drop, no_room, zoned
from ateplace.extender.protocol import MetaVictims
from ateplace.extender.victims import Victims

STRANGERS = "pods other than placeholders would have to be evicted"
ELSEWHERE = "a victim is not on that node"
NOTHING = "the call lists no victims for it"
NEEDLESS = "on another node nothing has to be evicted"
WORSE = "on another node evicting placeholders is enough"
COLDER = "another node is warmer at the same cost"


class Verdict(Struct, frozen=True, gc=False):
    keep: dict[str, MetaVictims]
    """May be empty: an answer like any other."""
    dropped: dict[str, str]
    """Why the others went."""


def decide(case: Case, victims: Mapping[str, MetaVictims | None], *, others: bool) -> Verdict:
    """`others`: whether this pod may evict pods that are not placeholders."""
    keep: dict[str, MetaVictims] = {}
    clean: dict[str, Node] = {}
    dropped: dict[str, str] = {}
    for name, wanted in victims.items():
        node = case.ledger.nodes.get(name)
        reason = drop(case, node)
        if reason or node is None or wanted is None:
            dropped[name] = reason or NOTHING
            continue
        uids = [pod.uid for pod in wanted.pods or ()]
        freed = freed_by(case, node, uids)
        if freed is None:
            dropped[name] = ELSEWHERE
            continue
        if reason := no_room(case, node, freed):
            dropped[name] = reason
            continue
        if _placeholders(case, uids):
            clean[name] = node
        elif not others:
            dropped[name] = STRANGERS
            continue
        keep[name] = wanted
    if empty := {name: node for name, node in clean.items() if not keep[name].pods}:
        _only(empty, NEEDLESS, keep, dropped)
    elif clean:
        _only(clean, WORSE, keep, dropped)
    return Verdict(keep, dropped)


def _only(better: Mapping[str, Node], reason: str, keep: dict[str, MetaVictims], dropped: dict[str, str]) -> None:
    """Of these nodes the warmest stay; the others go for this reason."""
    warmest = max(node.warmth() for node in better.values())
    for name in list(keep):
        if name not in better or better[name].warmth() < warmest:
            dropped[name] = COLDER if name in better else reason
            del keep[name]


def freed_by(case: Case, node: Node, uids: list[str]) -> Freed | None:
    """What these pods take; None when one of them is not there.

    Ateoms and placeholders are watched. What others take is known where it was read, and is subtracted from just that;
    where it was not, it is not counted in the first place.
    """
    reading = current_reading(case, node)
    placeholders: dict[str, int] = {}
    others: dict[str, int] = {}
    ateoms: dict[str, int] = {}
    for uid in uids:
        record = case.ledger.pods.get(uid)
        if record is not None:
            if record.node != node.name:
                return None
            amounts = record.shape.counted
        elif reading is None:
            continue
        elif uid in reading.each:
            amounts = reading.each[uid]
        else:
            return None
        into = (others,) if record is None else (placeholders,) if record.placeholder else (others, ateoms)
        for freed in into:
            for name, amount in (*amounts, (PODS, 1)):
                freed[name] = freed.get(name, 0) + amount
    return Freed(placeholders, others, ateoms)


def for_the_next(
    case: Case, nodes: Mapping[str, MetaVictims], free: Iterable[PodRecord], need: int, own: str = ""
) -> list[PodRecord]:
    """So many placeholders whose room is for other pods that wait for the same as this one, at the most.

    Only the pool's own, each as large as one of the pods, on nodes where placeholders alone make room for this one. Of
    pods that do not share a node, one for each node; `own` is the node where this one goes.
    """
    most = case.rules.ateoms_per_node
    wanted = case.demand.shape.requests
    here: dict[str, int] = {}
    found: list[PodRecord] = []
    there = (one for one in free if one.node in nodes and not nodes[one.node].violations)
    for one in sorted(there, key=lambda each: (each.node, each.uid)):
        if len(found) >= need:
            break
        if case.ledger.owners.pool_of(one) != case.demand.pool:
            continue
        has = dict(one.shape.requests)
        if any(has.get(name, 0) < amount for name, amount in wanted):
            continue
        count = here.get(one.node, 0) + 1
        if case.demand.alone and (count > 1 or one.node == own):
            continue
        if most and case.ledger.nodes[one.node].ateoms + count >= most:
            continue  # and one for the pod that asks
        if case.limits and count >= case.limits.room(one.node):
            continue
        here[one.node] = count
        found.append(one)
    return found


def best(case: Case, keep: Mapping[str, MetaVictims], victims: Victims) -> str:
    """The one node to answer; empty when the scheduler chooses, because others than placeholders would go somewhere:
    its own rules for that are better than ours."""
    named = {name: [pod.uid for pod in one.pods or ()] for name, one in keep.items()}
    if not all(_placeholders(case, uids) for uids in named.values()):
        return ""

    zones, nodes = ateoms_by_zone(case) if zoned(case) else {}, case.ledger.nodes

    def rank(name: str) -> tuple[int, bool, int, int, str]:
        foreign = any(case.ledger.owners.pool_of(case.ledger.pods[uid]) != case.demand.pool for uid in named[name])
        new = len(new_victims(case, keep[name], victims))
        return keep[name].violations, foreign, new, zones.get(nodes[name].zone, 0), name

    return min(keep, key=rank, default="")


def new_victims(case: Case, named: MetaVictims, victims: Victims) -> list[str]:
    """Those of the victims that go for no other pod yet."""
    return [pod.uid for pod in named.pods or () if victims.is_free(pod.uid, case.demand.uid)]


def _placeholders(case: Case, uids: list[str]) -> bool:
    pods = case.ledger.pods
    return all(uid in pods and pods[uid].placeholder for uid in uids)
