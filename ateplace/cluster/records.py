"""What we remember of each object: a few interned strings and numbers, never the object.

A project function turns a decoded object (`ateplace.kube.objects`) into its record, or None for "as if it were not
there". Records are immutable and acyclic, so they are kept out of the garbage collector; strings that many records
share (namespaces, pools, nodes, label keys) are interned. 5,000 ateoms cost about 2 MiB this way.

What one object can cost is bounded here, whatever its author wrote: resources by `ateplace.cluster.resources`, lists by
the limits below, names by the API server. A project function raises ValueError for an object beyond them; it is then
unreadable (`ateplace.kube.store`), as is one that makes it raise anything else. Times are the exception: a kubelet
writes them, and one that is none is only not known.
"""

import copy
from collections.abc import Iterable, Mapping, Sized
from datetime import datetime
from functools import partial
from sys import intern
from typing import Final

from msgspec import Struct, field, structs

from ateplace import names
from ateplace.cluster.pool_rules import NONE, PoolRules, Quota, pool_rules, quota
from ateplace.cluster.resources import (
    PODS,
    Amounts,
    Shape,
    amounts,
    default_requests,
    host_ports,
    largest,
    pack,
    requests,
    shape,
)
from ateplace.kube.objects import (
    Bare,
    Condition,
    DaemonSet,
    LimitRange,
    Metadata,
    Node,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    PodStatus,
    Taint,
    Toleration,
    WorkerPool,
)
from ateplace.label_selectors import LabelSelector

FINISHED = frozenset({"Succeeded", "Failed"})
TEMPLATE_LABEL: Final = "pod-template-hash"

LABELS: Final = 512
"""So many labels a Node may have, and so many taints."""
LABEL_BYTES: Final = 64 * 1024
FINALIZERS: Final = 64
"""So many a WorkerPool may have: the list is written back whole."""
TEXT: Final = 256
"""Characters of a text that is only shown, or should be short: more are cut off."""


class PodRecord(Struct, frozen=True, gc=False):
    """An ateom or a placeholder."""

    uid: str
    namespace: str
    name: str
    pool: str
    """The WorkerPool's name, from the label."""
    pool_uid: str
    """The WorkerPool's UID, from our label; empty on pods made before we were installed."""
    node: str
    """Empty while unbound."""
    shape: Shape
    placeholder: bool = False
    terminating: bool = False
    finished: bool = False
    """Succeeded or Failed: it takes no room and holds no claim."""
    preempted: bool = False
    """Whether a scheduler has said that it is about to delete it for another pod."""
    refused: bool = False
    """Unbound, and its scheduler has said that no node will do. It may have been answered one since."""
    gated: bool = False
    """Unbound, and no scheduler looks at it: it has scheduling gates."""
    template: str = ""
    """The hash of the pod template that it was made from, as its Deployment writes it."""
    nominated: str = ""
    """The node that its scheduler tries first."""
    waited: float | None = None
    """Seconds that an ateom was in the `wait-for-atelet` init container; None while that is not over."""

    @property
    def key(self) -> str:
        """What people call it."""
        return f"{self.namespace}/{self.name}"


class NodeRecord(Struct, frozen=True, gc=False):
    name: str
    uid: str
    version: int
    """Its resourceVersion: on one etcd these are ordered, so that events older than a write of ours are told apart."""
    labelled: bool
    claims: dict[str, str]
    """Pool UID to the value of its claim."""
    labels: dict[str, str]
    taints: tuple[tuple[str, str, str], ...]
    """(key, value, effect), without PreferNoSchedule."""
    allocatable: Amounts
    slots: int
    """How many pods it takes."""
    annotation_bytes: int
    deleting: bool


class AteletRecord(Struct, frozen=True, gc=False):
    uid: str
    name: str
    daemonset: str
    """The UID of its DaemonSet."""
    node: str
    """Where it is, or, while it is unbound, where its DaemonSet wants it."""
    bound: bool
    ready: bool
    trouble: str
    """Why it does not run (CrashLoopBackOff, OutOfcpu, Unschedulable…); empty when there is nothing to say."""
    terminating: bool
    requests: Amounts = ()
    """What it was admitted with."""


class PoolRecord(Struct, frozen=True, gc=False):
    uid: str
    namespace: str
    name: str
    version: int
    deleting: bool
    finalizers: tuple[str, ...]
    headroom: str
    """The annotation, or the label, as it was written: not necessarily a number."""
    warm: bool
    """Whether its placeholders hold claims."""
    replicas: int = 0
    """How many ateoms it should have."""
    rules: PoolRules = NONE


