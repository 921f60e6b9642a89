"""The parts of Kubernetes objects that ateplace reads, as msgspec structs.

Only fields that some role uses are here: everything else is skipped by the decoder and never becomes a Python
object. Fields follow the API's names in snake case. Absent and null are the same to us, as they are to Kubernetes,
so a field that may arrive as `null` is `X | None`.

Reference: https://kubernetes.io/docs/reference/kubernetes-api/ (v1.36).
"""

from typing import Final, TypeVar

from msgspec import Struct, field

T = TypeVar("T")

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"


class OwnerReference(Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None

    def is_a(self, group: str, kind: str) -> bool:
        """Whether it names an object of this kind: other groups may have a kind of the same name."""
        return self.kind == kind and self.api_version.rpartition("/")[0] == group


class Metadata(Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[OwnerReference] | None = None

    def label(self, key: str) -> str:
        return self.labels.get(key, "") if self.labels else ""

    def annotation(self, key: str) -> str:
        return self.annotations.get(key, "") if self.annotations else ""

    @property
    def is_mirror(self) -> bool:
        """Whether this is a mirror pod: a kubelet's report of a static pod. Admission webhooks do not see them, and
        every client that may create pods can make one, so its labels count for nothing."""
        return self.annotations is not None and MIRROR_ANNOTATION in self.annotations


class Resources(Struct, rename="camel"):
    requests: dict[str, str] | None = None
    limits: dict[str, str] | None = None


class Port(Struct, rename="camel"):
    container_port: int = 0
    host_port: int = 0
    protocol: str = "TCP"


class Container(Struct, rename="camel"):
    name: str = ""
    image: str = ""
    restart_policy: str | None = None
    resources: Resources | None = None
    ports: list[Port] | None = None


class Toleration(Struct, rename="camel"):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Taint(Struct, rename="camel"):
    key: str = ""
    value: str = ""
    effect: str = ""


class Requirement(Struct, rename="camel"):
    key: str
    operator: str
    values: list[str] | None = None


class NodeSelectorTerm(Struct, rename="camel"):
    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None


class NodeSelector(Struct, rename="camel"):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class NodeAffinity(Struct, rename="camel"):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[object] | None = None


class PodAffinity(Struct, rename="camel"):
    required_during_scheduling_ignored_during_execution: list[object] | None = None
    preferred_during_scheduling_ignored_during_execution: list[object] | None = None


class Affinity(Struct, rename="camel"):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class SpreadConstraint(Struct, rename="camel"):
    when_unsatisfiable: str = ""


class PodSpec(Struct, rename="camel"):
    node_name: str = ""
    scheduler_name: str = ""
    host_network: bool = False
    scheduling_gates: list[object] | None = None
    priority: int | None = None
    priority_class_name: str = ""
    node_selector: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None
    affinity: Affinity | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resources: Resources | None = None
    overhead: dict[str, str] | None = None


class Condition(Struct, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Waiting(Struct, rename="camel"):
    reason: str = ""
    message: str = ""


class Terminated(Struct, rename="camel"):
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(Struct, rename="camel"):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Struct, rename="camel"):
    name: str = ""
    ready: bool = False
    state: ContainerState | None = None
    resources: Resources | None = None
    """What the container has now; it lags behind the spec while a resize in place waits."""
    allocated_resources: dict[str, str] | None = None


class PodStatus(Struct, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resources: Resources | None = None
    allocated_resources: dict[str, str] | None = None


class Pod(Struct, rename="camel"):
    metadata: Metadata
    spec: PodSpec
    status: PodStatus | None = None


class NodeSpec(Struct, rename="camel"):
    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeStatus(Struct, rename="camel"):
    allocatable: dict[str, str] | None = None


class Node(Struct, rename="camel"):
    metadata: Metadata
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class PodTemplate(Struct, rename="camel"):
    spec: PodSpec
    metadata: Metadata | None = None


class ServiceSpec(Struct):
    selector: dict[str, str] | None = None
    cluster_ip: str = field(default="", name="clusterIP")


class Service(Struct):
    metadata: Metadata
    spec: ServiceSpec


class DeploymentSpec(Struct, rename="camel"):
    template: PodTemplate
    replicas: int = 1


class DeploymentStatus(Struct, rename="camel"):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0


class Deployment(Struct, rename="camel"):
    metadata: Metadata
    spec: DeploymentSpec
    status: DeploymentStatus | None = None

    def available(self) -> int:
        return self.status.available_replicas if self.status else 0

    def rolled_out(self) -> bool:
        """Whether all its pods, and no others, are of the newest template and up."""
        status = self.status or DeploymentStatus()
        counts = {status.replicas, status.updated_replicas, status.available_replicas}
        return status.observed_generation >= self.metadata.generation and counts == {self.spec.replicas}


class DaemonSetSpec(Struct, rename="camel"):
    template: PodTemplate


class DaemonSetStatus(Struct, rename="camel"):
    observed_generation: int = 0
    desired_number_scheduled: int = 0
    current_number_scheduled: int = 0
    number_misscheduled: int = 0


class DaemonSet(Struct, rename="camel"):
    metadata: Metadata
    spec: DaemonSetSpec
    status: DaemonSetStatus | None = None


class WorkerPoolSpec(Struct, rename="camel"):
    replicas: int = 0


class WorkerPool(Struct, rename="camel"):
    metadata: Metadata
    spec: WorkerPoolSpec | None = None


class LeaseSpec(Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    renew_time: str | None = None


class Lease(Struct, rename="camel"):
    metadata: Metadata
    spec: LeaseSpec | None = None


class ConfigMap(Struct, rename="camel"):
    metadata: Metadata
    data: dict[str, str] | None = None


class Bare(Struct):
    """Any object, when nothing but its metadata is of interest."""

    metadata: Metadata


class LimitRangeItem(Struct, rename="camel"):
    type: str = ""
    default_request: dict[str, str] | None = None
    """The API server fills it in from the other fields."""


class LimitRangeSpec(Struct, rename="camel"):
    limits: list[LimitRangeItem] | None = None


class LimitRange(Struct, rename="camel"):
    metadata: Metadata
    spec: LimitRangeSpec | None = None
