"""The extender killed, doubled and kept waiting, during bursts; the numbers are those of the list of faults."""

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.scheduling import Scheduling
from ateplace.local.witness import Witness
from tests.faults.meddler import Fate, Meddler, only
from tests.placing import (
    Nodes,
    atelet_with_requests,
    ateom,
    claims,
    create,
    own_nodes,
    ready_atelets,
    two_strangers,
    where,
    within_allocatable,
)
from tests.reconciling import Reconciler

SMALL = {"cpu": "400m", "memory": "64Mi"}

pytestmark = pytest.mark.long


@pytest.fixture
def pool(plane: ControlPlane, namespace: str) -> Object:
    substrate.install(plane, controller=False)
    return substrate.pool(plane, namespace, "web")


@pytest.fixture
def nodes(nodes: Nodes, namespace: str) -> Nodes:
    return own_nodes(nodes, namespace)


def no_leaks(plane: ControlPlane, pool: Object, made: list[str], used: set[str]) -> None:
    """With a reconciler at work, claims end up on the nodes with pods and on no others."""
    reconciler = Reconciler(plane, pool["metadata"]["namespace"], linger=2).start()
    key = names.claim_key(pool["metadata"]["uid"])
    try:
        plane.wait(
            lambda: {name for name in made if key in claims(plane, name)} == used,
            timeout=60,
            why="claims on the nodes with pods alone",
            every=0.5,
        )
    finally:
        reconciler.kill()


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])])
def test_32_33_killed_at_random_points_of_a_burst_every_pod_ends_bound_claimed_and_once(
    plane: ControlPlane, pool: Object, nodes: Nodes, kills: int
) -> None:
    made = nodes(max(12, kills // 2))
    moment = random.Random(5)  # noqa: S311 - no secret
    per_kill = 8
    with Witness(plane) as witness, Scheduling(plane) as rig:
        for round_ in range(kills):
            create(plane, [ateom(pool, f"p{round_}-{n}", requests=SMALL) for n in range(per_kill)])
            time.sleep(moment.uniform(0.0, 0.3))
            rig.kill()
            rig.start()
            if moment.random() < 0.7:
                rig.wait_ready()
        rig.wait_ready()
        found = where(plane, pool["metadata"]["namespace"], kills * per_kill, timeout=120)
        assert witness.violations() == []
        assert witness.bound >= kills * per_kill
        no_leaks(plane, pool, made, set(found.values()))


def test_two_replicas_with_alternating_calls_pack_as_one(
    plane: ControlPlane, pool: Object, namespace: str, nodes: Nodes
) -> None:
    nodes(12)
    with Witness(plane) as witness, Scheduling(plane, replicas=2) as rig:
        create(plane, [ateom(pool, f"p{n}", requests=SMALL) for n in range(100)])
        found = where(plane, namespace, 100)
        assert witness.violations() == []
        assert all(rig.metric("ateplace_extender_calls_total", number, verb="filter") for number in (0, 1))
        assert len(set(found.values())) <= 6, "100 × 400m on nodes of 8 CPUs: five, and one more"


@pytest.mark.parametrize("spare", [0, 4])
def test_two_replicas_leave_room_for_atelet_on_nodes_that_are_filled_exactly(
    plane: ControlPlane, pool: Object, namespace: str, nodes: Nodes, spare: int
) -> None:
    """Neither sees the other's picks before they are bound, and the scheduler does not count an atelet that is not."""
    nodes(4 + spare, cpu="8")
    with atelet_with_requests(plane), Scheduling(plane, replicas=2) as rig:
        create(plane, [ateom(pool, f"p{n}", requests={"cpu": "500m", "memory": "64Mi"}) for n in range(60)])
        used = Counter(where(plane, namespace, 60, timeout=120).values())
        assert all(rig.metric("ateplace_extender_calls_total", number, verb="filter") for number in (0, 1))
        assert max(used.values()) <= 15 and len(used) <= 5, f"7.5 CPUs of 8 each, and one node more: {used}"
        ready_atelets(plane, list(used))
        within_allocatable(plane, list(used))


@pytest.mark.parametrize("allowed", [True, False])
def test_a_stranger_is_evicted_for_an_ateom_of_our_class_only_where_that_is_allowed(
    plane: ControlPlane, pool: Object, namespace: str, nodes: Nodes, allowed: bool
) -> None:
    """Two of 1.5 CPUs on 4, and half of one for atelet: one of them makes room for another 1.5."""
    (node,) = nodes(1, cpu="4")
    two_strangers(plane, namespace)
    with atelet_with_requests(plane), Scheduling(plane, extender__preempt_others=allowed) as rig:
        create(plane, [ateom(pool, "p", requests={"cpu": "1500m", "memory": "64Mi"})])
        calls = "ateplace_extender_calls_total"
        plane.wait(lambda: rig.metric(calls, verb="preempt") > 0, why="the scheduler to ask")

        def left() -> dict[str, str]:
            pods = plane.api.list(f"/api/v1/namespaces/{namespace}/pods")
            return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}

        if allowed:
            plane.wait(lambda: left()["p"] == node, timeout=60, why="the pod to be placed")
            assert len(left()) == 2
            ready_atelets(plane, [node])
            within_allocatable(plane, [node])
        else:
            assert len(left()) == 3 and rig.metric(calls, verb="preempt", result="refused")


@pytest.fixture
def meddler(plane: ControlPlane) -> Iterator[Meddler]:
    with Meddler(plane) as between:
        yield between


def failures(plane: ControlPlane, namespace: str) -> list[str]:
    """What the scheduler said about attempts that failed."""
    events = plane.api.list(f"/api/v1/namespaces/{namespace}/events", fieldSelector="reason=FailedScheduling")
    return [event.get("message") or event.get("note", "") for event in events]


def test_34_a_call_under_way_at_sigterm_is_answered_before_the_end(
    plane: ControlPlane, pool: Object, namespace: str, nodes: Nodes, meddler: Meddler
) -> None:
    (node,) = nodes(1)
    with Witness(plane) as witness, Scheduling(plane, cluster__kubeconfig=meddler.kubeconfig):
        meddler.rule = only("PATCH", f"/nodes/{node}", Fate.LATE)
        create(plane, [ateom(pool, "p", requests=SMALL)])
        plane.wait(lambda: any(fate is Fate.LATE for *_, fate in meddler.seen), why="a call to be under way")
        log = plane.log("extender-0")
        before = len(log.read_text())
        plane.keeper.signal("extender-0", signal.SIGTERM)
        plane.wait(lambda: "stopping" in log.read_text()[before:], why="it to be stopping")
        meddler.let_through()
        assert plane.keeper.wait("extender-0", 30) == 0
        assert where(plane, namespace, 1) == {"p": node}
        assert failures(plane, namespace) == []
        assert witness.violations() == []


def test_39_a_node_whose_annotations_are_near_their_limit_is_refused_in_words(
    plane: ControlPlane, pool: Object, namespace: str, nodes: Nodes
) -> None:
    (node,) = nodes(1)
    path = f"/api/v1/nodes/{node}"
    plane.api.patch(path, {"metadata": {"annotations": {"example.com/big": "x" * (256 * 1024 - 1024)}}})
    with Scheduling(plane):
        create(plane, [ateom(pool, "p", requests=SMALL)])
        words = "the node's annotations are near the API's limit"
        plane.wait(lambda: any(words in said for said in failures(plane, namespace)), why=words)
        assert claims(plane, node) == {}
        plane.api.patch(path, {"metadata": {"annotations": {"example.com/big": None}}})
        assert where(plane, namespace, 1) == {"p": node}
        assert claims(plane, node)


HASTY = """
from ateplace.extender.filter import claiming, handler

answer = handler.Filter._answer

def answer_first(self, case, call, choice):
    self._claiming._writer.ahead([choice.node], case.demand.pool, read=lambda node: False, read_first=False)
    return answer(self, case, call, choice)

handler.Filter._answer = answer_first
claiming.answerable = lambda case, node: True
claiming.must_read = lambda case, node: False
from ateplace.cli.main import main
main()
"""
"""An extender that answers first and claims afterwards."""


def test_an_extender_that_answers_before_it_claims_is_found_out(
    plane: ControlPlane, pool: Object, namespace: str, nodes: Nodes, witness: Witness
) -> None:
    """The shared plane's own witness tells, and has then told: no other test is to blame."""
    assert witness.violations() == []
    nodes(20, cpu="2")
    hasty = [sys.executable, "-c", HASTY, "extender"]
    with Scheduling(plane, argv=hasty, extender__open_ahead=0):
        create(plane, [ateom(pool, f"p{n}", requests={"cpu": "1500m", "memory": "64Mi"}) for n in range(20)])
        where(plane, namespace, 20)
        assert witness.violations()


def waiting(plane: ControlPlane, **scheduler: Any) -> Scheduling:
    """A linger of 4 s, which the scheduler will exceed."""
    return Scheduling(plane, scheduler=scheduler, reconciler__linger=4, cluster__stale_after=3)


def test_bindings_held_up_past_the_linger_find_their_claims(
    plane: ControlPlane, pool: Object, namespace: str, nodes: Nodes
) -> None:
    nodes(3, cpu="4")
    slow = {"qps": 1, "burst": 2}
    reconciler = Reconciler(plane, namespace, linger=4, unbound_wait=300, cluster__stale_after=3).start()
    try:
        with Witness(plane) as witness, waiting(plane, clientConnection=slow):
            begun = time.monotonic()
            create(plane, [ateom(pool, f"p{n}", requests=SMALL) for n in range(18)])
            found = where(plane, namespace, 18, timeout=180)
            assert time.monotonic() - begun > 3 * 4, "the last binding came long after the linger"
            assert witness.violations() == []
            assert all(claims(plane, node) for node in set(found.values()))
    finally:
        reconciler.kill()


def test_a_volume_that_is_late_does_not_cost_the_claim(
    plane: ControlPlane, pool: Object, namespace: str, nodes: Nodes
) -> None:
    (node,) = nodes(1)
    storage = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "late"},
        "provisioner": "example.com/late",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    size = {"accessModes": ["ReadWriteOnce"], "storageClassName": "late"}
    plane.apply([storage])
    claim = {"metadata": {"name": "data"}, "spec": {**size, "resources": {"requests": {"storage": "1Gi"}}}}
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    plane.api.post(path, claim)
    reconciler = Reconciler(plane, namespace, linger=4, unbound_wait=300, cluster__stale_after=3).start()
    try:
        with Witness(plane) as witness, waiting(plane):
            volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
            create(plane, [ateom(pool, "p", requests=SMALL, volumes=[volume])])
            plane.wait(
                lambda: "volume.kubernetes.io/selected-node" in str(plane.api.get(f"{path}/data")["metadata"]),
                why="the scheduler to wait for the volume",
            )
            until = time.monotonic() + 12
            plane.wait(lambda: claims(plane, node) and time.monotonic() > until, why="three lingers", every=0.5)
            spec = {
                **size,
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": "/data"},
                "claimRef": {"namespace": namespace, "name": "data"},
            }
            plane.api.post("/api/v1/persistentvolumes", {"metadata": {"name": f"pv-{namespace}"}, "spec": spec})
            assert where(plane, namespace, 1) == {"p": node}
            assert witness.violations() == []
            assert claims(plane, node)
    finally:
        reconciler.kill()


