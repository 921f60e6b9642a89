"""`ateplace migrate` and `ateplace uninstall` on a cluster that is in use."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from ateplace import names
from ateplace.local import ApiError, ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.kubeconfig import connect
from ateplace.local.pods import Installation
from ateplace.local.scene import OVERLAY
from tests import reconciling
from tests.reconciling import NODES, POOLS, ateom, ateplace, claims, held, pool_path

Nodes = Callable[..., list[str]]
ATELETS = "/api/v1/namespaces/ate-system/pods"


@pytest.fixture
def open_gate(plane: ControlPlane) -> Iterator[None]:
    """atelet on every node, as Agent Substrate has it; gated again afterwards."""
    with reconciling.agent_substrate(plane, controller=False):
        set_gate(plane, None)
        yield
        set_gate(plane, "true")


def set_gate(plane: ControlPlane, value: str | None) -> None:
    selector = {"nodeSelector": {names.NODE_LABEL: value}}
    plane.api.patch(substrate.daemonset(plane), {"spec": {"template": {"spec": selector}}})


def gated(plane: ControlPlane) -> bool:
    spec = plane.api.get(substrate.daemonset(plane))["spec"]["template"]["spec"]
    return names.NODE_LABEL in spec.get("nodeSelector", {})


def atelets(plane: ControlPlane, nodes: list[str]) -> dict[str, str]:
    """Which of these nodes have an atelet that is Ready and stays: its UID."""
    return {
        pod["spec"]["nodeName"]: pod["metadata"]["uid"]
        for pod in plane.api.list(ATELETS, labelSelector="app=atelet")
        if pod["spec"].get("nodeName") in nodes
        and "deletionTimestamp" not in pod["metadata"]
        and any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))
    }


class Departures:
    """Every atelet that was told to end, or ended, on some nodes, from the start of a `with` block on."""

    def __init__(self, plane: ControlPlane, nodes: list[str]) -> None:
        self._api = connect(plane.kubeconfig)
        self._nodes = set(nodes)
        self.seen: list[str] = []
        self._over = False
        listed = self._api.get(ATELETS)
        self._version = listed["metadata"]["resourceVersion"]

    def __enter__(self) -> "Departures":
        threading.Thread(target=self._follow, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True

    def _follow(self) -> None:
        # The thread closes what it reads from: closed from outside, its socket's number would soon be another
        # connection's, whose bytes this thread would then read.
        with (
            contextlib.closing(self._api),
            contextlib.suppress(httpx.HTTPError, ApiError),
            self._api.watch(ATELETS, resourceVersion=self._version) as events,
        ):
            for event in events:
                if self._over:
                    return
                pod: Object = event["object"]
                gone = event["type"] == "DELETED" or "deletionTimestamp" in pod["metadata"]
                if gone and pod["spec"].get("nodeName") in self._nodes:
                    self.seen.append(f"{pod['metadata']['name']} on {pod['spec']['nodeName']}")


@pytest.mark.both_shapes
def test_a_running_cluster_is_migrated_without_an_ateom_losing_its_atelet(
    plane: ControlPlane, namespace: str, nodes: Nodes, open_gate: None
) -> None:
    """30 ateoms on 10 of 20 nodes, some from before us, one of no pool at all."""
    everywhere = nodes(20)
    used, unused = everywhere[:10], everywhere[10:]
    a, b = (substrate.pool(plane, namespace, name)["metadata"]["uid"] for name in "ab")
    for number in range(29):
        name, uid = ("a", a) if number % 2 else ("b", b)
        ateom(plane, namespace, name, uid if number % 3 else "", used[number % 9])
    ateom(plane, namespace, "ghost", "", used[9])
    plane.wait(lambda: len(atelets(plane, everywhere)) == 20, why="atelet everywhere")
    before = atelets(plane, used)
    strategy = plane.api.get(substrate.daemonset(plane))["spec"]["updateStrategy"]

    told = ateplace(plane, "migrate", "--dry-run")
    assert "30 ateoms on 10 of" in told
    assert f"would label {used[0]}" in told
    assert not any(claims(plane, node)[1] for node in everywhere)

    with Departures(plane, used) as departures:
        said = ateplace(plane, "migrate")
        plane.wait(lambda: not atelets(plane, unused), why="atelet to be gone from nodes without ateoms")
        assert departures.seen == []
    assert "atelet runs on 10 nodes, 10 of them with ateoms" in said
    assert atelets(plane, used) == before
    assert plane.api.get(substrate.daemonset(plane))["spec"]["updateStrategy"] == strategy
    assert gated(plane)
    assert {claims(plane, node)[1] for node in used} == {True}
    assert {frozenset(claims(plane, node)[0]) for node in used} == {frozenset({a, b}), frozenset()}

    with Departures(plane, used) as departures:
        assert "labelled and claimed" in ateplace(plane, "migrate"), "again: nothing to do, no harm"
        with reconciling.reconciling(plane):
            plane.wait(lambda: held(plane, namespace), why="the reconciler to have looked at everything")
        assert departures.seen == []
    assert claims(plane, used[9]) == (set(), True), "the label stays under ateoms of no pool"
    assert atelets(plane, used) == before


def test_a_migration_that_would_cost_an_ateom_its_atelet_is_taken_back(
    plane: ControlPlane, namespace: str, nodes: Nodes, open_gate: None
) -> None:
    """Somebody deletes the atelet of a node with ateoms, which does not come back while its place is taken."""
    used, other = nodes(2)
    uid = substrate.pool(plane, namespace, "a")["metadata"]["uid"]
    ateom(plane, namespace, "a", uid, used)
    plane.wait(lambda: len(atelets(plane, [used, other])) == 2, why="atelet everywhere")
    stop = threading.Event()

    def undo() -> None:
        """Remove the label as soon as it appears, so that the closed gate takes atelet away."""
        while not stop.wait(0.05):
            if gated(plane):
                plane.api.patch(f"{NODES}/{used}", {"metadata": {"labels": {names.NODE_LABEL: None}}})

    undoing = threading.Thread(target=undo)
    undoing.start()
    try:
        said = ateplace(plane, "migrate", fails=True)
    finally:
        stop.set()
        undoing.join()
    assert f"atelet left nodes with ateoms: {used}" in said
    assert not gated(plane)
    plane.wait(lambda: len(atelets(plane, [used, other])) == 2, why="atelet everywhere again")


WISHES = {names.HEADROOM_ANNOTATION, names.HEADROOM_WARM_ANNOTATION}
"""What people write on their pools; it is theirs, and stays. Pools of other tests may be going still."""


def ours(plane: ControlPlane) -> dict[str, Any]:
    """Every object, pods aside, that carries a key that we put there."""
    found: dict[str, Any] = {}
    kinds = (NODES, POOLS, "/apis/apps/v1/daemonsets", "/apis/apps/v1/deployments", "/apis/apps/v1/replicasets")
    for item in (item for path in kinds for item in plane.api.list(path)):
        meta = item["metadata"]
        if meta.get("namespace") == names.NAMESPACE:
            continue
        keys = [*meta.get("labels", {}), *meta.get("annotations", {}), *meta.get("finalizers", ())]
        keys += item["spec"].get("template", {}).get("spec", {}).get("nodeSelector") or {}
        mine = [
            key
            for key in keys
            if (key.startswith((names.CLAIM_PREFIX, "ateplace.ate.dev/")) and key not in WISHES)
            or key in {names.NODE_LABEL, names.FINALIZER, names.POOL_UID_LABEL}
        ]
        if mine:
            found[meta["name"]] = mine
    return found


def test_uninstalled_nothing_of_ours_is_left_and_waiting_pods_run_all_the_same(
    plane: ControlPlane, namespace: str, nodes: Nodes
) -> None:
    made = nodes(6)
    where = {"test": namespace}
    for node in made:
        plane.api.patch(f"{NODES}/{node}", {"metadata": {"labels": where}})
    with reconciling.agent_substrate(plane):
        installed = Installation(plane, OVERLAY, reconciler__linger=5, serve__drain=0)
        installed.start()
        substrate.pool(plane, namespace, "web", 6, annotations={names.HEADROOM_ANNOTATION: "2"}, nodeSelector=where)
        plane.wait(lambda: _running(plane, namespace) == 6, timeout=60, why="ateoms to run")
        installed.pods["scheduler"].stop()
        substrate.scale(plane, namespace, "web", 9)
        plane.wait(lambda: len(_pods(plane, namespace)) == 9, why="ateoms that wait")
        assert "a reconciler is still running" in ateplace(plane, "uninstall", fails=True)
        for name in ("reconciler", "extender", "webhook"):
            installed.pods[name].stop()
        assert names.FINALIZER in plane.api.get(pool_path(namespace, "web"))["metadata"]["finalizers"]
        told = ateplace(plane, "uninstall", "--dry-run")
        assert "would take our finalizer off WorkerPools: " in told
        assert ours(plane)
        with Departures(plane, [node for node in made if claims(plane, node)[1]]) as departures:
            ateplace(plane, "uninstall")
            plane.wait(lambda: _running(plane, namespace) == 9, timeout=60, why="all ateoms to run")
            plane.wait(lambda: len(atelets(plane, made)) == 6, why="atelet everywhere")
            assert departures.seen == []
        assert ours(plane) == {}
        new = [pod for pod in _pods(plane, namespace) if pod["spec"]["schedulerName"] == "default-scheduler"]
        assert len(new) == 3
        ateplace(plane, "uninstall")
        substrate.delete(plane, namespace, "web")
        plane.wait(lambda: not plane.api.exists(pool_path(namespace, "web")), why="the pool to go without us")
        plane.kubectl("delete", "-k", str(OVERLAY), "--ignore-not-found", "--wait=true", timeout=120)
        assert "nothing of ours" in ateplace(plane, "uninstall"), "41: our namespace gone"
        substrate.install(plane, controller=False)


def _pods(plane: ControlPlane, namespace: str) -> list[Object]:
    return plane.api.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=names.POOL_LABEL)


def _running(plane: ControlPlane, namespace: str) -> int:
    return sum(pod["status"].get("phase") == "Running" for pod in _pods(plane, namespace))
