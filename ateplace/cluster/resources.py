"""What a pod asks for and what a node has, as integers, counted as kube-scheduler counts them.

CPU is in thousandths of a core, everything else in whole units (bytes for memory), both rounded up as the scheduler
rounds them. A pod has two counts: what it *requests* decides whether it fits; what it *counts for* (100m and 200 MiB
for each container that says nothing) is what kube-scheduler uses when it scores, and what we pack by.

Source: k8s.io/component-helpers/resource/helpers.go (PodRequests) and pkg/scheduler/framework/types.go
(calculateResource), v1.36.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from ateplace.kube.objects import Container, PodSpec, Resources
from ateplace.quantities import quantity

Amounts = tuple[tuple[str, int], ...]
"""Sorted pairs of resource and amount; zero amounts are left out, so that equal means equal."""

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"
DEFAULTS: Final = {CPU: 100, MEMORY: 200 * 1024 * 1024}
"""What kube-scheduler counts, when it scores, for a container that requests nothing."""

SHAPES: Final = 4096
"""So many are remembered by what pods say."""


class Shape(Struct, frozen=True, gc=False):
    """The two counts of a pod. Pods of one pool share one Shape."""

    requests: Amounts
    counted: Amounts


_shapes: dict[tuple[object, ...], Shape] = {}


def amounts(wire: Mapping[str, str] | None) -> dict[str, int]:
    """A Kubernetes ResourceList as integers."""
    if not wire:
        return {}
    return {name: quantity(text, 3 if name == CPU else 0) for name, text in wire.items()}


def pack(values: Mapping[str, int]) -> Amounts:
    return _same(tuple(sorted((name, amount) for name, amount in values.items() if amount)))


def shape(spec: PodSpec) -> Shape:
    """Both counts of a pod. The same object for equal pods: thousands of them cost one, and are counted once."""
    containers = tuple(map(_said, spec.containers or ())), tuple(map(_said, spec.init_containers or ()))
    said = (*containers, _items(spec.resources.requests if spec.resources else None), _items(spec.overhead))
    found = _shapes.get(said)
    if found is None:
        if len(_shapes) >= SHAPES:
            _shapes.clear()
        found = _shapes[said] = _count(spec)
    return found


def _said(container: Container) -> tuple[object, ...]:
    return container.restart_policy, _items(container.resources.requests if container.resources else None)


def _items(wire: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(wire.items()) if wire else ()


def _count(spec: PodSpec) -> Shape:
    requests = _total(spec, {})
    level = _pod_level(spec)
    defaults = {name: amount for name, amount in DEFAULTS.items() if not (level and requests.get(name))}
    return _shape(pack(requests), pack(_total(spec, defaults)))


def requests(spec: PodSpec) -> Amounts:
    """What the pod requests: the count that decides whether it fits."""
    return pack(_total(spec, {}))


def default_requests(spec: PodSpec) -> None:
    """A limit without a request is a request of as much: the API server says so on pods, but not on templates."""
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        asked = container.resources
        if asked and asked.limits:
            container.resources = Resources(requests={**asked.limits, **(asked.requests or {})}, limits=asked.limits)


def host_ports(spec: PodSpec) -> frozenset[tuple[str, int]]:
    """The (protocol, port) pairs that the pod takes on its node's addresses."""
    return frozenset(
        (port.protocol, port.host_port)
        for container in (*(spec.containers or ()), *(spec.init_containers or ()))
        for port in container.ports or ()
        if port.host_port
    )


def _total(spec: PodSpec, defaults: Mapping[str, int]) -> dict[str, int]:
    total: dict[str, int] = {}
    for container in spec.containers or ():
        _add(total, _container(container, defaults))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.init_containers or ():
        own = _container(container, defaults)
        if container.restart_policy == "Always":
            _add(total, own)
            _add(sidecars, own)
            during: Mapping[str, int] = sidecars
        else:
            _add(own, sidecars)
            during = own
        _most(peak, during)
    _most(total, peak)
    total.update(_pod_level(spec))
    _add(total, amounts(spec.overhead))
    return total


def _container(container: Container, defaults: Mapping[str, int]) -> dict[str, int]:
    own = amounts(container.resources.requests if container.resources else None)
    for name, amount in defaults.items():
        own.setdefault(name, amount)
    return own


def _pod_level(spec: PodSpec) -> dict[str, int]:
    own = amounts(spec.resources.requests if spec.resources else None)
    return {name: amount for name, amount in own.items() if name in DEFAULTS or name.startswith("hugepages-")}


def _add(to: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        to[name] = to.get(name, 0) + amount


def _most(to: dict[str, int], other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        if amount > to.get(name, 0):
            to[name] = amount


def total(parts: Iterable[Amounts]) -> dict[str, int]:
    """The sum of several pods' amounts."""
    result: dict[str, int] = {}
    for part in parts:
        _add(result, dict(part))
    return result


@functools.lru_cache(maxsize=4096)
def _same(value: Amounts) -> Amounts:
    return value


@functools.lru_cache(maxsize=4096)
def _shape(requested: Amounts, counted: Amounts) -> Shape:
    return Shape(requested, counted)
