"""WorkerPools with real Deployments and the real garbage collector: every deletion ends, no update flaps atelet."""

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from tests import reconciling
from tests.placing import priority_class
from tests.reconciling import Reconciler, bound, claims, node_claims, pod_path, pool_path, spread

Nodes = Callable[..., list[str]]
LINGER = 15
"""Longer than a node has no pod in a rolling update."""


@pytest.fixture(scope="module")
def reconciler(plane: ControlPlane) -> Iterator[Reconciler]:
    with reconciling.agent_substrate(plane), reconciling.reconciling(plane, linger=LINGER) as (running,):
        yield running
        assert running.missed() == 0
        assert "Traceback" not in running.said()


@pytest.mark.versions
@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
def test_a_pool_with_50_pods_on_10_nodes_is_deleted_with_everything_it_had(
    plane: ControlPlane,
    namespace: str,
    nodes: Nodes,
    reconciler: Reconciler,
    propagation: str,
) -> None:
    reconciling.wait_for_the_garbage_collector(plane, namespace)
    names_ = nodes(10)
    spread(plane, namespace, names_, 50)
    began = time.monotonic()
    substrate.delete(plane, namespace, "web", propagation)
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, "web")), timeout=60, why="the pool to go", every=0.02)
    took = time.monotonic() - began
    assert plane.api.list(f"/api/v1/namespaces/{namespace}/pods") == []
    assert not plane.api.exists(substrate.deployment_path(plane, namespace, "web"))
    print(f"\n{propagation} deletion of 50 pods on 10 nodes: {took:.2f} s")
    plane.wait(
        lambda: all(claims(plane, node) == (set(), False) for node in names_),
        timeout=60,
        why="the claims to go a linger after they were written",
    )


def test_orphaned_pods_keep_their_claims_and_lose_them_one_by_one(
    plane: ControlPlane, namespace: str, nodes: Nodes, reconciler: Reconciler
) -> None:
    reconciling.wait_for_the_garbage_collector(plane, namespace)
    names_ = nodes(10)
    uid = spread(plane, namespace, names_, 50)
    began = time.monotonic()
    substrate.delete(plane, namespace, "web", "Orphan")
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, "web")), timeout=60, why="the pool to go", every=0.02)
    took = time.monotonic() - began
    print(f"\nOrphan deletion of 50 pods on 10 nodes: {took:.2f} s")
    assert bound(plane, namespace) == 50
    assert all(claims(plane, node) == ({uid}, True) for node in names_)
    deployment = substrate.deployment_path(plane, namespace, "web")
    assert "ownerReferences" not in plane.api.get(deployment)["metadata"]
    plane.api.patch(deployment, {"spec": {"replicas": 0}})
    plane.wait(
        lambda: all(claims(plane, node) == (set(), False) for node in names_),
        timeout=60,
        why="claims to go with their pods",
    )


def test_a_pool_whose_deployment_was_orphaned_before_is_not_waited_for(
    plane: ControlPlane, namespace: str, nodes: Nodes, reconciler: Reconciler
) -> None:
    reconciling.wait_for_the_garbage_collector(plane, namespace)
    names_ = nodes(2)
    uid = spread(plane, namespace, names_, 6)
    plane.stop("ate-controller", signal.SIGKILL)
    try:
        path = substrate.deployment_path(plane, namespace, "web")
        plane.api.delete(path, {"propagationPolicy": "Orphan"})
        plane.wait(lambda: not plane.api.exists(path), why="the Deployment to go")
        substrate.delete(plane, namespace, "web")
        plane.wait(lambda: not plane.api.exists(pool_path(namespace, "web")), why="the pool to go")
        assert all(claims(plane, node) == ({uid}, True) for node in names_)
    finally:
        substrate.start_controller(plane)


