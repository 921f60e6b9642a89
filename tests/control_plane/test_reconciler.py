"""Claims follow pods, whatever happens to pods, nodes and pools: agent-substrate #134's test plan, and more."""

import time
import uuid
from collections.abc import Callable

import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from tests.control_plane.meddlers import meddling, untouchable
from tests.reconciling import (
    Reconciler,
    ateom,
    claims,
    force_delete,
    held,
    pod_path,
    pool,
    pool_path,
    wait_until_running,
)

pytestmark = pytest.mark.both_shapes

Nodes = Callable[..., list[str]]


@pytest.mark.versions
def test_pods_of_two_pools_make_two_claims_and_one_label_which_go_with_their_last_pods(
    plane: ControlPlane, namespace: str, node: str
) -> None:
    a, b = pool(plane, namespace, "a"), pool(plane, namespace, "b")
    first = ateom(plane, namespace, "a", a, node)
    plane.wait(lambda: claims(plane, node) == ({a}, True), why="one pod: claim and label")
    second, third = ateom(plane, namespace, "b", b, node), ateom(plane, namespace, "b", b, node)
    plane.wait(lambda: claims(plane, node) == ({a, b}, True), why="two pools: two claims, one label")
    force_delete(plane, first)
    plane.wait(lambda: claims(plane, node) == ({b}, True), why="only the first pool's claim to go")
    force_delete(plane, second)
    force_delete(plane, third)
    plane.wait(lambda: claims(plane, node) == (set(), False), why="the last pod: claim and label gone")


def test_an_unused_claim_stays_for_the_linger_and_a_pod_that_comes_back_keeps_it(
    plane: ControlPlane, namespace: str, node: str
) -> None:
    uid = pool(plane, namespace, "a")
    pod = ateom(plane, namespace, "a", uid, node)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")

    def written() -> str | None:
        found: str | None = plane.api.get(f"/api/v1/nodes/{node}")["metadata"]["annotations"].get(names.claim_key(uid))
        return found

    first = written()
    force_delete(plane, pod)
    began = time.monotonic()
    again = ateom(plane, namespace, "a", uid, node)
    pending = ateom(plane, namespace, "a", uid)
    plane.wait(lambda: time.monotonic() - began > 1.8, why="more than a linger to pass")
    assert written() == first
    force_delete(plane, again)
    began = time.monotonic()
    plane.wait(lambda: time.monotonic() - began > 1.8, why="more than a linger to pass")
    assert claims(plane, node) == ({uid}, True), "a pod of the pool is still unbound"
    force_delete(plane, pending)
    plane.wait(lambda: claims(plane, node) == (set(), False), timeout=30, why="the claim to go with the unbound pod")


def test_a_claim_waits_for_unbound_pods_but_not_for_ever(plane: ControlPlane, namespace: str, node: str) -> None:
    uid = pool(plane, namespace, "a")
    pod = ateom(plane, namespace, "a", uid, node)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
    ateom(plane, namespace, "a", uid)
    began = time.monotonic()
    force_delete(plane, pod)
    plane.wait(lambda: claims(plane, node) == (set(), False), timeout=20, why="the claim to go")
    assert time.monotonic() - began > 3.9, "linger and unbound_wait"


@pytest.mark.versions
@pytest.mark.parametrize("labelled", [True, False], ids=["with our UID label", "made before we were installed"])
def test_a_pod_bound_past_us_is_claimed_within_a_second(
    plane: ControlPlane, namespace: str, node: str, labelled: bool
) -> None:
    uid = pool(plane, namespace, "a")
    took = []
    for _ in range(5):
        bare = patch_and_see(plane, node)
        pod = ateom(plane, namespace, "a", uid if labelled else "", node)
        began = time.monotonic()
        plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim", every=0.01)
        took.append((time.monotonic() - began - bare, bare))
        force_delete(plane, pod)
        plane.wait(lambda: claims(plane, node) == (set(), False), why="its end")
    beyond = [ours for ours, _ in took]
    assert min(beyond) < 1.0 and max(beyond) < 10.0, (
        f"beyond what a patch and its event take by themselves, beside it; the best of five is ours: {took}"
    )


