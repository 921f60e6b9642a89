"""The drop rules: why a pod of ours may not go to a node, and how many it takes (pure; filter and preempt share them).

Each returns a short generic reason, or "" for "may". The same string feeds the scheduler's event (which counts nodes
by reason), `explain` and the tests. Evicting pods cures none of them in the scheduler's eyes, whose own filters have
let the pod pass, so they are all answered as unresolvable.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from ateplace.cluster import claims
from ateplace.cluster.resources import CPU, MEMORY, PODS
from ateplace.cluster.state import Node, Reading
from ateplace.extender.context import Case
from ateplace.extender.served import SHARED, Service, judge

SPARE_BYTES: Final = 4096
"""So much of a Node's annotations is left to others, and to claims of pods that are there already."""

UNKNOWN: Final = "ateplace does not know this node yet"
DELETING: Final = "the node is being deleted"
CRASHING: Final = "atelet is crash-looping there"
UNREADY: Final = "atelet has not been Ready there for too long"
ANNOTATIONS: Final = "the node's annotations are near the API's limit"
CROWDED: Final = "the node has as many ateoms as allowed"
PACKED: Final = "the node is full of ateoms without requests"
NO_ROOM: Final = "no room beside atelet"
NO_SLOT: Final = "no pod slot beside atelet"
PORT_TAKEN: Final = "another pod has atelet's host port"
FILLED: Final = frozenset({NO_ROOM, NO_SLOT, PORT_TAKEN})
"""What may turn out when a node's other pods are read."""
HELD_BACK: Final = "held back for placeholders on a warm node"
COMING: Final = "atelet is not there yet, and more pods may be on their way"
"""Passes by itself, with the atelet or when the other pods are bound; but not where atelet does not come."""
UNCLAIMED: Final = "its claim was refused"
"""By the API server, a policy or a webhook: nothing that passes by itself."""
CHANGED: Final = "it changed while it was claimed"
"""Passes by itself: the next call decides anew."""
PROMISED: Final = "its room was made for an ateom"
"""Passes by itself: with the ateom, or in seconds."""


def drop(case: Case, node: Node | None) -> str:
    """Why no pod like this one may go to the node now."""
    return unfit(case, node) or (service(case, node)[1] if case.served and node else "")


def service(case: Case, node: Node) -> tuple[Service, str]:
    """Whether the node has what the pod asks for of the resources that atelet serves, and why not."""
    if case.served is None:
        return Service.FREE, ""
    picks, uid = case.ledger.picks, case.demand.uid
    attempt = picks.attempts.get(uid)
    unpicked = dict(picks.unpicked.used)
    if picks.is_unpicked(uid):
        for name, amount in case.served.amounts:
            unpicked[name] -= amount
    return judge(
        case.served,
        node,
        picked=attempt is not None and attempt.node == node.name,
        now=case.now,
        alone=knows_all(case, node),
        unpicked=unpicked,
    )


def knows_all(case: Case, node: Node) -> bool:
    """Whether everything that is on its way to the node is among this process's picks."""
    return node.own or not node.claim_count or case.now - node.others_wrote > case.rules.settled


def unfit(case: Case, node: Node | None) -> str:
    """Why no pod of this pool may go to the node at all."""
    if node is None or node.record is None:
        return UNKNOWN
    if node.record.deleting:
        return DELETING
    if node.atelet.barred:
        return node.atelet.barred
    # Without a readiness probe, as upstream has it, atelet is Ready in every short life between two crashes.
    crashed, at = node.crashed
    if crashed in node.atelets and (not node.atelet_ready or case.now - at < case.rules.atelet_unready_seconds):
        return CRASHING
    if case.now - node.unready_since > case.rules.atelet_unready_seconds:
        return UNREADY
    if (
        node.record.annotation_bytes > claims.ANNOTATION_BYTES - SPARE_BYTES
        and case.demand.pool not in node.record.claims
    ):
        return ANNOTATIONS
    return case.limits.refuses(node) if case.limits else ""


class Freed(Struct, frozen=True, gc=False):
    """What victims on a node would give back, their slots included."""

    placeholders: Mapping[str, int]
    others: Mapping[str, int]
    ateoms: Mapping[str, int]
    """The ateoms' part of `others`."""


NONE: Final[Mapping[str, int]] = {}