class AteletTemplate(Struct, frozen=True, gc=False):
    """What decides where one atelet DaemonSet can run, and the room it needs there."""

    uid: str
    name: str
    selector: tuple[tuple[str, str], ...]
    """nodeSelector without our own label."""
    gated: bool
    """Whether the nodeSelector has our label at all."""
    terms: tuple[NodeSelectorTerm, ...] | None
    """Required node affinity: any of these; None when there is none."""
    tolerations: tuple[Toleration, ...]
    requests: Amounts
    ports: frozenset[tuple[str, int]]
    spec: PodSpec = field(default_factory=PodSpec)
    """The parts of its pods that `requests` follows from."""


class NamespaceRecord(Struct, frozen=True, gc=False):
    """A Namespace that has a quota of ours: few have one."""

    name: str
    uid: str
    quota: Quota


class LimitRangeRecord(Struct, frozen=True, gc=False):
    uid: str
    defaults: tuple[tuple[str, str], ...]
    """What a container requests that says nothing."""


def pod_record(pod: Pod, pool_label: str = names.POOL_LABEL) -> PodRecord | None:
    """An ateom's or placeholder's record; None for any other pod, and for a mirror pod whatever its labels say."""
    meta = pod.metadata
    placeholder = meta.label(names.PLACEHOLDER_LABEL)
    pool = placeholder or meta.label(pool_label)
    if not pool or meta.is_mirror:
        return None
    status = pod.status
    conditions = (status.conditions or ()) if status else ()
    return PodRecord(
        uid=meta.uid,
        namespace=intern(meta.namespace),
        name=meta.name,
        pool=intern(pool),
        pool_uid=intern(meta.label(names.POOL_UID_LABEL)),
        node=intern(pod.spec.node_name),
        shape=shape(pod.spec, status),
        placeholder=bool(placeholder),
        terminating=meta.deletion_timestamp is not None,
        finished=status is not None and status.phase in FINISHED,
        preempted=any(one.type == "DisruptionTarget" and one.reason == "PreemptionByScheduler" for one in conditions),
        refused=not pod.spec.node_name and any(map(refusal, conditions)),
        gated=not pod.spec.node_name and bool(pod.spec.scheduling_gates),
        template=intern(meta.label(TEMPLATE_LABEL)),
        nominated=intern(status.nominated_node_name) if status else "",
        waited=None if placeholder or status is None else _waited(status),
    )


def refusal(condition: Condition) -> bool:
    """Whether a pod's condition says that its scheduler found no node."""
    return (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "Unschedulable")


def _waited(status: PodStatus) -> float | None:
    for one in status.init_container_statuses or ():
        ended = one.state.terminated if one.state else None
        if one.name == names.INIT_CONTAINER and ended and ended.started_at and ended.finished_at:
            try:
                started, finished = datetime.fromisoformat(ended.started_at), datetime.fromisoformat(ended.finished_at)
                return max(0.0, (finished - started).total_seconds())
            except (ValueError, TypeError, OverflowError):
                return None  # the API takes the years 0 and 10000, Python does not
    return None


def _bounded(what: str, found: Sized, most: int) -> None:
    if len(found) > most:
        raise ValueError(f"{len(found)} {what}: more than {most} are not accepted")


def node_record(node: Node) -> NodeRecord:
    meta = node.metadata
    annotations = meta.annotations or {}
    wire = amounts(node.status.allocatable if node.status else None)
    slots = wire.pop(PODS, 0)
    taints = node.spec.taints if node.spec and node.spec.taints else ()
    labels = meta.labels or {}
    _bounded("labels", labels, LABELS)
    _bounded("taints", taints, LABELS)
    if (size := sum(len(key) + len(value) for key, value in labels.items())) > LABEL_BYTES:
        raise ValueError(f"labels of {size} bytes: more than {LABEL_BYTES} are not accepted")
    return NodeRecord(
        name=intern(meta.name),
        uid=meta.uid,
        version=int(meta.resource_version or 0),
        labelled=meta.label(names.NODE_LABEL) == "true",
        claims={
            intern(pool): value for key, value in annotations.items() if (pool := names.claimed_pool(key)) is not None
        },
        labels={intern(key): intern(value) for key, value in labels.items()},
        taints=tuple(_taint(taint) for taint in taints if taint.effect != "PreferNoSchedule"),
        allocatable=pack(wire),
        slots=slots,
        annotation_bytes=sum(len(key) + len(value.encode()) for key, value in annotations.items()),
        deleting=meta.deletion_timestamp is not None,
    )


def _taint(taint: Taint) -> tuple[str, str, str]:
    return intern(taint.key), intern(taint.value), intern(taint.effect)


