"""What the tests of placement share: ateoms for nodes of their own, and where they went."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ateplace import names
from local import ApiError, ControlPlane
from local.api import Object
from local.scheduling import pool_pod

OWNER = "tests.example/owner"
"""On a test's nodes, with its namespace: pods of a test before may still be waiting, and must not come here."""


def ateom(pool: Object, name: str, **spec: Any) -> Object:
    """A pod of this pool, for this test's nodes."""
    return pool_pod(pool, name, nodeSelector={OWNER: pool["metadata"]["namespace"]}, **spec)


def create(plane: ControlPlane, pods: list[Object]) -> None:
    """Create pods, several at a time."""

    def post(pod: Object) -> None:
        plane.api.post(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)

    with ThreadPoolExecutor(8) as workers:
        list(workers.map(post, pods))


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