def patch_and_see(plane: ControlPlane, node: str) -> float:
    """Seconds that a change of the Node takes to be written and to come out of a watch: this machine's, not ours."""
    path, stamp = f"/api/v1/nodes/{node}", uuid.uuid4().hex
    version = plane.api.get(path)["metadata"]["resourceVersion"]
    query = {"fieldSelector": f"metadata.name={node}", "resourceVersion": version, "timeoutSeconds": "30"}
    with plane.api.watch("/api/v1/nodes", **query) as events:
        began = time.monotonic()
        plane.api.patch(path, {"metadata": {"annotations": {"example.com/stamp": stamp}}})
        for event in events:
            if event["object"]["metadata"].get("annotations", {}).get("example.com/stamp") == stamp:
                return time.monotonic() - began
    raise AssertionError("the change did not come out of the watch")


def test_pods_that_have_ended_do_not_count(plane: ControlPlane, namespace: str, node: str) -> None:
    uid = pool(plane, namespace, "a")
    pods = [ateom(plane, namespace, "a", uid, node) for _ in range(2)]
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
    wait_until_running(plane, pods)  # or the pretended kubelet might say Running after us
    for pod, phase in zip(pods, ("Succeeded", "Failed"), strict=True):
        plane.api.patch(pod_path(pod) + "/status", {"status": {"phase": phase}})
    plane.wait(lambda: claims(plane, node) == (set(), False), why="the claim to go")


def test_a_label_without_a_claim_goes(plane: ControlPlane, node: str) -> None:
    plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {names.NODE_LABEL: "true"}}})
    plane.wait(lambda: claims(plane, node) == (set(), False), why="the label to go")


def test_claims_with_empty_values_are_adopted(plane: ControlPlane, namespace: str, node: str) -> None:
    uid, other = pool(plane, namespace, "a"), pool(plane, namespace, "b")
    ateom(plane, namespace, "a", uid, node)
    old = {names.claim_key(uid): "", names.claim_key(other): ""}
    plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": old, "labels": {names.NODE_LABEL: "true"}}})
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="only the used claim to stay")


def test_only_our_own_keys_are_ours(plane: ControlPlane, namespace: str, node: str) -> None:
    path = f"/api/v1/nodes/{node}"
    foreign = {"annotations": {"example.com/a": "1", "ate.dev/other": "2"}, "labels": {"ate.dev/else": "3"}}
    plane.api.patch(path, {"metadata": foreign}, fieldManager="somebody")
    uid = pool(plane, namespace, "a")
    pod = ateom(plane, namespace, "a", uid, node)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
    owned = [
        entry["fieldsV1"]
        for entry in plane.api.get(path)["metadata"]["managedFields"]
        if entry["manager"] == "ateplace"
    ]
    assert owned == [
        {
            "f:metadata": {
                "f:annotations": {f"f:{names.claim_key(uid)}": {}},
                "f:labels": {f"f:{names.NODE_LABEL}": {}},
            }
        }
    ]
    force_delete(plane, pod)
    plane.wait(lambda: claims(plane, node) == (set(), False), why="the claim to go")
    meta = plane.api.get(path)["metadata"]
    assert foreign["annotations"].items() <= meta["annotations"].items()
    assert foreign["labels"].items() <= meta["labels"].items()


def test_a_warm_placeholder_holds_a_claim(plane: ControlPlane, namespace: str, node: str) -> None:
    uid = pool(plane, namespace, "a")
    labels = {names.PLACEHOLDER_LABEL: "a", names.POOL_UID_LABEL: uid}
    spec = {"nodeName": node, "containers": [{"name": "pause", "image": "registry.example/pause:1"}]}
    body = {"metadata": {"generateName": "a-", "labels": labels}, "spec": spec}
    made = plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
    cold = {"metadata": {"annotations": {names.HEADROOM_WARM_ANNOTATION: "false"}}}
    plane.api.patch(pool_path(namespace, "a"), cold)
    plane.wait(lambda: claims(plane, node) == (set(), False), why="the claim to go when placeholders need no atelet")
    assert plane.api.exists(pod_path(made))


