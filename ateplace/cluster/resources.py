"""What a pod asks for and what a node has, as integers, counted as kube-scheduler counts them.

CPU is in thousandths of a core, everything else in whole units (bytes for memory), both rounded up as the scheduler
rounds them. A pod has two counts: what it *requests* decides whether it fits; what it *counts for* (100m and 200 MiB
for each container that says nothing) is what kube-scheduler uses when it scores, and what we pack by.

A pod may name as many resources as fit into an object: 22,000 were tried. Of each pod and node at most `NAMES` are
remembered, CPU and memory first. Nothing becomes unsafe by that: kube-scheduler itself checks that a pod fits. We pack
less well by a resource that we have not counted, and do not keep it free for atelet.

Source: k8s.io/component-helpers/resource/helpers.go (PodRequests), pkg/scheduler/framework/types.go
(calculateResource), pkg/apis/core/v1/defaults.go (SetDefaults_Pod) and plugin/pkg/admission/limitranger, v1.36.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import Final, Generic, TypeVar

from msgspec import Struct

from ateplace.kube import codec
from ateplace.kube.objects import Container, PodSpec, PodStatus, Resources
from ateplace.quantities import quantity

Amounts = tuple[tuple[str, int], ...]
"""Sorted pairs of resource and amount; zero amounts are left out, so that equal means equal."""
K = TypeVar("K")
V = TypeVar("V")

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"
HUGE: Final = "hugepages-"
ALWAYS: Final = "Always"
DEFAULTS: Final = {CPU: 100, MEMORY: 200 * 1024 * 1024}
"""What kube-scheduler counts, when it scores, for a container that requests nothing."""

NAMES: Final = codec.RESOURCES
"""So many resources of one pod or node are remembered."""
FIRST: Final = tuple(name.decode() for name in codec.FIRST)
"""These of them in any case; then by name."""
CACHE_BYTES: Final = 1024 * 1024
"""About so much memory each cache of this module takes at most."""
ENTRY_BYTES: Final = 128
"""What a pair of a name and an amount takes beside the name's characters."""


class Shape(Struct, frozen=True, gc=False):
    """The two counts of a pod. Pods of one pool share one Shape."""

    requests: Amounts
    counted: Amounts


class Cache(Generic[K, V]):
    """Remembers until the entries take too much memory together, then starts anew. One that takes more than a
    sixteenth alone is not remembered: pods of ordinary size are what it is for."""

    def __init__(self, most: int = CACHE_BYTES) -> None:
        self._most = most
        self._held = 0
        self._entries: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        return self._entries.get(key)

    def put(self, key: K, value: V, size: int) -> None:
        """`size`: about how many bytes key and value take."""
        if size > self._most // 16:
            return
        if self._held + size > self._most:
            self._entries.clear()
            self._held = 0
        self._entries[key] = value
        self._held += size


Said = tuple[tuple[object, ...], ...]
_shapes: Cache[Said, Shape] = Cache()
_amounts: Cache[Amounts, Amounts] = Cache()
_equal: Cache[Shape, Shape] = Cache()


def amounts(wire: Mapping[str, str] | None) -> dict[str, int]:
    """A Kubernetes ResourceList as integers, of at most `NAMES` resources; ValueError when it is none."""
    if not wire:
        return {}
    return {name: quantity(text, 3 if name == CPU else 0) for name, text in _few(wire).items()}


def _few(values: Mapping[str, V]) -> Mapping[str, V]:
    """The resources that are remembered."""
    if len(values) <= NAMES:
        return values
    first = [name for name in FIRST if name in values]
    rest = heapq.nsmallest(NAMES - len(first), (name for name in values if name not in FIRST))
    return {name: values[name] for name in (*first, *rest)}


def pack(values: Mapping[str, int]) -> Amounts:
    packed = tuple(sorted((name, amount) for name, amount in _few(values).items() if amount))
    found = _amounts.get(packed)
    if found is None:
        _amounts.put(packed, packed, _size(packed))
    return packed if found is None else found


