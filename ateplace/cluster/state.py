"""What the ledger keeps: nodes, pools, one on the other, and picks in flight. Only the ledger changes them."""

import enum
from math import inf
from typing import Final

from msgspec import Struct, field

from ateplace.cluster.atelets import AteletNeed
from ateplace.cluster.records import AteletRecord, NodeRecord, PoolRecord
from ateplace.cluster.resources import Amounts, Shape

CRASH_LOOP: Final = "CrashLoopBackOff"
MAKING: Final = 5.0
"""Seconds within which the pods of a Deployment that was scaled up are made."""


class State(enum.Enum):
    NONE = "none"
    FRESH = "fresh"
    HELD = "held"
    LINGERING = "lingering"


class Warmth(enum.IntEnum):
    COLD = 0
    CLAIMED = 1
    READY = 2


class PoolOnNode(Struct, gc=False):
    """One pool on one node."""

    value: str | None = None
    """The claim as the watch last showed it, or as we wrote it since; None: no claim."""
    changed: float = -inf
    """When this process last saw the claim's value change."""
    unused: float = -inf
    """When its last live pod here went; -inf when it never had one."""
    sent: float = -inf
    """When the last write that this process had acknowledged was sent, by `claims.boottime`; -inf when none stands."""
    version: int = 0
    """The node's resourceVersion after that write."""
    ateoms: int = 0
    placeholders: int = 0
    picks: int = 0
    placeholder_picks: int = 0
    """Those of the picks that are for placeholders."""

    def empty(self) -> bool:
        return self.value is None and not (self.ateoms or self.placeholders or self.picks)

    def holders(self, *, warm: bool) -> int:
        """How many pods hold the claim; placeholders do in a pool whose headroom is warm."""
        return self.ateoms + self.placeholders if warm else self.ateoms


class Reading(Struct, frozen=True, gc=False):
    """What pods other than ateoms, placeholders and atelet took on a node when it was opened."""

    used: Amounts
    pods: int
    ports: frozenset[tuple[str, int]]
    at: float
    each: dict[str, Amounts] = {}
    """What each of them takes, by UID: for those that would be preempted."""


