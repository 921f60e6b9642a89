"""Rolling restarts of every role under load: no pod is refused, no call fails, nothing is bound unclaimed (row 34)."""

import time
from collections.abc import Iterator

import pytest

from ateplace.local import ControlPlane, substrate
from ateplace.local.replicas import ReplicatedInstallation
from ateplace.local.witness import Witness
from tests.deploying import SECOND_SCHEDULER
from tests.load import Load, failed_calls

NAMESPACE = "load"
ROLES = ("webhook", "extender", "reconciler", "scheduler")
RATE = 20

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def installed() -> Iterator[ReplicatedInstallation]:
    with ControlPlane(nodes=12) as plane:
        substrate.install(plane)
        with ReplicatedInstallation(plane, SECOND_SCHEDULER, reconciler__linger=120) as running:
            plane.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            substrate.pool(plane, NAMESPACE, "web", resources={"requests": {"cpu": "50m", "memory": "32Mi"}})
            yield running


@pytest.mark.parametrize("role", ROLES)
def test_34_a_rolling_restart_fails_nothing(installed: ReplicatedInstallation, role: str) -> None:
    plane = installed.plane
    old = {pod.name for pod in installed.of(role)}
    earlier = len(failed_calls(plane))
    with Witness(plane) as witness:
        with Load(plane, NAMESPACE, "web", rate=RATE) as load:
            quiet = -time.monotonic()
            plane.wait(lambda: load.created >= 40, timeout=90, why="the load to flow")
            quiet += time.monotonic()
            before = load.created
            installed.roll(role)
            during = load.created - before
            quiet -= time.monotonic()
            plane.wait(lambda: load.created >= before + during + 40, timeout=90, why="the load to flow on")
            quiet += time.monotonic()
        undisturbed = min(RATE, 80 / quiet)
        plane.wait(load.placed, timeout=60, why="every pod to be bound")
        load.clear()
        assert witness.violations() == []
        assert witness.bound > 80
    names = {pod.name for pod in installed.of(role)}
    assert len(names) == len(old) == 2 and not names & old
    print(
        f"{role}: {load.created} pods at {load.rate:.1f}/s (else {undisturbed:.1f}/s), {during} during the restart, "
        f"slowest creation {load.slowest:.2f} s, {len(load.failures)} failed, {len(load.stalls)} stalls of the machine"
    )
    assert load.blamed() == []
    failed = failed_calls(plane)[earlier:]
    if role == "scheduler":
        # A stock kube-scheduler that is told to end drops what it has under way itself; the next leader starts over.
        dropped = [line for line in failed if "context canceled" in line and line.partition(":")[0] in old]
        print(f"{len(dropped)} attempts dropped by the schedulers that ended")
        failed = [line for line in failed if line not in dropped]
    assert failed == []
    plane.wait(installed.ready, timeout=30, why="everything to be ready")
    # A machine that is too busy for the full rate is so without a restart, too.
    assert load.rate > 0.9 * RATE or load.rate > 0.7 * undisturbed, "pods were held up by the restart"