def test_31_43_while_the_api_server_is_away_calls_fail_and_afterwards_everything_is_placed() -> None:
    """On a plane of its own, which is hurt."""
    with ControlPlane(nodes=4) as plane:
        substrate.install(plane, controller=False)
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": "t"}})
        plane.wait(lambda: plane.api.exists("/api/v1/namespaces/t/serviceaccounts/default"))
        pool = substrate.pool(plane, "t", "web")
        with Scheduling(plane, cluster__stale_after=3, extender__deadline=2) as rig:
            pod = ateom(pool, "ghost")
            pod["metadata"]["uid"] = "ghost"
            plane.kill_apiserver()
            with rig.client() as client:

                def error() -> str:
                    answer = client.post("/filter", json={"Pod": pod, "NodeNames": ["node-0000"]}).json()
                    assert "Error" in answer, "nothing is answered that is not claimed"
                    return str(answer["Error"])

                plane.wait(lambda: "has been silent" in error(), why="the view to be stale")
                assert "silent" in rig.get("/readyz")
            plane.start_apiserver()
            rig.wait_ready()
            plane.restart_scheduler(rig.name)
            pods = [ateom(pool, f"p{n}", requests=SMALL) for n in range(20)]
            for one in pods:
                del one["spec"]["nodeSelector"]
            with Witness(plane) as witness:
                create(plane, pods)
                where(plane, "t", 20)
                assert witness.violations() == []
