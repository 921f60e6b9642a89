"""What the tests of placement share: ateoms for nodes of their own, and where they went."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from ateplace import names
from ateplace.cluster.resources import CPU, MEMORY, requests, total
from ateplace.kube.objects import PodSpec
from ateplace.local import ApiError, ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.scheduling import Scheduling, pool_pod

Nodes = Callable[..., list[str]]
"""Makes so many nodes, and says their names."""
OWNER = "tests.example/owner"
"""On a test's nodes, with its namespace: pods of a test before may still be waiting, and must not come here."""
ATELET = {"requests": {"cpu": "500m", "memory": "512Mi"}}


def ateom(pool: Object, name: str, **spec: Any) -> Object:
    """A pod of this pool, for this test's nodes."""
    return pool_pod(pool, name, nodeSelector={OWNER: pool["metadata"]["namespace"]}, **spec)


def create(plane: ControlPlane, pods: list[Object]) -> None:
    """Create pods, several at a time."""

    def post(pod: Object) -> None:
        plane.api.post(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)

    with ThreadPoolExecutor(8) as workers:
        list(workers.map(post, pods))


def two_strangers(plane: ControlPlane, namespace: str) -> None:
    """Two bound pods that are not ours, s0 and s1, of 1.5 CPUs each."""
    container = {"name": "c", "image": "registry.example/c:1", "resources": {"requests": {"cpu": "1500m"}}}
    spec = {"containers": [container], "nodeSelector": {OWNER: namespace}, "terminationGracePeriodSeconds": 0}
    create(plane, [{"metadata": {"name": f"s{n}", "namespace": namespace}, "spec": spec} for n in range(2)])
    where(plane, namespace, 2)


def priority_class(plane: ControlPlane, name: str, value: int, **fields: Any) -> None:
    """Make a PriorityClass and wait until the API server's own admission, which looks at a copy, knows it."""
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    plane.apply([{**kind, "metadata": {"name": name}, "value": value, **fields}])
    policy = fields.get("preemptionPolicy", "PreemptLowerPriority")
    container = {"name": "c", "image": "registry.example/c:1"}
    probe = {"metadata": {"name": "probe"}, "spec": {"priorityClassName": name, "containers": [container]}}

    def known() -> bool:
        try:
            spec = plane.api.post("/api/v1/namespaces/default/pods", probe, dryRun="All")["spec"]
        except ApiError as error:
            raise AssertionError(str(error)) from error
        return bool(spec["priority"] == value and spec["preemptionPolicy"] == policy)

    plane.wait(known, why=f"the API server to know the class {name}")


def where(plane: ControlPlane, namespace: str, count: int, timeout: float = 60) -> dict[str, str]:
    """Where each of so many pods is, once all are bound."""

    def bound() -> dict[str, str]:
        pods = plane.api.list(f"/api/v1/namespaces/{namespace}/pods")
        found = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}
        assert len(found) == count and all(found.values()), f"{sum(map(bool, found.values()))} of {count} are bound"
        return found

    return plane.wait(bound, timeout=timeout, why="every pod to be bound", every=0.2)


def claims(plane: ControlPlane, node: str) -> dict[str, str]:
    """A node's claims; the label must say the same."""
    meta = plane.api.get(f"/api/v1/nodes/{node}")["metadata"]
    found = {key: value for key, value in meta.get("annotations", {}).items() if names.claimed_pool(key) is not None}
    assert (meta["labels"].get(names.NODE_LABEL) == "true") == bool(found)
    return found


def patch_atelet(plane: ControlPlane, **spec: Any) -> None:
    plane.api.patch(substrate.daemonset(plane), {"spec": {"template": {"spec": spec}}})


@contextlib.contextmanager
def atelet_with_requests(plane: ControlPlane) -> Iterator[None]:
    """Half a CPU goes to atelet on every node, without a sidecar, from `with` to its end."""
    spec = plane.api.get(substrate.daemonset(plane))["spec"]["template"]["spec"]
    containers = [{**container, "resources": ATELET} for container in spec["containers"]]
    patch_atelet(plane, containers=containers, initContainers=None)
    try:
        yield
    finally:
        patch_atelet(plane, containers=spec["containers"], initContainers=spec.get("initContainers"))


@contextlib.contextmanager
def scheduling_beside_atelet(plane: ControlPlane) -> Iterator[Scheduling]:
    """Our scheduler and extender, where half a CPU goes to atelet on every node."""
    substrate.install(plane, controller=False)
    with Scheduling(plane) as running, atelet_with_requests(plane):
        running.restart()
        yield running


def own_nodes(nodes: Nodes, namespace: str) -> Nodes:
    """Nodes that only this test's pods want: those of a test before may still be waiting."""
    return lambda count, labels=None, **options: nodes(count, labels={OWNER: namespace, **(labels or {})}, **options)


def ready_atelets(plane: ControlPlane, wanted: list[str]) -> None:
    """Wait until atelet is Ready on every one of these nodes."""

    def ready() -> bool:
        pods = plane.api.list("/api/v1/namespaces/ate-system/pods")
        there = {
            pod["spec"].get("nodeName")
            for pod in pods
            if any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", ()))
        }
        missing = set(wanted) - there
        assert not missing, f"no Ready atelet on {sorted(missing)}"
        return True

    plane.wait(ready, timeout=60, why="atelet on every claimed node")


def within_allocatable(plane: ControlPlane, wanted: list[str]) -> None:
    """What a kubelet would check and KWOK does not: a node's pods ask for no more than it has, and are not too many."""
    for name in wanted:
        pods = plane.api.list("/api/v1/pods", fieldSelector=f"spec.nodeName={name}")
        asked = total(requests(msgspec.convert(pod["spec"], PodSpec)) for pod in pods)
        has = plane.api.get(f"/api/v1/nodes/{name}")["status"]["allocatable"]
        assert asked[CPU] <= 1000 * int(has["cpu"]) and asked[MEMORY] <= int(has["memory"].removesuffix("Gi")) * 2**30
        assert len(pods) <= int(has["pods"])


def message(plane: ControlPlane, namespace: str, pod: str) -> str:
    """Why the scheduler has not placed a pod."""

    def condition() -> str:
        conditions = plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}").get("status", {}).get("conditions", [])
        return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")

    return plane.wait(condition, why="the scheduler's word")


def call(rig: Scheduling, pod: Object, node_names: list[str] | None, verb: str = "filter", **extra: Any) -> Object:
    with rig.client() as client:
        answer = client.post(f"/{verb}", json={"Pod": pod, "Nodes": None, "NodeNames": node_names, **extra})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())
