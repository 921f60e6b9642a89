"""ateoms on real nodes: what pretended kubelets cannot show."""

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import ApiError
from ateplace.local.commands import REAL
from ateplace.local.pods import Installation
from ateplace.local.realnode import RealNode
from ateplace.local.realnode.stand_ins import ATEOM
from ateplace.local.witness import Witness
from tests.node.observing import (
    SLOW_ATEOM,
    SLOW_END,
    SMALL,
    atelets,
    claimed,
    containers,
    incarnations,
    phases,
    pods,
    running,
    started,
)

Pool = Callable[..., None]
Nodes = tuple[RealNode, RealNode]


@pytest.fixture(autouse=True)
def witnessed(installed: Installation, nothing_is_bound_before_it_is_claimed: None) -> None:
    """Applies it to this file."""


@pytest.fixture
def pool(plane: ControlPlane, real_nodes: Nodes, namespace: str) -> Iterator[Pool]:
    """`pool("web", 3)` makes a WorkerPool for one real node (`node=None`: for both); in the end all is given back."""

    def make(name: str, replicas: int, *, image: str = ATEOM, node: RealNode | None = real_nodes[0]) -> None:
        where = {REAL: "true"} | ({"kubernetes.io/hostname": node.name} if node else {})
        substrate.pool(plane, namespace, name, replicas, image=image, nodeSelector=where, resources=SMALL)

    yield make
    for each in plane.api.list(substrate.POOLS.format(namespace)):
        with contextlib.suppress(ApiError):  # a test may have deleted it
            substrate.delete(plane, namespace, each["metadata"]["name"])
    plane.wait(
        lambda: not any(claimed(plane, node) for node in real_nodes) and not atelets(plane),
        timeout=90,
        why="the nodes to be given back",
        every=0.2,
    )


@pytest.fixture
def slow_atelet(plane: ControlPlane, installed: Installation) -> Iterator[float]:
    """atelet serves so many seconds after its container's start."""
    _delay_atelet(plane, "12")
    yield 12.0
    _delay_atelet(plane, "0")


def _delay_atelet(plane: ControlPlane, seconds: str) -> None:
    container = {"name": "atelet", "env": [{"name": "DELAY", "value": seconds}]}
    plane.api.patch(
        substrate.daemonset(plane), {"spec": {"template": {"spec": {"containers": [container]}}}}, "strategic"
    )


def test_an_ateom_starts_when_atelet_accepts_connections_and_not_before(
    plane: ControlPlane, real_nodes: Nodes, namespace: str, slow_atelet: float, pool: Pool
) -> None:
    node = real_nodes[0]
    pool("web", 3)
    serves = plane.wait(lambda: started(atelets(plane)), timeout=60, why="atelet's container") + slow_atelet
    looks = 0
    while True:
        found = phases(plane, namespace)
        if time.time() > serves:
            break
        assert found == ["Pending"] * 3  # atelet's container runs, and nothing listens
        looks += 1
        time.sleep(0.1)
    assert looks
    plane.wait(running(plane, namespace, 3), timeout=60, why="three ateoms")
    for pod in pods(plane, namespace):
        assert (pod["spec"]["nodeName"], pod["status"]["hostIP"]) == (node.name, node.address)
        assert [each["restartCount"] for each in containers(pod, "initContainerStatuses")] == [0]
        said = plane.kubectl("logs", "-n", namespace, pod["metadata"]["name"], "-c", names.INIT_CONTAINER)
        assert said.startswith(f"waiting for atelet on {node.address} port 8085 (")
        assert said.endswith(f"atelet answers on {node.address} port 8085\n")
        inside = plane.kubectl("exec", "-n", namespace, pod["metadata"]["name"], "--", "cat", "/proc/1/cmdline")
        assert f"--pod-uid={pod['metadata']['uid']}" in inside


def test_a_node_is_kept_until_the_last_container_has_ended(
    plane: ControlPlane, real_nodes: Nodes, namespace: str, pool: Pool
) -> None:
    node = real_nodes[0]
    pool("slow", 2, image=SLOW_ATEOM)
    plane.wait(running(plane, namespace, 2), timeout=60, why="two ateoms that end slowly")
    substrate.delete(plane, namespace, "slow")
    began = time.monotonic()
    while True:
        kept = claimed(plane, node) and [
            pod for pod in atelets(plane, node) if not pod["metadata"].get("deletionTimestamp")
        ]
        if not any("running" in each["state"] for pod in pods(plane, namespace) for each in containers(pod)):
            break
        assert kept  # it was looked at before the containers were
        time.sleep(0.05)
    assert time.monotonic() - began > SLOW_END - 1


