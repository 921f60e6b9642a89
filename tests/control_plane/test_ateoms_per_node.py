"""`extender.ateoms_per_node` with one replica and with two, which do not see each other's picks."""

from collections import Counter

import pytest

from ateplace.extender import fit as why
from ateplace.local import ControlPlane, substrate
from ateplace.local.scheduling import Scheduling
from tests.placing import Nodes, ateom, call, create, own_nodes, where

MOST = 5


@pytest.mark.parametrize("replicas", [1, 2])
def test_each_replica_keeps_to_it_and_there_is_no_second_wave(
    plane: ControlPlane, namespace: str, nodes: Nodes, replicas: int
) -> None:
    """One is exact. Two put up to twice as many on a node, and nothing more once they see each other's."""
    substrate.install(plane, controller=False)
    made = own_nodes(nodes, namespace)(8)
    pool = substrate.pool(plane, namespace, "web")
    with Scheduling(plane, replicas=replicas, extender__ateoms_per_node=MOST) as rig:
        create(plane, [ateom(pool, f"p{number}") for number in range(20)])
        first = where(plane, namespace, 20)
        used = Counter(first.values())
        assert max(used.values()) <= replicas * MOST, used
        assert all(rig.metric("ateplace_extender_calls_total", number, verb="filter") for number in range(replicas))
        full = sorted(name for name, count in used.items() if count >= MOST)
        probe = ateom(pool, "probe")
        probe["metadata"]["uid"] = "probe"
        refused = dict.fromkeys(full, why.CROWDED)

        def seen() -> bool:
            """Whether every replica, which are asked in turn, counts what all have answered."""
            said = [call(rig, probe, full)["FailedAndUnresolvableNodes"] for _ in range(replicas)]
            assert said == [refused] * replicas, said
            return True

        plane.wait(seen, timeout=30, why="the replicas to see what is bound")
        create(plane, [ateom(pool, f"q{number}") for number in range(10)])
        second = where(plane, namespace, 30)
        assert not {second[name] for name in second if name not in first} & set(full)
        assert set(second.values()) <= set(made)
