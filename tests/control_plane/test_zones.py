"""Three zones of ten nodes, a real scheduler, and a pool that grows: balanced at every step, on as few nodes as fit."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from ateplace import names
from ateplace.local import ApiError, ControlPlane, substrate
from ateplace.local.scheduling import Scheduling
from tests.placing import OWNER, atelet_with_requests, ateom, create, where

PER_NODE = 15
REQUESTS = {"cpu": "500m", "memory": "64Mi"}
"""Half a CPU of 8 goes to atelet."""


@pytest.fixture(scope="module")
def rig(plane: ControlPlane) -> Iterator[Scheduling]:
    substrate.install(plane, controller=False)
    with Scheduling(plane) as running, atelet_with_requests(plane):
        running.restart()
        yield running


def test_a_pool_that_grows_from_1_to_300_is_balanced_over_three_zones_one_of_which_is_lost_and_comes_back(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Callable[..., list[str]]
) -> None:
    zone_of: dict[str, str] = {}

    def add(zone: str) -> None:
        made = nodes(10, labels={OWNER: namespace, names.ZONE_LABEL: zone})
        zone_of.update(dict.fromkeys(made, zone))

    for zone in ("a", "b", "c"):
        add(zone)
    pool = substrate.pool(plane, namespace, "web")
    count = 0
    for step in (1, 1, 13, 1, 14, 15, 30, 45, 80, 100):
        create(plane, [ateom(pool, f"p{count + each}", requests=REQUESTS) for each in range(step)])
        count += step
        used = Counter(where(plane, namespace, count, timeout=180).values())
        ateoms = Counter(zone_of[name] for name in used.elements())
        assert max(ateoms.values()) - min(ateoms[zone] for zone in "abc") <= PER_NODE
        assert len(used) == -(-count // PER_NODE), "as many nodes as 300 ateoms need, and no more"
    assert count == 300
    assert "new to the pool, in zone " in rig.get(f"/explain?pod={namespace}/p0")

    lost = [name for name, zone in zone_of.items() if zone == "a"]
    gone = [pod for pod, name in where(plane, namespace, count).items() if name in lost]
    plane.remove_nodes(lost)
    for pod in gone:
        with contextlib.suppress(ApiError):  # pod garbage collection may be quicker
            plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/{pod}")
    left = count - len(gone)
    where(plane, namespace, left)
    create(plane, [ateom(pool, f"again-{each}", requests=REQUESTS) for each in range(90)])
    used = Counter(where(plane, namespace, left + 90, timeout=180).values())
    ateoms = Counter(zone_of[name] for name in used.elements())
    assert set(ateoms) == {"b", "c"} and abs(ateoms["b"] - ateoms["c"]) <= PER_NODE

    add("a")
    create(plane, [ateom(pool, f"back-{each}", requests=REQUESTS) for each in range(60)])
    found = where(plane, namespace, left + 150, timeout=180)
    free = sum(PER_NODE - each for each in used.values())
    back = sum(zone_of[name] == "a" for name in found.values())
    assert back == 60 - free, "nodes that have room are filled first, then the zone that has the fewest"
