"""Which unbound pods keep their pool's claims, with all the time that a scheduler may take."""

import time
from collections.abc import Callable, Iterator

import pytest

from ateplace import names
from ateplace.local import ControlPlane
from ateplace.local.api import Object
from tests import reconciling
from tests.reconciling import Reconciler, ateom, claims, force_delete, pod_path, pool

LINGER = 1.0
LAG = 4.0
"""How far behind a watch may be."""


@pytest.fixture(scope="module")
def reconciler(plane: ControlPlane) -> Iterator[Reconciler]:
    patient = reconciling.reconciling(plane, linger=LINGER, unbound_wait=600, cluster__stale_after=LAG)
    with reconciling.agent_substrate(plane, controller=False), patient as (running,):
        yield running
        assert running.missed() == 0
        assert "Traceback" not in running.said()


def placeholder(plane: ControlPlane, namespace: str, uid: str) -> Object:
    labels = {names.PLACEHOLDER_LABEL: "a", names.POOL_UID_LABEL: uid}
    container = {"name": "pause", "image": "registry.example/pause:1"}
    body = {
        "metadata": {"generateName": "a-", "labels": labels},
        "spec": {"schedulerName": "nobody", "containers": [container]},
    }
    return plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body)


def refuse(plane: ControlPlane, pod: Object) -> None:
    """What a scheduler says of a pod that it found no node for."""
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    plane.api.patch(pod_path(pod) + "/status", {"status": {"conditions": [refused]}})


def pass_time(plane: ControlPlane, seconds: float) -> None:
    began = time.monotonic()
    plane.wait(lambda: time.monotonic() - began > seconds, why="time to pass")


Make = Callable[[ControlPlane, str, str], Object]


@pytest.mark.parametrize(
    ("make", "refused"),
    [
        pytest.param(lambda plane, ns, uid: ateom(plane, ns, "a", uid), True, id="an ateom that was refused"),
        pytest.param(lambda plane, ns, uid: ateom(plane, ns, "a", uid, gated=True), False, id="an ateom with gates"),
        pytest.param(placeholder, True, id="a placeholder that was refused"),
    ],
)
def test_a_pod_that_cannot_be_on_its_way_keeps_no_claim(
    plane: ControlPlane, namespace: str, node: str, make: Make, refused: bool
) -> None:
    uid = pool(plane, namespace, "a")
    pod = ateom(plane, namespace, "a", uid, node)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
    pass_time(plane, 2 * LINGER + LAG)
    waiting = make(plane, namespace, uid)
    if refused:
        refuse(plane, waiting)
    force_delete(plane, pod)
    plane.wait(lambda: claims(plane, node) == (set(), False), timeout=20, why="the claim to go")
    assert plane.api.exists(pod_path(waiting))


def test_a_pod_that_was_refused_before_the_claim_was_written_keeps_it(
    plane: ControlPlane, namespace: str, node: str
) -> None:
    """It may have been answered the node by this very claim, and its scheduler stopped."""
    uid = pool(plane, namespace, "a")
    waiting = ateom(plane, namespace, "a", uid)
    refuse(plane, waiting)
    meta = {"annotations": {names.claim_key(uid): ""}, "labels": {names.NODE_LABEL: "true"}}
    plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": meta})
    pass_time(plane, 2 * LINGER + LAG)
    assert claims(plane, node) == ({uid}, True)
    force_delete(plane, waiting)
    plane.wait(lambda: claims(plane, node) == (set(), False), timeout=20, why="the claim to go with it")


def test_a_claim_of_a_pool_that_was_never_seen_lingers_like_any_other(
    plane: ControlPlane, namespace: str, node: str
) -> None:
    never = "00000000-0000-0000-0000-00000000000f"
    meta = {"annotations": {names.claim_key(never): ""}, "labels": {names.NODE_LABEL: "true"}}
    began = time.monotonic()
    plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": meta})
    plane.wait(lambda: claims(plane, node) == (set(), False), every=0.01, why="the claim to go")
    assert time.monotonic() - began > LINGER
