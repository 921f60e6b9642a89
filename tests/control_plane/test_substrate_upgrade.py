"""An upgrade of Agent Substrate by its runbook: two versions' atelets, then three, and one that goes too early."""

from collections.abc import Iterator

import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.scene import OVERLAY
from ateplace.local.upgrade import EACH, NEW, OLD, POOLS, SERVING, Attendance, Upgrade, trouble
from ateplace.local.witness import Witness

NODES = 3
FULL = EACH * len(POOLS)
SLOW = 90.0
"""Seconds that anything may take here; `make run ARGS="--scene upgrade --once"` measures."""


@pytest.fixture(scope="module")
def upgrade() -> Iterator[Upgrade]:
    with ControlPlane(start_delay=0.3, audit=True) as plane:
        made = Upgrade(plane, NODES)
        made.install(OVERLAY, reconciler__linger=20)
        yield made


def gated(upgrade: Upgrade, version: str) -> bool:
    spec = upgrade.plane.api.get(f"{substrate.DAEMONSETS}/atelet-{version}")["spec"]["template"]["spec"]
    return names.NODE_LABEL in spec["nodeSelector"]


def test_nodes_are_flipped_one_by_one_and_back_and_no_ateom_is_without_the_atelet_of_its_version(
    upgrade: Upgrade,
) -> None:
    plane = upgrade.plane
    with Witness(plane) as witness, Attendance(plane) as attendance, upgrade.load():
        upgrade.prepare()
        assert upgrade.waiting(NEW) == NODES * FULL, "no node has that version yet"
        flips = [upgrade.flip(node, NEW) for node in upgrade.nodes]
        assert upgrade.placed(NEW) == dict.fromkeys(upgrade.nodes, FULL)
        plane.wait(lambda: upgrade.waiting(OLD) == NODES * FULL, timeout=SLOW, why="the reserve")
        cost = upgrade.cost(2.0)
        assert cost.keys() == {"webhook", "extender", "reconciler", "scheduler"}
        assert (upgrade.warnings(), upgrade.late()) == ([], 0)
        flips.append(upgrade.flip(upgrade.nodes[0], OLD))
        assert upgrade.placed(OLD) == {upgrade.nodes[0]: FULL}
        assert witness.violations() == []
    assert attendance.looks > 0 and trouble(flips, attendance, SLOW) == []


def test_a_third_daemonset_that_selects_no_node_is_gated_and_changes_nothing(upgrade: Upgrade) -> None:
    plane, before = upgrade.plane, upgrade.placed(NEW)
    plane.apply(substrate.ungated(substrate.atelet(plane, "v3")))
    plane.wait(lambda: gated(upgrade, "v3"), timeout=SLOW, why="the third DaemonSet to be gated")
    end_one(upgrade, NEW, upgrade.nodes[1])
    plane.wait(lambda: upgrade.placed(NEW) == before, timeout=SLOW, why="another ateom in its place", every=0.2)
    assert upgrade.ready_atelets("v3") == []


def test_a_daemonset_deleted_while_its_pods_run_takes_no_more_ateoms_until_it_is_back(upgrade: Upgrade) -> None:
    """Its atelets go with it; the ateoms that are there keep their claims, and their nodes get no more."""
    plane, node = upgrade.plane, upgrade.nodes[1]
    before = upgrade.placed(NEW)
    plane.api.delete(f"{substrate.DAEMONSETS}/atelet-{NEW}", {"propagationPolicy": "Background"})
    plane.wait(lambda: not upgrade.ready_atelets(NEW), timeout=SLOW, why="its atelets to be gone", every=0.2)
    end_one(upgrade, NEW, node)
    reason = "atelet's nodeSelector does not match"
    plane.wait(lambda: reason in reasons(upgrade), timeout=SLOW, why="the reason", every=0.5)
    assert upgrade.placed(NEW)[node] == FULL - 1
    assert plane.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"][names.NODE_LABEL] == "true"
    plane.apply(substrate.atelet(plane, NEW))
    plane.wait(lambda: upgrade.placed(NEW) == before, timeout=SLOW, why="the ateom to be placed", every=0.2)
    plane.wait(lambda: node in upgrade.ready_atelets(NEW), timeout=SLOW, why="its atelet", every=0.2)


def end_one(upgrade: Upgrade, version: str, node: str) -> None:
    pods = f"/api/v1/namespaces/{SERVING}/pods"
    name = next(
        pod["metadata"]["name"]
        for pod in upgrade.plane.api.list(pods, fieldSelector=f"spec.nodeName={node}")
        if pod["spec"]["nodeSelector"][substrate.VERSION_LABEL] == version
    )
    upgrade.plane.api.delete(f"{pods}/{name}")
    upgrade.plane.wait(lambda: not upgrade.plane.api.exists(f"{pods}/{name}"), timeout=SLOW, why="an ateom to be gone")


def reasons(upgrade: Upgrade) -> str:
    """What the scheduler says of pods that it cannot place."""
    pods = upgrade.plane.api.list(f"/api/v1/namespaces/{SERVING}/pods", fieldSelector="spec.nodeName=")
    return "; ".join(one.get("message", "") for pod in pods for one in pod["status"].get("conditions", ()))