def _size(packed: Amounts) -> int:
    return ENTRY_BYTES + sum(ENTRY_BYTES + len(name) for name, _ in packed)


def shape(spec: PodSpec, status: PodStatus | None = None) -> Shape:
    """Both counts of a pod; ValueError when it says what is none. The same object for equal pods: thousands of them
    cost one, and are counted once."""
    granted = _granted(spec, status)
    said: Said = (
        *(_said(container, granted) for container in spec.containers or ()),
        (),
        *(_said(container, granted) for container in spec.init_containers or ()),
        (_items(spec.resources.requests if spec.resources else None), granted.get(POD)),
        (_items(spec.overhead),),
    )
    found = _shapes.get(said)
    if found is None:
        found = _count(spec, granted)
        _shapes.put(said, found, _said_size(spec))
    return found


def _said(container: Container, granted: "Granted") -> tuple[object, ...]:
    requested = _items(container.resources.requests if container.resources else None)
    return container.restart_policy, requested, granted.get(container.name) if granted else None


def _items(wire: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(wire.items()) if wire else ()


def _said_size(spec: PodSpec) -> int:
    lists = [spec.overhead, spec.resources.requests if spec.resources else None]
    lists += [
        one.resources.requests for one in (*(spec.containers or ()), *(spec.init_containers or ())) if one.resources
    ]
    names = sum(ENTRY_BYTES + len(name) for each in lists for name in each or ())
    return 2 * names + ENTRY_BYTES * (1 + len(spec.containers or ()) + len(spec.init_containers or ()))


def _count(spec: PodSpec, granted: "Granted") -> Shape:
    requests = _total(spec, {}, granted)
    level = _pod_level(spec, granted)
    defaults = {name: amount for name, amount in DEFAULTS.items() if not (level and requests.get(name))}
    requested, counted = pack(requests), pack(_total(spec, defaults, granted))
    made = Shape(requested, requested if counted == requested else counted)
    found = _equal.get(made)
    if found is None:
        _equal.put(made, made, _size(requested) + _size(counted))
    return made if found is None else found


def requests(spec: PodSpec, status: PodStatus | None = None) -> Amounts:
    """What the pod requests: the count that decides whether it fits."""
    return pack(_total(spec, {}, _granted(spec, status)))


# A resize in place. Until it is done a pod counts for the most of what it asks for, was promised and has; what it asks
# for does not count once the kubelet has called that infeasible.

Granted = dict[str, Amounts]
"""What containers count for, by name, where that is not what they ask for."""
POD: Final = ""
"""No container has this name: the pod as a whole."""


def _granted(spec: PodSpec, status: PodStatus | None) -> Granted:
    granted: Granted = {}
    if status is None:
        return granted
    infeasible = any(one.type == "PodResizePending" and one.reason == "Infeasible" for one in status.conditions or ())
    has = {one.name: one for one in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))}
    lasting = (*(spec.containers or ()), *(one for one in spec.init_containers or () if one.restart_policy == ALWAYS))
    for container in lasting:
        found = has.get(container.name)
        if found and found.resources:
            asked = (container.resources.requests if container.resources else None) or {}
            _grant(granted, container.name, asked, found.resources, found.allocated_resources, infeasible=infeasible)
    if status.resources and spec.resources and spec.resources.requests:
        asked = spec.resources.requests
        _grant(granted, POD, asked, status.resources, status.allocated_resources, infeasible=infeasible)
    return granted


def _grant(
    granted: Granted,
    name: str,
    asked: Mapping[str, str],
    has: Resources,
    promised: Mapping[str, str] | None,
    *,
    infeasible: bool,
) -> None:
    if (has.requests or {}) == asked and (not promised or promised == asked):
        return  # as nearly always
    most: dict[str, int] = {}
    for part in (has.requests, promised, None if infeasible else asked):
        for resource, amount in amounts(part).items():
            most[resource] = max(amount, most.get(resource, amount))
    granted[name] = tuple(sorted(most.items()))


