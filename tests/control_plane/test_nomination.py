"""Nominations with a real kube-scheduler, on a cluster of any size; beside every test runs the witness."""

import contextlib
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
import yaml

from ateplace.cluster.records import TEMPLATE_LABEL
from ateplace.local import ControlPlane, substrate
from ateplace.local.scheduling import DEPLOY, Scheduling
from tests.placing import Nodes, atelet_with_requests, ateom, create, own_nodes, where, within_allocatable

SMALL = {"cpu": "400m", "memory": "64Mi"}
TEMPLATE = {TEMPLATE_LABEL: "one"}


@pytest.fixture
def nodes(nodes: Nodes, namespace: str) -> Nodes:
    return own_nodes(nodes, namespace)


@contextlib.contextmanager
def nominating(plane: ControlPlane, replicas: int = 1) -> Iterator[Scheduling]:
    """Half a CPU goes to atelet on every node, and pods are nominated however few nodes there are."""
    substrate.install(plane, controller=False)
    with atelet_with_requests(plane), Scheduling(plane, replicas=replicas, extender__nominate_nodes=1) as rig:
        yield rig


@contextlib.contextmanager
def waiting(plane: ControlPlane, rig: Scheduling) -> Iterator[None]:
    """What is created meanwhile waits together: the scheduler is away."""
    plane.stop_scheduler(rig.name, signal.SIGKILL)
    yield
    plane.add_scheduler(rig.name, rig.configuration())


def nominations(rig: Scheduling, result: str = "written") -> float:
    return sum(rig.metric("ateplace_extender_nominations_total", n, result=result) for n in range(rig.replicas))


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_burst_is_packed_as_ever_and_pods_of_it_are_nominated(
    plane: ControlPlane, namespace: str, nodes: Nodes, replicas: int
) -> None:
    """With two replicas each call goes to the other one, which knows a nomination from the pod alone. How many are
    nominated depends on who is quicker: with so few nodes often the scheduler."""
    nodes(12)
    with nominating(plane, replicas) as rig:
        pool = substrate.pool(plane, namespace, "web")
        with waiting(plane, rig):
            create(plane, [ateom(pool, f"p{n}", requests=SMALL, labels=TEMPLATE) for n in range(60)])
        used = Counter(where(plane, namespace, 60).values())
        within_allocatable(plane, list(used))
        assert nominations(rig)
        if replicas == 1:
            assert sorted(used.values()) == [6, 18, 18, 18], "60 × 400m beside an atelet of 500m on 8 CPUs"
            assert rig.metric("ateplace_extender_calls_total", verb="filter", result="error") == 0
        plane.wait(lambda: not rig.metric("ateplace_extender_picks_in_flight"), why="each pick to be over")


def test_a_node_that_goes_takes_its_nominations_along(plane: ControlPlane, namespace: str, nodes: Nodes) -> None:
    nodes(4)
    with nominating(plane) as rig:
        pool = substrate.pool(plane, namespace, "web")
        with waiting(plane, rig):
            create(plane, [ateom(pool, f"p{n}", requests=SMALL, labels=TEMPLATE) for n in range(40)])
        path = f"/api/v1/namespaces/{namespace}/pods"

        def nominated() -> str:
            found = [pod["status"].get("nominatedNodeName") for pod in plane.api.list(path)]
            return next(filter(None, found), "")

        lost = plane.wait(nominated, why="a nomination", every=0.01)
        with waiting(plane, rig):  # a node that goes between our answer and the binding is another matter
            plane.remove_nodes([lost])

        def settled() -> set[str]:
            pods = plane.api.list(path)
            waits = [pod["metadata"]["name"] for pod in pods if not pod["spec"].get("nodeName")]
            assert not waits, f"{waits} wait"
            return {pod["spec"]["nodeName"] for pod in pods}

        used = plane.wait(settled, timeout=60, why="every pod to be bound")
        within_allocatable(plane, list(used - {lost}))


def test_without_the_right_everything_works_as_before(plane: ControlPlane, namespace: str, nodes: Nodes) -> None:
    nodes(6)
    documents = list(yaml.safe_load_all((DEPLOY / "base" / "extender.yaml").read_text("utf-8")))
    (role,) = (one for one in documents if one["kind"] == "ClusterRole")
    less = {**role, "rules": [rule for rule in role["rules"] if rule["resources"] != ["pods/status"]]}
    with nominating(plane) as rig:
        plane.apply([less])
        try:
            pool = substrate.pool(plane, namespace, "web")
            with waiting(plane, rig):
                create(plane, [ateom(pool, f"p{n}", requests=SMALL, labels=TEMPLATE) for n in range(40)])
            assert len(set(where(plane, namespace, 40).values())) == 3
            assert nominations(rig, "refused") and not nominations(rig)
        finally:
            plane.apply([role])
