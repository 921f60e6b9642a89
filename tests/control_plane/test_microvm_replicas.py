"""`ate.dev/kvm` with two extenders that are called in turn: no unit is given twice."""

from collections import Counter
from collections.abc import Callable

from ateplace.local import ControlPlane, substrate
from ateplace.local.scheduling import Scheduling
from tests.placing import OWNER, ateom, create, where

UNITS, NODES = 4, 3


def test_two_extenders_in_turn_give_no_unit_twice(
    plane: ControlPlane, namespace: str, nodes: Callable[..., list[str]]
) -> None:
    substrate.install(plane, controller=False)
    nodes(NODES, labels={OWNER: namespace}, resources={substrate.KVM: str(UNITS)})
    pool = substrate.pool(plane, namespace, "vms")
    with Scheduling(plane, replicas=2, reconciler__linger=20) as rig:
        pods = [ateom(pool, f"p{number}") for number in range(UNITS * NODES)]
        for pod in pods:
            (container,) = pod["spec"]["containers"]
            container["resources"] = {"limits": {substrate.KVM: "1"}}
        create(plane, pods)
        used = Counter(where(plane, namespace, len(pods), timeout=300).values())
        assert max(used.values()) == UNITS, used
        for number in (0, 1):
            assert rig.metric("ateplace_extender_calls_total", number, verb="filter") > 2