@pytest.mark.parametrize("part", ["kubelet", "containerd"])
def test_a_part_of_the_node_that_is_killed_loses_nothing(
    plane: ControlPlane, real_nodes: Nodes, namespace: str, pool: Pool, part: str
) -> None:
    node = real_nodes[0]
    pool("web", 2)
    plane.wait(running(plane, namespace, 2), timeout=60, why="two ateoms")
    before = set(incarnations(plane, namespace))
    node.kill(part)
    pool("meanwhile", 2)
    plane.wait(running(plane, namespace, 4), timeout=90, why="two more")
    now = incarnations(plane, namespace)
    assert before < set(now)
    assert set(now.values()) == {0}
    assert claimed(plane, node)


@pytest.mark.long
def test_a_node_without_its_kubelet_for_75_seconds_keeps_its_ateoms_and_its_claim(
    plane: ControlPlane, real_nodes: Nodes, namespace: str, pool: Pool
) -> None:
    node = real_nodes[0]
    pool("web", 2)
    plane.wait(running(plane, namespace, 2), timeout=60, why="two ateoms")
    before = incarnations(plane, namespace)
    with node.without("kubelet"):
        began = time.monotonic()
        plane.wait(lambda: not_ready(plane, node), timeout=70, why="the node to be NotReady", every=0.5)
        plane.wait(lambda: time.monotonic() - began > 75, timeout=80, why="75 seconds", every=0.5)
        assert claimed(plane, node)
        assert len(atelets(plane, node)) == 1
    plane.wait(node.ready, timeout=60, why="the node to be back", every=0.5)
    assert incarnations(plane, namespace) == before
    pool("more", 1)
    plane.wait(running(plane, namespace, 3), timeout=60, why="one more")


def not_ready(plane: ControlPlane, node: RealNode) -> bool:
    taints = plane.api.get(f"/api/v1/nodes/{node.name}")["spec"].get("taints", ())
    return any(taint["key"] == "node.kubernetes.io/unreachable" for taint in taints)


def test_thirty_ateoms_on_two_nodes_come_and_go(
    plane: ControlPlane, real_nodes: Nodes, namespace: str, pool: Pool, witness: Witness
) -> None:
    bound = witness.bound
    pool("web", 30, node=None)
    plane.wait(running(plane, namespace, 30), timeout=120, why="thirty ateoms", every=0.2)
    assert {pod["spec"]["nodeName"] for pod in pods(plane, namespace)} == {node.name for node in real_nodes}
    substrate.delete(plane, namespace, "web")
    plane.wait(lambda: not pods(plane, namespace), timeout=120, why="their end", every=0.2)
    assert witness.violations() == []
    assert witness.bound - bound == 30


@pytest.mark.parametrize(("resource", "reason"), [("cpu", "OutOfcpu"), ("memory", "OutOfmemory")])
def test_kubelet_refuses_what_does_not_fit(
    plane: ControlPlane, real_nodes: Nodes, namespace: str, resource: str, reason: str
) -> None:
    """KWOK's would admit it: this is what happens to the later pod when two schedulers fill a node at once."""
    node = real_nodes[1]
    container = {"name": "c", "image": ATEOM, "resources": {"requests": {resource: "1000G"}}}
    body = {"metadata": {"name": "large"}, "spec": {"nodeName": node.name, "containers": [container]}}
    plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body)
    plane.wait(lambda: phases(plane, namespace) == ["Failed"], why="a refusal")
    assert pods(plane, namespace)[0]["status"]["reason"] == reason


def test_a_container_that_takes_too_much_memory_is_killed_and_its_node_stays_claimed(
    plane: ControlPlane, real_nodes: Nodes, namespace: str, pool: Pool
) -> None:
    node = real_nodes[0]
    pool("web", 1)
    plane.wait(running(plane, namespace, 1), timeout=60, why="an ateom")
    eat = ["sh", "-c", "dd if=/dev/zero of=/dev/null bs=256M count=1"]
    resources = {"limits": {"memory": "24Mi"}}
    body = {
        "metadata": {"name": "greedy"},
        "spec": {
            "nodeName": node.name,
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": ATEOM, "command": eat, "resources": resources}],
        },
    }
    plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body)

    def end() -> str:
        pod = plane.api.get(f"/api/v1/namespaces/{namespace}/pods/greedy")
        return str(next((each["state"].get("terminated", {}).get("reason", "") for each in containers(pod)), ""))

    assert plane.wait(end, timeout=60, why="its end") == "OOMKilled"
    assert claimed(plane, node)
