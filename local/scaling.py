"""When to add a node and when to remove one: cluster-autoscaler's rules where ateplace can notice them (pure).

- A pod counts when the scheduler has called it unschedulable and its priority is not below the cutoff of -10. One with
  a nominated node waits for a preemption, and one that fits on a node that is there waits for its scheduler: neither
  makes the cluster grow.
- A node of the group is not needed when it is used by less than half, and every pod on it may be moved and fits
  elsewhere. DaemonSet pods do not count; pods below the cutoff are dropped; pods that say `safe-to-evict: "false"`
  stay, and so do pods with local storage or without a controller unless they say "true".

Source of the rules: cluster-autoscaler's FAQ.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ateplace.cluster.records import FINISHED
from ateplace.cluster.resources import PODS, amounts, requests
from ateplace.kube.objects import Node, PodSpec
from ateplace.local.api import Object

CUTOFF: Final = -10
HALF: Final = 0.5
GROUP_LABEL: Final = "local.ateplace/group"
TAINT: Final = "ToBeDeletedByClusterAutoscaler"
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"


@dataclass(frozen=True)
class Load:
    """A pod as this module sees it."""

    name: str
    """namespace/name."""
    uid: str
    node: str
    priority: int
    asks: Mapping[str, int]
    selector: Mapping[str, str] = field(default_factory=dict)
    daemon: bool = False
    controlled: bool = True
    local_storage: bool = False
    safe: str = ""
    unschedulable: bool = False
    nominated: bool = False

    def pinned(self) -> bool:
        """Whether it keeps its node from being removed."""
        return self.safe == "false" or (self.safe != "true" and (self.local_storage or not self.controlled))


@dataclass(frozen=True)
class Machine:
    """A node as this module sees it."""

    name: str
    room: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    group: bool = False
    closed: bool = False
    """Cordoned, tainted or not Ready yet."""
    leaving: bool = False


def load(item: Object) -> Load | None:
    """Read a pod; None when it has finished."""
    status, meta = item.get("status", {}), item["metadata"]
    if status.get("phase") in FINISHED:
        return None
    spec = msgspec.convert(item["spec"], PodSpec)
    owners = {owner["kind"] for owner in meta.get("ownerReferences", ()) if owner.get("controller")}
    scheduled = [one for one in status.get("conditions", ()) if one["type"] == "PodScheduled"]
    return Load(
        name=f"{meta['namespace']}/{meta['name']}",
        uid=meta["uid"],
        node=spec.node_name,
        priority=spec.priority or 0,
        asks={**dict(requests(spec)), PODS: 1},
        selector=spec.node_selector or {},
        daemon="DaemonSet" in owners,
        controlled=bool(owners),
        local_storage=any({"hostPath", "emptyDir"} & volume.keys() for volume in item["spec"].get("volumes", ())),
        safe=meta.get("annotations", {}).get(SAFE_TO_EVICT, ""),
        unschedulable=any(one["status"] == "False" and one.get("reason") == "Unschedulable" for one in scheduled),
        nominated=bool(status.get("nominatedNodeName")),
    )


def machine(item: Object) -> Machine:
    """Read a node."""
    node = msgspec.convert(item, Node)
    labels = node.metadata.labels or {}
    taints = (node.spec.taints or []) if node.spec else []
    return Machine(
        name=node.metadata.name,
        room=amounts(node.status.allocatable if node.status else None),
        labels=labels,
        group=GROUP_LABEL in labels,
        closed=bool(node.spec and node.spec.unschedulable)
        or any(taint.effect != "PreferNoSchedule" for taint in taints),
        leaving=any(one.key == TAINT for one in taints),
    )


class Rooms:
    """Free room on machines, filled first-fit."""

    def __init__(self, machines: Iterable[Machine], loads: Iterable[Load]) -> None:
        self._machines = {one.name: one for one in machines}
        self._free = {one.name: dict(one.room) for one in self._machines.values()}
        for one in loads:
            if one.node in self._free:
                self._take(one.node, one)

    def place(self, one: Load) -> str:
        """The first machine that takes it, or nothing."""
        for name, place in self._machines.items():
            fits = all(self._free[name].get(what, 0) >= amount for what, amount in one.asks.items())
            if fits and one.selector.items() <= place.labels.items():
                self._take(name, one)
                return name
        return ""

    def add(self, place: Machine) -> None:
        self._machines[place.name] = place
        self._free[place.name] = dict(place.room)

    def _take(self, name: str, one: Load) -> None:
        free = self._free[name]
        for what, amount in one.asks.items():
            free[what] = free.get(what, 0) - amount


def waiting(loads: Iterable[Load]) -> list[Load]:
    """Pods that could make the cluster grow."""
    return [one for one in loads if not one.node and one.unschedulable and not one.nominated and one.priority >= CUTOFF]


def grow(machines: Iterable[Machine], loads: Iterable[Load], ripe: Iterable[Load], template: Machine) -> int:
    """How many nodes to add for the pods that have waited long enough."""
    # A node that was added and is not Ready yet is as good as there.
    usable = [one for one in machines if not one.leaving and (one.group or not one.closed)]
    rooms = Rooms(usable, loads)
    added = 0
    for one in ripe:
        if rooms.place(one):
            continue
        fresh = Machine(f"new-{added}", template.room, template.labels)
        if Rooms([fresh], ()).place(one):
            added += 1
            rooms.add(fresh)
            rooms.place(one)
    return added


def shrink(machines: Iterable[Machine], loads: Iterable[Load]) -> list[str]:
    """Nodes of the group that are not needed, each judged as if the others stayed."""
    machines, loads = list(machines), list(loads)
    return [one.name for one in machines if one.group and not one.leaving and _removable(one, machines, loads)]


def _removable(place: Machine, machines: list[Machine], loads: list[Load]) -> bool:
    here = [one for one in loads if one.node == place.name and not one.daemon and one.priority >= CUTOFF]
    if any(one.pinned() for one in here) or _utilization(place, here) >= HALF:
        return False
    others = [one for one in machines if one.name != place.name and not one.closed and not one.leaving]
    rooms = Rooms(others, loads)
    return all(rooms.place(one) for one in here)


def _utilization(place: Machine, here: list[Load]) -> float:
    shares = [
        sum(one.asks.get(what, 0) for one in here) / place.room[what]
        for what in ("cpu", "memory")
        if place.room.get(what)
    ]
    return max(shares, default=0.0)


class Since:
    """Since when each key has been in a set that is given again and again."""

    def __init__(self) -> None:
        self._first: dict[str, float] = {}

    def ripe(self, keys: Iterable[str], now: float, seconds: float) -> set[str]:
        """Keys that have been in the set for so long."""
        self._first = {key: self._first.get(key, now) for key in keys}
        return {key for key, first in self._first.items() if now - first >= seconds}
