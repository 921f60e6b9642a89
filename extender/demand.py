"""What a pod wants of us, read off the pod that the scheduler sends (pure)."""

from msgspec import Struct

from ateplace.cluster.records import PodRecord, pod_record
from ateplace.cluster.resources import Shape, host_ports
from ateplace.extender.protocol import BadCall
from ateplace.kube.objects import Pod, PodSpec


class Demand(Struct, frozen=True, gc=False):
    uid: str
    pool: str
    """UID of its WorkerPool."""
    shape: Shape
    placeholder: bool = False
    version: str = ""
    template: str = ""
    """The hash of the pod template that it was made from."""
    choosy: bool = False
    """Has soft preferences of its own: several nodes are answered, and the scheduler's scoring chooses."""
    alone: bool = False
    """Not two of its like go to one node: they have a host port, or rules about each other."""


def read_pod(pod: Pod, pool_label: str) -> PodRecord | None:
    """An ateom's or placeholder's record; None for any other pod. BadCall for one that no API server would hold."""
    try:
        return pod_record(pod, pool_label)
    except (ValueError, RecursionError) as error:
        raise BadCall(f"the Pod cannot be read: {error}") from error


def demand(pod: Pod, record: PodRecord, pool_uid: str) -> Demand:
    return Demand(
        uid=record.uid,
        pool=pool_uid,
        shape=record.shape,
        placeholder=record.placeholder,
        version=pod.metadata.resource_version,
        template=record.template,
        choosy=not record.placeholder and is_choosy(pod.spec),
        alone=not record.placeholder and is_alone(pod.spec),
    )


def is_choosy(spec: PodSpec) -> bool:
    """Whether the pod prefers some nodes, softly, to others. Placeholders do too (they spread), but we spread them."""
    if any(constraint.when_unsatisfiable == "ScheduleAnyway" for constraint in spec.topology_spread_constraints or ()):
        return True
    affinity = spec.affinity
    return affinity is not None and any(
        kind is not None and kind.preferred_during_scheduling_ignored_during_execution
        for kind in (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
    )


def is_alone(spec: PodSpec) -> bool:
    """Whether a node may take one such pod only. What the anti-affinity is about is not looked at: mostly it is about
    the pod's own kind, and if it is not, less is claimed or freed ahead than could be."""
    apart = spec.affinity.pod_anti_affinity if spec.affinity else None
    return bool(host_ports(spec)) or bool(apart and apart.required_during_scheduling_ignored_during_execution)
