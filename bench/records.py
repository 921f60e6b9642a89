"""Builders of records, for benchmarks and tests: `node()`, `pod()`, `pool()`, `atelet()`, `template()`."""

from collections.abc import Iterable

from ateplace.cluster.records import AteletRecord, AteletTemplate, NodeRecord, PodRecord, PoolRecord
from ateplace.cluster.resources import Amounts, Shape
from ateplace.kube.objects import Toleration

MIB = 1024 * 1024
CORE = (("cpu", 1000), ("memory", 1024 * MIB))
SMALL = Shape(CORE, CORE)


def template(
    cpu: int = 0,
    memory: int = 0,
    *,
    uid: str = "ds",
    selector: tuple[tuple[str, str], ...] = (),
    tolerations: tuple[Toleration, ...] = (),
    ports: Iterable[int] = (8085,),
    gated: bool = True,
) -> AteletTemplate:
    amounts: Amounts = tuple((name, amount) for name, amount in (("cpu", cpu), ("memory", memory)) if amount)
    return AteletTemplate(
        uid=uid,
        name=uid,
        selector=selector,
        gated=gated,
        terms=None,
        tolerations=tolerations,
        requests=amounts,
        ports=frozenset(("TCP", port) for port in ports),
    )


def node(
    name: str = "n1",
    *claims: str,
    uid: str = "",
    version: int = 1,
    cpu: int = 8000,
    slots: int = 110,
    annotation_bytes: int = 0,
    deleting: bool = False,
    labels: dict[str, str] | None = None,
    taints: tuple[tuple[str, str, str], ...] = (),
) -> NodeRecord:
    return NodeRecord(
        name=name,
        uid=uid or f"{name}-uid",
        version=version,
        labelled=bool(claims),
        claims=dict.fromkeys(claims, "then"),
        labels=labels or {},
        taints=taints,
        allocatable=(("cpu", cpu), ("memory", 32 * 1024 * MIB)),
        slots=slots,
        annotation_bytes=annotation_bytes,
        deleting=deleting,
    )


def pod(
    uid: str = "p1", on: str = "", pool_uid: str = "A", *, shape: Shape = SMALL, placeholder: bool = False
) -> PodRecord:
    return PodRecord(
        uid=uid,
        namespace="ns",
        name=uid,
        pool="pool",
        pool_uid=pool_uid,
        node=on,
        shape=shape,
        placeholder=placeholder,
    )


def pool(uid: str = "A", *, warm: bool = True, replicas: int = 0) -> PoolRecord:
    return PoolRecord(
        uid=uid,
        namespace="ns",
        name=uid.lower(),
        version=1,
        deleting=False,
        finalizers=(),
        headroom="",
        warm=warm,
        replicas=replicas,
    )


def atelet(
    on: str, *, ready: bool = True, bound: bool = True, trouble: str = "", daemonset: str = "ds", uid: str = ""
) -> AteletRecord:
    return AteletRecord(
        uid=uid or f"atelet-{on}",
        name=uid or f"atelet-{on}",
        daemonset=daemonset,
        node=on,
        bound=bound,
        ready=ready,
        trouble=trouble,
        terminating=False,
    )
