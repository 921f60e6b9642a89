"""Nodes, pools, pods and claims that are recreated, stuck, full or spoilt; named by the fault's number."""

import time
from collections.abc import Callable

import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from tests import reconciling
from tests.reconciling import Reconciler, ateom, claims, force_delete, pod_path, pool, pool_path

Nodes = Callable[..., list[str]]

pytestmark = pytest.mark.usefixtures("nothing_is_bound_before_it_is_claimed")


def test_37_a_node_recreated_under_its_name_gets_claims_for_live_pods_only_and_a_deleted_one_stays_deleted(
    plane: ControlPlane, namespace: str, node: str
) -> None:
    uid, other = pool(plane, namespace, "a"), pool(plane, namespace, "b")
    pod = ateom(plane, namespace, "a", uid, node)
    gone = ateom(plane, namespace, "b", other, node)
    plane.wait(lambda: claims(plane, node) == ({uid, other}, True), why="the claims")
    before = plane.api.get(f"/api/v1/nodes/{node}")
    plane.api.delete(f"/api/v1/nodes/{node}")
    force_delete(plane, gone)
    began = time.monotonic()
    plane.wait(lambda: time.monotonic() - began > 1, why="a second, in which nothing may bring it back")
    assert not plane.api.exists(f"/api/v1/nodes/{node}")
    labels = {key: value for key, value in before["metadata"]["labels"].items() if key != names.NODE_LABEL}
    plane.api.post(
        "/api/v1/nodes",
        {"metadata": {"name": node, "labels": labels}, "status": before["status"]},
    )
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the live pod's claim alone")
    assert plane.api.exists(pod_path(pod))


def test_37_a_pool_recreated_under_its_name_replaces_the_old_ones_claims(
    plane: ControlPlane, namespace: str, node: str
) -> None:
    reconciling.wait_for_the_garbage_collector(plane, namespace)
    old = pool(plane, namespace, "a")
    ateom(plane, namespace, "a", old, node)
    plane.wait(lambda: claims(plane, node) == ({old}, True), why="the claim")
    substrate.delete(plane, namespace, "a", "Orphan")
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, "a")), why="the old pool to go")
    new = pool(plane, namespace, "a")
    second = ateom(plane, namespace, "a", new, node)
    plane.wait(lambda: claims(plane, node) == ({old, new}, True), why="both while both have pods")
    for item in plane.api.list(f"/api/v1/namespaces/{namespace}/pods"):
        if item["metadata"]["name"] != second["metadata"]["name"]:
            force_delete(plane, item)
    plane.wait(lambda: claims(plane, node) == ({new}, True), why="the old one's to go with its last pod")


def test_38_a_terminating_pod_keeps_its_claim_and_a_forced_deletion_releases_it(
    plane: ControlPlane, namespace: str, node: str
) -> None:
    uid = pool(plane, namespace, "a")
    held = ateom(plane, namespace, "a", uid, node, finalizers=("example.com/hold",))
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
    plane.api.delete(pod_path(held))
    began = time.monotonic()
    plane.wait(lambda: time.monotonic() - began > 2.5, why="two lingers to pass")
    assert claims(plane, node) == ({uid}, True)
    plane.api.patch(pod_path(held), {"metadata": {"finalizers": None}})
    plane.wait(lambda: claims(plane, node) == (set(), False), why="the claim to go with the object")


def test_39_a_node_whose_annotations_are_full_gets_no_claim_and_says_so(
    plane: ControlPlane, namespace: str, node: str, reconciler: Reconciler
) -> None:
    path = f"/api/v1/nodes/{node}"
    plane.api.patch(path, {"metadata": {"annotations": {"example.com/big": "x" * (256 * 1024 - 120)}}})
    uid = pool(plane, namespace, "a")
    ateom(plane, namespace, "a", uid, node)
    plane.wait(lambda: "No room for a claim" in plane.kubectl("describe", "node", node), why="an Event that says so")
    assert reconciler.metrics()["ateplace_claims_refused_total"] >= 1
    assert claims(plane, node) == (set(), False)
    plane.api.patch(path, {"metadata": {"annotations": {"example.com/big": None}}})
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim once there is room")


def test_40_what_somebody_removed_or_spoilt_by_hand_is_restored(plane: ControlPlane, namespace: str, node: str) -> None:
    uid = pool(plane, namespace, "a")
    ateom(plane, namespace, "a", uid, node)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
    path, key = f"/api/v1/nodes/{node}", names.claim_key(uid)
    for damage in (
        {"labels": {names.NODE_LABEL: None}},
        {"labels": {names.NODE_LABEL: "no"}},
        {"annotations": {key: None}},
        {"annotations": {key: "soon"}},
        {"annotations": {key: None, names.claim_key("nobody"): "", names.claim_key("x.-y"): "x"}},
        {"annotations": {key: None}, "labels": {names.NODE_LABEL: None}},
    ):
        plane.api.patch(path, {"metadata": damage})

        def restored() -> bool:
            value = plane.api.get(path)["metadata"].get("annotations", {}).get(key, "soon")
            return value != "soon" and claims(plane, node) == ({uid}, True)

        plane.wait(restored, why=f"{damage} to be repaired")
