"""A burst of ateoms while strangers ask the extender for its metrics."""

import time
from collections.abc import Callable, Iterator

import pytest

from ateplace.local import ControlPlane, substrate
from ateplace.local.scheduling import Scheduling
from ateplace.local.strangers import Strangers
from tests.placing import OWNER, ateom, create, where

BURST, CLIENTS = 200, 60
REQUEST = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(scope="module")
def rig(plane: ControlPlane) -> Iterator[Scheduling]:
    substrate.install(plane, controller=False)
    with Scheduling(plane) as running:
        yield running


def test_sixty_clients_of_the_metrics_hold_up_no_burst(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Callable[..., list[str]]
) -> None:
    nodes(10, cpu="60", labels={OWNER: namespace})
    pool = substrate.pool(plane, namespace, "web")
    small = {"cpu": "100m", "memory": "16Mi"}

    def burst(name: str, sum_: int) -> float:
        begun = time.monotonic()
        create(plane, [ateom(pool, f"{name}-{n}", requests=small) for n in range(BURST)])
        where(plane, namespace, sum_, timeout=120)
        return time.monotonic() - begun

    burst("first", BURST)  # opens the nodes
    before = burst("before", 2 * BURST)
    with Strangers(rig.health[0], CLIENTS, lambda: REQUEST, pause=0) as clients:
        plane.wait(lambda: clients.answers > 0, why="the clients to be served")
        during = burst("during", 3 * BURST)
    print(f"\n{BURST} ateoms bound in {before:.1f} s alone, in {during:.1f} s beside {CLIENTS} clients", end=" ")
    print(f"({clients.answers} answers)")
    assert during < 2 * before + 3