def no_room(case: Case, node: Node, freed: Freed | None = None) -> str:
    """Why this pod does not go to the node beside what is there, picks in flight included.

    The scheduler has checked that the pod fits by its requests. Three things it does not check: our own cap, atelet's
    room, and how many pods without requests are enough.

    Atelet's room is kept even when our watch shows atelet bound: the scheduler's own may not show it yet, and would
    let the pod pass. What strangers take is known for a while after the node was opened; without that, the check is
    only what is certain. Once atelet is there, placeholders do not count against an ateom: their room is meant for it,
    and those that were just preempted may still be in our books. `freed` is what victims would give back.

    All this needs to know every pick. On a node that another process may have sent pods to, everything that might be
    on its way there counts, until its atelet is there.
    """
    demand, needed, record = case.demand, node.atelet, node.record
    if record is None:
        return UNKNOWN
    if demand.placeholder and node.name in case.made_room:
        return PROMISED
    ended, gone, ateoms = (freed.placeholders, freed.others, freed.ateoms) if freed else (NONE, NONE, NONE)
    most = case.rules.ateoms_per_node
    if most and not demand.placeholder and node.ateoms - ateoms.get(PODS, 0) >= most:
        return CROWDED
    used, shape = node.used, demand.shape
    yielding = node.placeholders > 0 and node.atelet_bound and not demand.placeholder
    reading = current_reading(case, node)
    if needed.requests:
        counted, allocatable = dict(shape.counted), node.room
        others = dict(reading.used) if reading else {}
        for name, amount in needed.requests:
            taken = used.get(name, 0) + others.get(name, 0) + counted.get(name, 0) - gone.get(name, 0)
            taken -= node.reserved.get(name, 0) if yielding else ended.get(name, 0)
            if taken + amount > allocatable.get(name, 0):
                return NO_ROOM
    slots = node.pods - gone.get(PODS, 0) + (reading.pods if reading else 0)
    slots -= node.placeholders if yielding else ended.get(PODS, 0)
    if slots + 2 > record.slots:
        return NO_SLOT
    if not node.atelet_bound and reading and not needed.ports.isdisjoint(reading.ports):
        return PORT_TAKEN
    if shape.requests is not shape.counted:
        counted, allocatable, atelet = dict(shape.counted), node.room, dict(needed.requests)
        for name in (CPU, MEMORY):
            taken = used.get(name, 0) - node.reserved.get(name, 0) - ateoms.get(name, 0)
            if taken + atelet.get(name, 0) + counted.get(name, 0) > allocatable.get(name, 0):
                return PACKED
    return COMING if foreign(node) and not _room_for_all(case, node, freed, reading) else ""


def foreign(node: Node) -> bool:
    """Whether another process may have sent pods there that the room for atelet must be counted with.

    Once atelet is Ready the scheduler has long seen it bound, and counts it with everything that it has assumed.
    """
    return not node.own and not node.atelet_ready and node.claim_count > 0


def _room_for_all(case: Case, node: Node, freed: Freed | None, reading: Reading | None) -> bool:
    """Whether atelet has its room there even if every pod that this process knows no pick of is on its way there.

    Another replica that answers for this node knows no more than we do, and does not know our answer until the pod is
    bound; but all pods that can be answered meanwhile are among those counted here, and the touch that goes with our
    answer tells the other replica that the node is not its own any more.
    """
    unpicked, record = case.ledger.picks.unpicked, node.record
    ended, gone = (freed.placeholders, freed.others) if freed else (NONE, NONE)
    itself = 0 if case.ledger.picks.is_unpicked(case.demand.uid) else 1
    counted, others = dict(case.demand.shape.counted), dict(reading.used) if reading else {}
    for name, amount in node.atelet.requests:
        taken = node.used.get(name, 0) + unpicked.used.get(name, 0) + others.get(name, 0)
        taken -= gone.get(name, 0) + ended.get(name, 0)
        if taken + itself * counted.get(name, 0) + amount > node.room.get(name, 0):
            return False
    slots = node.pods + unpicked.pods + (reading.pods if reading else 0)
    slots -= gone.get(PODS, 0) + ended.get(PODS, 0)
    return record is not None and slots + itself + 1 <= record.slots


def capacity(case: Case, node: Node) -> int:
    """About how many pods like this one the node still takes. For opening ahead: a wrong guess costs little."""
    demand = case.demand
    most = node.takes(demand.shape)
    if case.rules.ateoms_per_node and not demand.placeholder:
        most = min(most, case.rules.ateoms_per_node - node.ateoms)
    if demand.alone:
        most = min(most, 1)
    if case.limits:
        most = int(min(most, case.limits.room(node.name)))
    return max(0, most)


def current_reading(case: Case, node: Node) -> Reading | None:
    """What was read about the node's other pods, unless that is too long ago."""
    reading = node.reading
    return reading if reading and case.now - reading.at < case.rules.reading_seconds else None


def must_read(case: Case, node: Node) -> bool:
    """Whether the node's other pods must be read before a pod goes there."""
    return not node.atelet_bound and case.claims_node and current_reading(case, node) is None


def answerable(case: Case, node: Node) -> bool:
    """Whether the node may be answered now, by the reply rule; a pod that claims nothing needs no claim."""
    return not case.claims_node or claims.answerable(node.pools.get(case.demand.pool), case.reply_since)


def passes(case: Case, name: str, reason: str) -> bool:
    """Whether a reason passes by itself, within seconds, so that no pod should be preempted for it."""
    if reason == COMING:
        node = case.ledger.nodes.get(name)
        return node is not None and case.now - node.claimed_since < case.rules.atelet_unready_seconds
    # A placeholder that claims nothing has no claim that would bring it back.
    return reason in {CHANGED, SHARED} or (reason == PROMISED and not case.claims_node)


# Where a pool is, by zone: for the zone in which it has the least when it needs another node. Nodes without the label
# are one zone together. Where all nodes are in one zone there is nothing to choose, and nothing is counted.


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