@pytest.mark.versions
def test_a_pool_is_held_until_its_pods_and_claims_are_gone_and_says_what_it_waits_for(
    plane: ControlPlane, namespace: str, node: str
) -> None:
    uid = pool(plane, namespace, "a")
    held = ateom(plane, namespace, "a", uid, node, finalizers=("example.com/hold",))
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
    plane.wait(
        lambda: names.FINALIZER in plane.api.get(pool_path(namespace, "a"))["metadata"]["finalizers"],
        why="the finalizer",
    )
    plane.api.delete(pod_path(held))
    substrate.delete(plane, namespace, "a")
    words = f"Deletion waits for 1 pods ({held['metadata']['name']}: Terminating, held by example.com/hold, "
    plane.wait(lambda: words in plane.kubectl("describe", "workerpool", "-n", namespace, "a"), why=words)
    assert claims(plane, node) == ({uid}, True)
    plane.api.patch(pod_path(held), {"metadata": {"finalizers": None}})
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, "a")), why="the pool to go")
    assert claims(plane, node) == (set(), False)


def test_a_pool_whose_pods_have_an_hour_to_end_is_draining_and_nothing_is_wrong(
    plane: ControlPlane, namespace: str, node: str, reconciler: Reconciler
) -> None:
    uid = pool(plane, namespace, "a")
    pod = ateom(plane, namespace, "a", uid, node, finalizers=("example.com/hold",), grace=3600)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
    plane.wait(lambda: held(plane, namespace), why="the finalizer")
    plane.api.delete(pod_path(pod))
    substrate.delete(plane, namespace, "a")

    def events() -> dict[str, Object]:
        found = plane.api.list(f"/api/v1/namespaces/{namespace}/events")
        return {event["reason"]: event for event in found if event["involvedObject"]["kind"] == names.POOL_KIND}

    plane.wait(lambda: "Draining" in events(), why="an Event that it drains")
    assert events()["Draining"]["type"] == "Normal"
    assert "s left)" in events()["Draining"]["message"]
    assert "DeletionWaiting" not in events()
    waiting = reconciler.metrics()
    assert waiting['ateplace_pool_deletions_waiting{awaited="draining"}'] == 1
    assert waiting['ateplace_pool_deletions_waiting{awaited="pods"}'] == 0
    plane.api.patch(pod_path(pod), {"metadata": {"finalizers": None}})
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, "a")), why="the pool to go")


def test_a_deployment_that_another_pool_owns_too_stays(plane: ControlPlane, namespace: str, node: str) -> None:
    owners = [
        {"apiVersion": "ate.dev/v1alpha1", "kind": "WorkerPool", "name": name, "uid": pool(plane, namespace, name)}
        for name in "ab"
    ]
    plane.wait(lambda: held(plane, namespace), why="the finalizers")
    labels = {"app": "shared"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "registry.example/c"}]}}
    shared = {
        "metadata": {"name": "shared", "ownerReferences": owners},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }
    made = plane.api.post(f"/apis/apps/v1/namespaces/{namespace}/deployments", shared)
    substrate.delete(plane, namespace, "a")
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, "a")), why="the pool to go")
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/shared"
    assert plane.api.get(path)["metadata"]["uid"] == made["metadata"]["uid"]
    assert "deletionTimestamp" not in plane.api.get(path)["metadata"]
    substrate.delete(plane, namespace, "b")
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, "b")), why="the other pool to go")


def test_a_node_that_does_not_take_our_writes_does_not_keep_a_pool(
    plane: ControlPlane, namespace: str, node: str
) -> None:
    uid = pool(plane, namespace, "a")
    pod = ateom(plane, namespace, "a", uid, node)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
    with untouchable(plane, node):
        force_delete(plane, pod)
        substrate.delete(plane, namespace, "a")
        began = time.monotonic()
        plane.wait(lambda: not plane.api.exists(pool_path(namespace, "a")), why="the pool to go")
        print(f"\na pool whose node takes no writes went after {time.monotonic() - began:.1f} s")
        assert claims(plane, node) == ({uid}, True)
    plane.wait(lambda: claims(plane, node) == (set(), False), timeout=60, why="the claim to go later")


@pytest.mark.versions
def test_events_say_claimed_and_released_in_describe(plane: ControlPlane, namespace: str, node: str) -> None:
    uid = pool(plane, namespace, "a")
    pod = ateom(plane, namespace, "a", uid, node)
    claimed = f"Node {node} was claimed for atelet by WorkerPool {namespace}/a"
    released = f"WorkerPool {namespace}/a no longer needs node {node}"
    plane.wait(lambda: claimed in plane.kubectl("describe", "node", node), why=claimed)
    plane.wait(lambda: claimed in plane.kubectl("describe", "workerpool", "-n", namespace, "a"), why=claimed)
    force_delete(plane, pod)
    plane.wait(lambda: released in plane.kubectl("describe", "node", node), why=released)
    plane.wait(lambda: released in plane.kubectl("describe", "workerpool", "-n", namespace, "a"), why=released)


