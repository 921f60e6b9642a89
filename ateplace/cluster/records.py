"""Records: what we keep of each object, a few interned strings and numbers and never the object itself.

A project function turns a decoded object (`ateplace.kube.objects`) into its record, or into None to ignore it. Records
are immutable and acyclic, so the garbage collector does not track them; strings that many records share (namespaces,
pools, nodes, label keys) are interned. 5,000 ateoms take about 2 MiB.

The size of a record is bounded, whatever the author of its object wrote: resources by `ateplace.cluster.resources`,
lists by the limits below, names by the API server. If a project function raises, be it ValueError for an object above
these limits or anything else, the object counts as unreadable (`ateplace.kube.store`). A malformed timestamp, which
kubelets write, does not make a pod unreadable: it is ignored.
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
"""Maximum number of labels of a Node, and of its taints."""
LABEL_BYTES: Final = 64 * 1024
FINALIZERS: Final = 64
"""Maximum number of finalizers of a WorkerPool: we write the whole list back."""
TEXT: Final = 256
"""Maximum length of text that is only displayed, or should be short; longer text is cut off."""


class PodRecord(Struct, frozen=True, gc=False):
    """An ateom or a placeholder."""

    uid: str
    namespace: str
    name: str
    pool: str
    """The WorkerPool's name, from the label."""
    pool_uid: str
    """The WorkerPool's UID, from our label; empty on pods older than our webhook."""
    node: str
    """Empty while unbound."""
    shape: Shape
    placeholder: bool = False
    terminating: bool = False
    finished: bool = False
    """Succeeded or Failed: it takes up no resources and holds no claim."""
    preempted: bool = False
    """Whether a scheduler is about to delete it in favour of another pod (condition DisruptionTarget)."""
    refused: bool = False
    """Unbound, and last reported Unschedulable by its scheduler. Filter may have answered a node since."""
    gated: bool = False
    """Unbound, with scheduling gates: schedulers ignore it."""
    template: str = ""
    """Its label `pod-template-hash`."""
    nominated: str = ""
    """`status.nominatedNodeName`: the node that its scheduler tries first."""
    waited: float | None = None
    """Seconds that an ateom spent in the `wait-for-atelet` init container; None until that has ended."""

    @property
    def key(self) -> str:
        """`namespace/name`, for messages."""
        return f"{self.namespace}/{self.name}"


class NodeRecord(Struct, frozen=True, gc=False):
    name: str
    uid: str
    version: int
    """Its resourceVersion. These are ordered (one etcd), so an event older than our last write can be recognized."""
    labelled: bool
    claims: dict[str, str]
    """Claim values by pool UID."""
    labels: dict[str, str]
    taints: tuple[tuple[str, str, str], ...]
    """(key, value, effect), without PreferNoSchedule."""
    allocatable: Amounts
    slots: int
    """Allocatable pods."""
    annotation_bytes: int
    deleting: bool


class AteletRecord(Struct, frozen=True, gc=False):
    uid: str
    name: str
    daemonset: str
    """The UID of its DaemonSet."""
    node: str
    """The node that it is bound to or, while unbound, that its DaemonSet created it for."""
    bound: bool
    ready: bool
    trouble: str
    """Why it does not run (CrashLoopBackOff, OutOfcpu, Unschedulable…); empty if no reason is reported."""
    terminating: bool
    requests: Amounts = ()
    """As admitted."""


class PoolRecord(Struct, frozen=True, gc=False):
    uid: str
    namespace: str
    name: str
    version: int
    deleting: bool
    finalizers: tuple[str, ...]
    headroom: str
    """The annotation or label, verbatim: not necessarily a number."""
    warm: bool
    """Whether its placeholders hold claims."""
    replicas: int = 0
    """Desired number of ateoms."""
    rules: PoolRules = NONE