def atelet_record(pod: Pod) -> AteletRecord | None:
    """An atelet pod's record; None when it has finished or says of no node that it is for that one."""
    status = pod.status
    if status and status.phase in FINISHED:
        return None
    node = pod.spec.node_name or _wanted_node(pod)
    if not node:
        return None
    conditions = {condition.type: condition for condition in (status.conditions or ())} if status else {}
    trouble = next(
        (
            container.state.waiting.reason
            for container in ((status.container_statuses or ()) if status else ())
            if container.state and container.state.waiting and not container.ready
        ),
        "",
    )
    scheduled = conditions.get("PodScheduled")
    if not pod.spec.node_name and scheduled and scheduled.status == "False":
        trouble = scheduled.reason
    return AteletRecord(
        uid=pod.metadata.uid,
        name=pod.metadata.name,
        daemonset=next((intern(one.uid) for one in pod.metadata.owner_references or () if one.kind == "DaemonSet"), ""),
        node=intern(node),
        bound=bool(pod.spec.node_name),
        ready="Ready" in conditions and conditions["Ready"].status == "True",
        trouble=intern(trouble[:TEXT]),
        terminating=pod.metadata.deletion_timestamp is not None,
        requests=requests(pod.spec),
    )


def _wanted_node(pod: Pod) -> str:
    """The node that the DaemonSet controller made this pod for: it says so in the pod's affinity."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    for term in (required.node_selector_terms or ()) if required else ():
        for one in term.match_fields or ():
            if one.key == "metadata.name" and one.operator == "In" and one.values:
                return one.values[0]
    return ""


def _wish(meta: Metadata, key: str) -> str:
    """What a pool's annotation says, or else its label of the same key: those who clone pools copy labels only."""
    return meta.annotation(key) or meta.label(key)


def pool_record(pool: WorkerPool) -> PoolRecord:
    meta = pool.metadata
    _bounded("finalizers", meta.finalizers or (), FINALIZERS)
    return PoolRecord(
        uid=intern(meta.uid),
        namespace=intern(meta.namespace),
        name=intern(meta.name),
        version=int(meta.resource_version or 0),
        deleting=meta.deletion_timestamp is not None,
        finalizers=tuple(intern(finalizer) for finalizer in meta.finalizers or ()),
        headroom=_wish(meta, names.HEADROOM_ANNOTATION)[:TEXT],
        warm=_wish(meta, names.HEADROOM_WARM_ANNOTATION) != "false",
        replicas=pool.spec.replicas if pool.spec else 0,
        rules=pool_rules(partial(_wish, meta)),
    )


def namespace_record(namespace: Bare) -> NamespaceRecord | None:
    """None for one without a quota. Annotations only: whoever may label a Namespace may often not annotate it."""
    meta = namespace.metadata
    found = quota(meta.annotation)
    return NamespaceRecord(intern(meta.name), meta.uid, found) if found else None


def live_atelet_template(daemonset: DaemonSet, selector: LabelSelector) -> AteletTemplate | None:
    """None for a DaemonSet of other pods, and for one that is being deleted: its controller makes no more pods for it.

    Its own labels do not matter: Agent Substrate has not always given it those of its pods.
    """
    meta = daemonset.spec.template.metadata
    if daemonset.metadata.deletion_timestamp is not None or not selector.matches(meta.labels if meta else None):
        return None
    return atelet_template(daemonset)


def atelet_template(daemonset: DaemonSet) -> AteletTemplate:
    spec = daemonset.spec.template.spec
    default_requests(spec)
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    selector = spec.node_selector or {}
    return AteletTemplate(
        uid=daemonset.metadata.uid,
        name=daemonset.metadata.name,
        selector=tuple(sorted((key, value) for key, value in selector.items() if key != names.NODE_LABEL)),
        gated=names.NODE_LABEL in selector,
        terms=tuple(required.node_selector_terms or ()) if required else None,
        tolerations=tuple(spec.tolerations or ()),
        requests=requests(spec),
        ports=host_ports(spec),
        spec=PodSpec(
            containers=spec.containers,
            init_containers=spec.init_containers,
            resources=spec.resources,
            overhead=spec.overhead,
        ),
    )


def limit_range_record(limit_range: LimitRange) -> LimitRangeRecord | None:
    """None for one that gives containers no requests."""
    found: dict[str, str] = {}
    for item in (limit_range.spec.limits or ()) if limit_range.spec else ():
        if item.type == "Container":
            found |= item.default_request or {}
    _bounded("default requests", found, LABELS)
    return LimitRangeRecord(limit_range.metadata.uid, tuple(sorted(found.items()))) if found else None


def admitted(
    template: AteletTemplate, ranges: Iterable[LimitRangeRecord], live: Mapping[str, Amounts]
) -> AteletTemplate:
    """The template with the room that its pods will take: what the API server makes of them by the LimitRanges of their
    namespace, or what pods of it have that are there (`live`, by the DaemonSet's UID), whichever is more. Where several
    LimitRanges speak of one resource, the API server says not which counts: the largest does here."""
    counted = [template.requests, live.get(template.uid, ())]
    for one in ranges:
        spec = copy.deepcopy(template.spec)
        default_requests(spec, dict(one.defaults))
        counted.append(requests(spec))
    return structs.replace(template, requests=largest(counted))