class Node(Struct, gc=False):
    """Everything known about one node name."""

    name: str
    record: NodeRecord | None = None
    zone: str = ""
    """Empty when its label says none."""
    atelet: AteletNeed = AteletNeed()
    """What atelet takes here, or why it can never run."""
    pools: dict[str, PoolOnNode] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    """What ateoms, placeholders and picks count for here."""
    reserved: dict[str, int] = field(default_factory=dict)
    """The placeholders' part of that: room that ateoms may have."""
    pods: int = 0
    ateoms: int = 0
    """Ateoms here, picks included (placeholders not)."""
    placeholders: int = 0
    room: dict[str, int] = field(default_factory=dict)
    """What is allocatable."""
    fullness: float = 0.0
    """The largest share of any allocatable resource, or of the pod slots, that `used` and `pods` are."""
    atelets: dict[str, AteletRecord] = field(default_factory=dict)
    """Atelet's pods by UID, those that are on their way out too."""
    atelet_ready: bool = False
    """Whether the pod of a DaemonSet that fits this node now is Ready here; `atelet_bound` is about the same pods."""
    atelet_bound: bool = False
    ready_since: float = inf
    """Since when one is Ready; inf while none is."""
    ready_longest: float = 0.0
    """The longest time that one was Ready before."""
    advertised: frozenset[str] = frozenset()
    """Extended resources that the Node has ever advertised."""
    unready_since: float = inf
    """Since when a claimed node that has had an atelet pod has none that is Ready; inf otherwise. A pod that failed and
    was removed does not begin a new time."""
    crashed: tuple[str, float] = ("", -inf)
    """The atelet pod that was last seen crash-looping here, and when."""
    reading: Reading | None = None
    claim_count: int = 0
    """How many pools have a claim."""
    claimed_since: float = inf
    """Since when there has been one, as this process saw it."""
    own: bool = False
    """Whether this process opened it, and no other has claimed it since: then all picks for it are known here."""
    wrote: dict[str, str] = field(default_factory=dict)
    """Pool UID to the value that this process last sent."""
    others_wrote: float = -inf
    """When this process last saw a claim here change that it had not written itself."""
    others_version: int = 0
    """The Node's resourceVersion with that change."""

    def warmth(self) -> Warmth:
        if not self.claim_count:
            return Warmth.COLD
        return Warmth.READY if self.atelet_ready else Warmth.CLAIMED

    def load(self, shape: Shape, *, placeholder: bool, times: int) -> None:
        """Count so many more pods of this shape here, or fewer."""
        _count(self.used, shape, times)
        self.pods += times
        if placeholder:
            _count(self.reserved, shape, times)
            self.placeholders += times
        else:
            self.ateoms += times
        self.weigh()

    def weigh(self) -> None:
        """Bring `fullness` up to date."""
        record = self.record
        if record is None:
            self.fullness = 0.0
            return
        used = self.used
        share = self.pods / record.slots if record.slots else 0.0
        for name, amount in record.allocatable:
            taken = used.get(name)
            if taken and taken > share * amount:
                share = taken / amount
        self.fullness = share

    def takes(self, shape: Shape) -> int:
        """How many more pods of this shape have room beside what is known to be here, with atelet's room kept.

        A resource that the node does not have is one that the scheduler ignores (the gating resource), or else pods
        that ask for it do not come here.
        """
        if self.record is None:
            return 0
        used, room, atelet = self.used, self.room, dict(self.atelet.requests)
        most = self.record.slots - self.pods - 1
        for name, amount in shape.counted:
            if name in room:
                most = min(most, (room[name] - used.get(name, 0) - atelet.get(name, 0)) // amount)
        return max(0, most)

    def ready_for(self, now: float) -> float:
        """The longest time that an atelet was Ready here without a break."""
        return max(self.ready_longest, now - self.ready_since)

    def never_serves(self, resource: str, patience: float, now: float) -> bool:
        """Whether an atelet was Ready here for longer than `patience`, and the Node has never advertised what atelet
        would serve: it has none of it."""
        return resource not in self.advertised and self.ready_for(now) > patience

    def current_atelets(self) -> list[AteletRecord]:
        """Atelet's pods here, without those of DaemonSets that fit this node no longer: these end soon."""
        wanted = self.atelet.daemonsets
        return [atelet for atelet in self.atelets.values() if atelet.daemonset in wanted]

    def review_atelets(self, now: float) -> None:
        """Bring up to date what follows from `atelets` and `atelet`."""
        there = self.current_atelets()
        self.atelet_ready = any(atelet.ready and not atelet.terminating for atelet in there)
        self.atelet_bound = any(atelet.bound for atelet in there)
        if self.atelet_ready and self.ready_since == inf:
            self.ready_since = now
        elif not self.atelet_ready and self.ready_since != inf:
            self.ready_longest, self.ready_since = self.ready_for(now), inf
        for atelet in there:
            if atelet.trouble == CRASH_LOOP:
                self.crashed = (atelet.uid, now)
        if self.atelet_ready or not (there or self.claim_count):
            self.unready_since = inf
        elif there and self.unready_since == inf:
            self.unready_since = now


def _count(to: dict[str, int], shape: Shape, times: int) -> None:
    """Add a pod's amounts. What becomes zero goes: pods may invent resources, and must not leave their names behind."""
    for name, amount in shape.counted:
        now = to.get(name, 0) + times * amount
        if now:
            to[name] = now
        else:
            to.pop(name, None)


class Pool(Struct, gc=False):
    """Everything known about one WorkerPool UID."""

    uid: str
    record: PoolRecord | None = None
    namespace: str = ""
    """Also that of a pool that is gone, or was never seen and whose pods are there."""
    gone: bool = False
    """Whether it was seen, and then seen to be gone. One that was never seen may merely be new."""
    nodes: dict[str, PoolOnNode] = field(default_factory=dict)
    unbound: int = 0
    """Live pods of it that no node has yet, by our watch."""
    unbound_placeholders: int = 0
    """Those of them that are placeholders."""
    pods: int = 0
    """Live pods of it, bound or not, placeholders included."""
    ateoms: int = 0
    """Those of them that are ateoms."""
    picks: int = 0
    waiting: dict[str, None] = field(default_factory=dict)
    """UIDs of unbound ateoms that a scheduler looks at, that were not picked a node yet and not refused lately;
    the one that has waited longest first."""
    raised: float = -inf
    """When `spec.replicas` was last seen to rise."""

    @property
    def pending(self) -> int:
        return len(self.waiting)

    @property
    def warm(self) -> bool:
        """Whether placeholders hold claims. Those of a pool that we do not know hold none: every client that may create
        pods can invent a pool's UID. Ateoms always hold theirs: their pool may be gone without them."""
        return self.record is not None and self.record.warm

    def awaited(self, now: float) -> int:
        """Ateoms that will want a node: those that wait, and for some seconds after `spec.replicas` rose those that are
        still to be made. What has not come by then may never come: a quota, a paused Deployment, a webhook."""
        coming = self.record.replicas - self.ateoms if self.record and now - self.raised < MAKING else 0
        return self.pending + max(0, coming)


class Attempt(Struct, gc=False):
    """What we last answered for a pod that is not bound yet."""

    pool: str
    node: str
    """Empty when nothing is in flight."""
    shape: Shape
    placeholder: bool
    version: str
    at: float
    avoid: tuple[str, ...] = ()
    """Nodes that failed this pod, the latest last."""
    nominated: bool = False
    """Whether the scheduler has not asked about the pod yet (`extender.filter.nominate`)."""