# What the API server makes of a pod that is created from a template.


def default_requests(spec: PodSpec, defaults: Mapping[str, str] | None = None) -> None:
    """Fill in what a pod made from this template would have: the API server says so on pods, but not on templates.

    A limit without a request is a request of as much, for a container and for the pod as a whole (unless its containers
    request some of it); a port of a pod in its node's network is a host port. `defaults` is what LimitRanges of the
    namespace let containers request that say nothing (`LimitRange.spec.limits[].defaultRequest`).
    """
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        asked = container.resources
        if asked and asked.limits:
            asked.requests = {**asked.limits, **(asked.requests or {})}
        for port in container.ports or () if spec.host_network else ():
            port.host_port = port.host_port or port.container_port
    level = spec.resources
    if level and level.limits:
        summed = _containers_total(spec, {}, {})
        asked_of_containers = {
            name: f"{summed[name]}{'m' if name == CPU else ''}" for name in DEFAULTS if name in summed
        }
        level.requests = {**level.limits, **asked_of_containers, **(level.requests or {})}
    for container in (*(spec.containers or ()), *(spec.init_containers or ())) if defaults else ():
        asked = container.resources = container.resources or Resources()
        asked.requests = {**(defaults or {}), **(asked.requests or {})}


def host_ports(spec: PodSpec) -> frozenset[tuple[str, int]]:
    """The (protocol, port) pairs that the pod takes on its node's addresses."""
    return frozenset(
        (port.protocol, port.host_port)
        for container in (*(spec.containers or ()), *(spec.init_containers or ()))
        for port in container.ports or ()
        if port.host_port
    )


# The sums.


def _total(spec: PodSpec, defaults: Mapping[str, int], granted: Granted) -> dict[str, int]:
    total = _containers_total(spec, defaults, granted)
    total.update(_pod_level(spec, granted))
    _add(total, amounts(spec.overhead))
    return total


def _containers_total(spec: PodSpec, defaults: Mapping[str, int], granted: Granted) -> dict[str, int]:
    total: dict[str, int] = {}
    for container in spec.containers or ():
        _add(total, _container(container, defaults, granted))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.init_containers or ():
        if container.restart_policy == ALWAYS:
            own = _container(container, defaults, granted)
            _add(total, own)
            _add(sidecars, own)
            during: Mapping[str, int] = sidecars
        else:
            own = _container(container, defaults, {})
            _add(own, sidecars)
            during = own
        _most(peak, during)
    _most(total, peak)
    return total


def _container(container: Container, defaults: Mapping[str, int], granted: Granted) -> dict[str, int]:
    if granted and container.name in granted:
        own = dict(granted[container.name])
    else:
        own = amounts(container.resources.requests if container.resources else None)
    for name, amount in defaults.items():
        own.setdefault(name, amount)
    return own


def _pod_level(spec: PodSpec, granted: Granted) -> dict[str, int]:
    own = amounts(spec.resources.requests if spec.resources else None)
    level = {name: amount for name, amount in own.items() if name in DEFAULTS or name.startswith(HUGE)}
    if POD in granted:
        now = dict(granted[POD])
        return {name: now.get(name, 0) for name in level}
    return level


def _add(to: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        to[name] = to.get(name, 0) + amount


def _most(to: dict[str, int], other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        if amount > to.get(name, 0):
            to[name] = amount


def largest(parts: Iterable[Amounts]) -> Amounts:
    """The most of each resource that any of them has."""
    result: dict[str, int] = {}
    for part in parts:
        _most(result, dict(part))
    return pack(result)


def total(parts: Iterable[Amounts]) -> dict[str, int]:
    """The sum of several pods' amounts."""
    result: dict[str, int] = {}
    for part in parts:
        _add(result, dict(part))
    return result