def test_a_pod_renamed_out_of_its_replicaset_is_not_waited_for(
    plane: ControlPlane, namespace: str, nodes: Nodes, reconciler: Reconciler
) -> None:
    """It still carries the pool's UID, nobody will delete it, and its claim needs no finalizer."""
    (node,) = nodes(1)
    uid = spread(plane, namespace, [node], 2)
    path = f"/api/v1/namespaces/{namespace}/pods"
    pods = plane.api.list(path)
    for pod in pods:
        plane.api.patch(pod_path(pod), {"metadata": {"labels": {names.POOL_UID_LABEL: uid}}})
    quarantined = pod_path(pods[0])
    plane.api.patch(quarantined, {"metadata": {"labels": {names.POOL_LABEL: "quarantine"}}})
    plane.wait(
        lambda: "ownerReferences" not in plane.api.get(quarantined)["metadata"], why="its ReplicaSet to let it go"
    )
    substrate.delete(plane, namespace, "web")
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, "web")), why="the pool to go")
    plane.wait(lambda: len(plane.api.list(path)) == 1, why="the other pods to go")
    assert plane.api.exists(quarantined)
    assert claims(plane, node) == ({uid}, True)


def test_orphaned_placeholders_are_not_waited_for(plane: ControlPlane, namespace: str, reconciler: Reconciler) -> None:
    """While we are away: otherwise a new Deployment of ours takes them in again."""
    priority_class(plane, names.PLACEHOLDER_PRIORITY_CLASS, -10, preemptionPolicy="Never")
    substrate.pool(plane, namespace, "web", annotations={names.HEADROOM_ANNOTATION: "2"})
    path = f"/api/v1/namespaces/{namespace}/pods"
    plane.wait(lambda: len(plane.api.list(path)) == 2, why="two placeholders")
    reconciler.stop()
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    (placeholders,) = plane.api.list(deployments, labelSelector=names.PLACEHOLDER_LABEL)
    deployment = f"{deployments}/{placeholders['metadata']['name']}"
    plane.api.delete(deployment, {"propagationPolicy": "Orphan"})
    plane.wait(lambda: not plane.api.exists(deployment), why="the placeholders' Deployment to go")
    substrate.delete(plane, namespace, "web")
    reconciler.start()
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, "web")), why="the pool to go")
    assert len(plane.api.list(path)) == 2


@pytest.mark.versions
def test_a_rolling_update_does_not_flap_a_single_atelet(
    plane: ControlPlane, namespace: str, nodes: Nodes, reconciler: Reconciler
) -> None:
    names_ = nodes(4)
    spread(plane, namespace, names_, 20)

    def atelets() -> dict[str, str]:
        pods = plane.api.list("/api/v1/namespaces/ate-system/pods", labelSelector="app=atelet")
        return {
            pod["spec"]["nodeName"]: pod["metadata"]["uid"]
            for pod in pods
            if pod["spec"].get("nodeName") in names_ and "deletionTimestamp" not in pod["metadata"]
        }

    plane.wait(lambda: len(atelets()) == 4, why="atelet on every node")
    before = atelets()
    labels: set[bool] = set()
    substrate.set_image(plane, namespace, "web", "registry.example/ateom:2")

    def rolled() -> bool:
        labels.update(node_claims(plane.api.get(f"/api/v1/nodes/{node}"))[1] for node in names_)
        pods = plane.api.list(f"/api/v1/namespaces/{namespace}/pods")
        new = [pod for pod in pods if pod["spec"]["containers"][0]["image"].endswith(":2")]
        return len(new) == len(pods) == 20 and all(pod["spec"].get("nodeName") for pod in pods)

    plane.wait(rolled, timeout=60, why="the rolling update")
    assert labels == {True}
    assert atelets() == before


def test_a_finalizer_that_somebody_removed_comes_back_and_others_are_left_alone(
    plane: ControlPlane, namespace: str, reconciler: Reconciler
) -> None:
    substrate.pool(plane, namespace, "web")
    path = pool_path(namespace, "web")
    plane.api.patch(path, {"metadata": {"finalizers": ["example.com/mine"]}})
    ours = ["example.com/mine", names.FINALIZER]
    plane.wait(lambda: plane.api.get(path)["metadata"]["finalizers"] == ours, why="our finalizer beside the other")
    substrate.delete(plane, namespace, "web")
    left = ["example.com/mine"]
    plane.wait(lambda: plane.api.get(path)["metadata"]["finalizers"] == left, why="ours to go, and only ours")
    plane.api.patch(path, {"metadata": {"finalizers": None}})