class AteletTemplate(Struct, frozen=True, gc=False):
    """Where the pods of one atelet DaemonSet can run, and the resources that they need there."""

    uid: str
    name: str
    selector: tuple[tuple[str, str], ...]
    """nodeSelector without our label."""
    gated: bool
    """Whether the nodeSelector contains our label."""
    terms: tuple[NodeSelectorTerm, ...] | None
    """Required node affinity, of which one term must match; None if there is none."""
    tolerations: tuple[Toleration, ...]
    requests: Amounts
    ports: frozenset[tuple[str, int]]
    spec: PodSpec = field(default_factory=PodSpec)
    """The parts of the pod spec that `requests` is computed from."""


class NamespaceRecord(Struct, frozen=True, gc=False):
    """A Namespace with an ateplace quota; others have no record."""

    name: str
    uid: str
    quota: Quota


class LimitRangeRecord(Struct, frozen=True, gc=False):
    uid: str
    defaults: tuple[tuple[str, str], ...]
    """`defaultRequest` of containers."""


def pod_record(pod: Pod, pool_label: str = names.POOL_LABEL) -> PodRecord | None:
    """The record of an ateom or placeholder; None for any other pod, and for mirror pods whatever their labels."""
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
    """Whether this condition of a pod says that its scheduler found no node."""
    return (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "Unschedulable")


def _waited(status: PodStatus) -> float | None:
    for one in status.init_container_statuses or ():
        ended = one.state.terminated if one.state else None
        if one.name == names.INIT_CONTAINER and ended and ended.started_at and ended.finished_at:
            try:
                started, finished = datetime.fromisoformat(ended.started_at), datetime.fromisoformat(ended.finished_at)
                return max(0.0, (finished - started).total_seconds())
            except (ValueError, TypeError, OverflowError):
                return None  # the API accepts the years 0 and 10000, Python does not
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
    """The record of an atelet pod; None if it has finished, or is for no particular node."""
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
    """The node that the DaemonSet controller created this pod for, from the pod's node affinity."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    for term in (required.node_selector_terms or ()) if required else ():
        for one in term.match_fields or ():
            if one.key == "metadata.name" and one.operator == "In" and one.values:
                return one.values[0]
    return ""


def _wish(meta: Metadata, key: str) -> str:
    """A pool's annotation, or else its label of the same key: whatever clones pools may copy labels only."""
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
    """None without a quota. Only annotations count: permission to set a Namespace's labels is given out more widely."""
    meta = namespace.metadata
    found = quota(meta.annotation)
    return NamespaceRecord(intern(meta.name), meta.uid, found) if found else None


def live_atelet_template(daemonset: DaemonSet, selector: LabelSelector) -> AteletTemplate | None:
    """None if the pods of the DaemonSet do not match, and if it is being deleted: no more pods are created then.

    The labels of the DaemonSet itself do not count: not every version of Agent Substrate sets those of its pods there.
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
    """None if it has no default requests for containers."""
    found: dict[str, str] = {}
    for item in (limit_range.spec.limits or ()) if limit_range.spec else ():
        if item.type == "Container":
            found |= item.default_request or {}
    _bounded("default requests", found, LABELS)
    return LimitRangeRecord(limit_range.metadata.uid, tuple(sorted(found.items()))) if found else None


def admitted(
    template: AteletTemplate, ranges: Iterable[LimitRangeRecord], live: Mapping[str, Amounts]
) -> AteletTemplate:
    """The template with what its pods request after admission: its own requests with the namespace's LimitRanges
    applied, or those of its existing pods (`live`, by the DaemonSet's UID), whichever are larger. If several
    LimitRanges have a default for one resource, the API server may apply any of them; we assume the largest."""
    counted = [template.requests, live.get(template.uid, ())]
    for one in ranges:
        spec = copy.deepcopy(template.spec)
        default_requests(spec, dict(one.defaults))
        counted.append(requests(spec))
    return structs.replace(template, requests=largest(counted))
