"""Microvm pools of Agent Substrate's new shape: `ate.dev/kvm`, which atelet itself serves, on nodes that are cold."""

import contextlib
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.kubeconfig import connect
from ateplace.local.pods import Installation
from ateplace.local.scene import OVERLAY
from ateplace.local.witness import Witness

UNITS = 4
TAINT = {"key": "ate.dev/sandboxClass", "value": "microvm", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def installed() -> Iterator[Installation]:
    with ControlPlane(nodes=2, start_delay=0.3) as plane:
        substrate.install(plane)
        installed = Installation(plane, OVERLAY, reconciler__linger=20, extender__atelet_unready_seconds=6)
        installed.start(timeout=180)
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": "vm"}})
        yield installed


@pytest.fixture
def cluster(installed: Installation) -> ControlPlane:
    return installed.plane


def pods(plane: ControlPlane, pool: str) -> list[Object]:
    return plane.api.list("/api/v1/namespaces/vm/pods", labelSelector=f"ate.dev/worker-pool={pool}")


def bound(plane: ControlPlane, pool: str) -> Counter[str]:
    return Counter(pod["spec"]["nodeName"] for pod in pods(plane, pool) if "nodeName" in pod["spec"])


def test_cold_nodes_are_claimed_then_serve_the_device_then_get_ateoms_and_none_is_over_booked(
    cluster: ControlPlane,
) -> None:
    """Versions on one etcd are one order: the Node advertised the device before the pod was bound there."""
    plane = cluster
    kvm = plane.add_nodes(3, "kvm", labels={substrate.KVM_LABEL: str(UNITS)}, taints=[TAINT])
    with Witness(plane) as witness, Advertised(plane) as advertised:
        substrate.pool(plane, "vm", "vms", 10, sandbox_class="microvm", resources={"requests": {"cpu": "100m"}})
        plane.wait(lambda: bound(plane, "vms").total() == 10, timeout=120, why="ten microvm ateoms", every=0.2)
        assert witness.violations() == []
        used = bound(plane, "vms")
        assert set(used) <= set(kvm) and max(used.values()) <= UNITS, used
        assert advertised.early() == []
    substrate.scale(plane, "vm", "vms", 13)
    plane.wait(lambda: bound(plane, "vms").total() == 12, timeout=120, why="all units to be used", every=0.2)
    (left,) = (pod for pod in pods(plane, "vms") if "nodeName" not in pod["spec"])
    plane.wait(lambda: "no ate.dev/kvm is free" in why(plane, left), timeout=60, why="the reason", every=0.5)
    assert max(bound(plane, "vms").values()) == UNITS
    substrate.delete(plane, "vm", "vms")
    plane.wait(lambda: not pods(plane, "vms"), timeout=90, why="the pool to be gone", every=0.2)
    plane.remove_nodes(kvm)


def test_a_node_that_never_serves_the_device_is_given_up_with_a_reason_and_its_atelet_goes(
    cluster: ControlPlane, installed: Installation
) -> None:
    """Nothing happens on the cluster that would bring the pod back: the release of the claim does."""
    plane = cluster
    (without,) = plane.add_nodes(1, "no-kvm", taints=[TAINT])
    substrate.pool(plane, "vm", "none", 1, sandbox_class="microvm")
    (pod,) = plane.wait(lambda: pods(plane, "none"), timeout=60, why="its pod")
    plane.wait(lambda: claimed(plane, without), timeout=120, why="the node to be claimed")
    reason = "atelet was Ready there, and served no ate.dev/kvm"
    plane.wait(lambda: reason in why(plane, pod), timeout=240, why="the node to be given up", every=0.5)
    plane.wait(lambda: not claimed(plane, without), timeout=240, why="its claim to be released", every=0.5)
    assert bound(plane, "none").total() == 0
    said = explained(installed, pod)
    assert [f"1 node: {reason} ({without})"] == [one for one in said["decisions"][-1]["notes"] if reason in one]
    assert reason in said["findings"][-1]["says"]
    plane.api.patch(f"/api/v1/nodes/{without}", {"metadata": {"annotations": {"tests.example/stir": "1"}}})
    other = plane.add_nodes(1, "no-kvm-either", taints=[TAINT])
    plane.wait(lambda: claimed(plane, other[0]), timeout=120, why="the pod to be looked at again")
    assert not claimed(plane, without), "it is remembered"
    substrate.delete(plane, "vm", "none")
    plane.wait(lambda: not pods(plane, "none"), timeout=90, why="the pool to be gone", every=0.2)
    plane.remove_nodes([without, *other])


def explained(installed: Installation, pod: Object) -> Any:
    """What `ateplace explain pod` says."""
    argv = [sys.executable, "-m", "ateplace.cli", "explain", "pod", f"vm/{pod['metadata']['name']}", "--output=json"]
    argv += [f"--set=cluster.kubeconfig={installed.plane.kubeconfig}"]
    argv += [f"--extender-url={installed.pods['extender'].url('')}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def claimed(plane: ControlPlane, node: str) -> bool:
    meta = plane.api.get(f"/api/v1/nodes/{node}")["metadata"]
    keys = any(key.startswith("ate.dev/claim.") for key in meta.get("annotations", {}))
    return keys or "ate.dev/atelet" in meta["labels"]


def why(plane: ControlPlane, pod: Object) -> str:
    """What the scheduler says of a pod that it cannot place."""
    found = plane.api.get(f"/api/v1/namespaces/vm/pods/{pod['metadata']['name']}")
    return "; ".join(one.get("message", "") for one in found["status"].get("conditions", ()))


class Advertised:
    """The version in which each Node first advertised the device, and in which each ateom was first seen bound."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._nodes: dict[str, int] = {}
        self._pods: dict[str, tuple[str, int]] = {}
        self._stopped = threading.Event()

    def __enter__(self) -> "Advertised":
        for path, note in (("/api/v1/nodes", self._node), ("/api/v1/namespaces/vm/pods", self._pod)):
            version = self._plane.api.get(path)["metadata"]["resourceVersion"]
            threading.Thread(target=self._follow, args=(path, note, version), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def early(self) -> list[str]:
        """Ateoms that were bound before their node advertised the device."""
        self._plane.wait(lambda: len(self._pods) == bound(self._plane, "vms").total(), why="every binding to be seen")
        return [name for name, (node, version) in self._pods.items() if self._nodes.get(node, version) >= version]

    def _follow(self, path: str, note: Callable[[Object], None], version: str) -> None:
        api = connect(self._plane.kubeconfig)
        watch = api.watch(path, resourceVersion=version)
        with contextlib.suppress(httpx.HTTPError), contextlib.closing(api), watch as events:
            for event in events:
                if self._stopped.is_set():
                    return
                note(event["object"])

    def _node(self, node: Object) -> None:
        if node["status"].get("allocatable", {}).get(substrate.KVM, "0") != "0":
            self._nodes.setdefault(node["metadata"]["name"], int(node["metadata"]["resourceVersion"]))

    def _pod(self, pod: Object) -> None:
        if node := pod["spec"].get("nodeName"):
            self._pods.setdefault(pod["metadata"]["name"], (node, int(pod["metadata"]["resourceVersion"])))
