"""A burst of ateoms while strangers ask the extender for its metrics."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from local import ControlPlane, substrate
from local.scheduling import Scheduling
from tests.placing import OWNER, ateom, create, where

BURST, CLIENTS = 200, 60
REQUEST = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(scope="module")
def rig(plane: ControlPlane) -> Iterator[Scheduling]:
    substrate.install(plane, controller=False)
    with Scheduling(plane) as running:
        yield running


class Clients:
    """Each asks for the metrics, reads them and asks again."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.answers = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> "Clients":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    async def _run(self) -> None:
        await asyncio.gather(*(self._one() for _ in range(CLIENTS)))

    async def _one(self) -> None:
        while not self._over.is_set():
            writer = None
            try:
                async with asyncio.timeout(10):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=("127.0.0.2", 0))
                    while not self._over.is_set():
                        writer.write(REQUEST)
                        head = (await reader.readuntil(b"\r\n\r\n")).lower()
                        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                        await reader.readexactly(length)
                        self.answers += 1
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                await asyncio.sleep(0.05)
            finally:
                if writer is not None:
                    writer.transport.abort()


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
    with Clients(rig.health[0]) as clients:
        plane.wait(lambda: clients.answers > 0, why="the clients to be served")
        during = burst("during", 3 * BURST)
    print(f"\n{BURST} ateoms bound in {before:.1f} s alone, in {during:.1f} s beside {CLIENTS} clients", end=" ")
    print(f"({clients.answers} answers)")
    assert during < 2 * before + 3
