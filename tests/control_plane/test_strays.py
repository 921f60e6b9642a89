"""Ateoms that wait for a pool which is gone are made anew for the one that has its name; nothing else is deleted."""

import time
from typing import Any

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from tests.reconciling import Reconciler, ateom, claims, force_delete, held, pod_path, pool, pool_path


def replica_set(plane: ControlPlane, namespace: str, labels: dict[str, str], replicas: int) -> Object:
    """What makes pods anew; there is no webhook here, so they say again what its template says."""
    container = {"name": "ateom", "image": "registry.example/ateom:1"}
    template = {"metadata": {"labels": labels}, "spec": {"schedulerName": "nobody", "containers": [container]}}
    spec: dict[str, Any] = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return plane.api.post(
        f"/apis/apps/v1/namespaces/{namespace}/replicasets", {"metadata": {"name": "web"}, "spec": spec}
    )


def pods(plane: ControlPlane, namespace: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in plane.api.list(f"/api/v1/namespaces/{namespace}/pods")}


def test_ateoms_that_wait_for_a_pool_that_was_made_again_are_made_anew(
    plane: ControlPlane, namespace: str, node: str, reconciler: Reconciler
) -> None:
    old = pool(plane, namespace, "web")
    plane.wait(lambda: held(plane, namespace), why="the finalizer")
    labels = {names.POOL_LABEL: "web", names.POOL_UID_LABEL: old, "app": "web"}
    replica_set(plane, namespace, labels, 3)
    plane.wait(lambda: len(pods(plane, namespace)) == 3, why="three ateoms that wait")
    waiting = pods(plane, namespace)
    running = ateom(plane, namespace, "web", old, node)
    by_hand = ateom(plane, namespace, "web", old)
    plane.wait(lambda: claims(plane, node) == ({old}, True), why="the claim")
    substrate.delete(plane, namespace, "web", "Orphan")
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, "web")), why="the pool to go")
    kept = {running["metadata"]["uid"], by_hand["metadata"]["uid"]}
    began = time.monotonic()
    plane.wait(lambda: time.monotonic() - began > 5, why="more than one look to pass")
    assert pods(plane, namespace) == waiting | kept, "without a pool the webhook would refuse the next ones"
    new = pool(plane, namespace, "web")
    assert new != old
    began = time.monotonic()
    plane.wait(lambda: not waiting & pods(plane, namespace), timeout=20, why="the ateoms that waited to go")
    print(f"\nmade anew {time.monotonic() - began:.1f} s after the pool")
    assert kept <= pods(plane, namespace), "what runs, and what nobody makes anew, stays"
    assert claims(plane, node) == ({old}, True)
    plane.api.delete(f"/apis/apps/v1/namespaces/{namespace}/replicasets/web", {"propagationPolicy": "Background"})
    for pod in (running, by_hand):
        force_delete(plane, pod)
    assert not plane.api.exists(pod_path(by_hand))