def test_a_claim_that_another_role_has_written_is_told_of_in_describe_too(
    plane: ControlPlane, namespace: str, node: str
) -> None:
    uid = pool(plane, namespace, "a")
    plane.wait(lambda: held(plane, namespace), why="the reconciler to know the pool by name")
    meta = {"annotations": {names.claim_key(uid): ""}, "labels": {names.NODE_LABEL: "true"}}
    plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": meta})
    claimed = f"Node {node} was claimed for atelet by WorkerPool {namespace}/a"
    plane.wait(lambda: claimed in plane.kubectl("describe", "node", node), why=claimed)
    plane.wait(lambda: claimed in plane.kubectl("describe", "workerpool", "-n", namespace, "a"), why=claimed)
    plane.wait(lambda: claims(plane, node) == (set(), False), why="a claim that nobody uses to go")


def test_an_ateom_that_waits_for_atelet_too_long_is_told_why(plane: ControlPlane, namespace: str, node: str) -> None:
    plane.hold("ate-system", substrate.shape(plane).atelet, "crashloop")
    try:
        uid = pool(plane, namespace, "a")
        held = {"local.ateplace/hold": "unready"}
        pod = ateom(plane, namespace, "a", uid, node, annotations=held)

        def told() -> bool:
            said = plane.kubectl("describe", "pod", "-n", namespace, pod["metadata"]["name"])
            assert f"atelet has not become ready on node {node} for too long" in said
            assert "CrashLoopBackOff" in said
            return True

        plane.wait(told, why="an Event on the pod")
        plane.wait(lambda: "1 ateoms wait for atelet" in plane.kubectl("describe", "node", node), why="one on the node")
    finally:
        plane.hold("ate-system", substrate.shape(plane).atelet, None)


@pytest.mark.versions
def test_a_full_comparison_finds_nothing_that_events_missed(
    plane: ControlPlane, namespace: str, node: str, reconciler: Reconciler
) -> None:
    before = reconciler.metrics()["ateplace_full_comparisons_total"]
    plane.wait(
        lambda: reconciler.metrics()["ateplace_full_comparisons_total"] >= before + 2, why="two full comparisons"
    )
    assert reconciler.missed() == 0


def test_a_pool_that_never_was_gets_no_claim(plane: ControlPlane, namespace: str, node: str) -> None:
    """Whoever may create pods can invent a pool's UID, on any node."""
    uid = pool(plane, namespace, "a")
    forged = ateom(plane, namespace, "ghost", "00000000-0000-0000-0000-000000000000", node)
    longest = ateom(plane, namespace, "ghost", "x" * 63, node)
    real = ateom(plane, namespace, "a", uid, node)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the real pool's claim, and no other")
    for pod in (forged, longest, real):
        force_delete(plane, pod)
    plane.wait(lambda: claims(plane, node) == (set(), False), why="its end")


def test_a_claim_goes_from_a_node_that_others_write_to_all_the_time(
    plane: ControlPlane, namespace: str, node: str
) -> None:
    uid = pool(plane, namespace, "a")
    pod = ateom(plane, namespace, "a", uid, node)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
    with meddling(plane, node) as writes:
        plane.wait(lambda: writes() > 20, why="somebody to write")
        force_delete(plane, pod)
        before, began = writes(), time.monotonic()
        plane.wait(lambda: claims(plane, node) == (set(), False), timeout=60, why="the claim to go")
        took = time.monotonic() - began
        rate = (writes() - before) / took
    print(f"\nreleased after {took:.1f} s while others wrote to the node {rate:.0f} times a second")


def test_a_pool_whose_name_no_label_can_hold_is_deleted_and_holds_up_nobody(
    plane: ControlPlane, namespace: str, node: str
) -> None:
    uid, long = pool(plane, namespace, "a"), "x" * 100
    other = pool(plane, namespace, long)
    pod = ateom(plane, namespace, "a", uid, node)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
    plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {names.claim_key(other): ""}}})
    plane.wait(lambda: held(plane, namespace), why="the finalizers")
    force_delete(plane, pod)
    plane.wait(lambda: claims(plane, node) == (set(), False), why="both claims to go")
    substrate.delete(plane, namespace, long)
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, long)), why="the pool to go")
