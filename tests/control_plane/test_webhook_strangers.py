"""The webhook under strangers: real creations through the API server beside them.

Strangers have addresses of loopback of their own (127.0.0.x); the API server's is 127.0.0.1.
"""

import asyncio
import itertools
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ateplace import names
from local import ApiError, ControlPlane, substrate, webhooks
from local.api import Object
from local.webhooks import Webhook
from webhook import pools

CREATIONS = 30


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Webhook]:
    substrate.install(plane, controller=False)
    webhooks.install_access(plane)
    with webhooks.webhook(plane) as webhook:
        yield webhook


@pytest.fixture
def seen(plane: ControlPlane, namespace: str, running: Webhook) -> str:
    webhooks.select(plane, namespace, running)
    substrate.pool(plane, namespace, "pool")
    return namespace


def review(pool: str) -> bytes:
    pod = {"metadata": {"labels": {names.POOL_LABEL: pool}}, "spec": {"containers": []}}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": "u", "kind": kind, "operation": "CREATE", "namespace": "invented", "object": pod}
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    head = f"POST /mutate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


class Strangers:
    """So many connections from one address, each asking again and again; opened anew when they are closed."""

    def __init__(self, webhook: Webhook, count: int, ask: Callable[[], bytes], source: str = "127.0.0.2") -> None:
        self.webhook = webhook
        self.count = count
        self.ask = ask
        self.source = source
        self.answers = 0
        self.opened = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> "Strangers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    async def _run(self) -> None:
        context = ssl.create_default_context(cadata=self.webhook.ca.decode())
        await asyncio.gather(*(self._one(context) for _ in range(self.count)))

    async def _one(self, context: ssl.SSLContext) -> None:
        while not self._over.is_set():
            writer = None
            try:
                async with asyncio.timeout(20):
                    reader, writer = await asyncio.open_connection(
                        "127.0.0.1",
                        self.webhook.port,
                        ssl=context,
                        server_hostname="localhost",
                        local_addr=(self.source, 0),
                    )
                    self.opened += 1
                    await self._ask(reader, writer)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                await asyncio.sleep(0.2)
            finally:
                if writer is not None:
                    writer.transport.abort()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not self._over.is_set():
            writer.write(self.ask())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            self.answers += 1
            await asyncio.sleep(0.05)


def create(plane: ControlPlane, namespace: str) -> list[float]:
    """Seconds that each of so many creations took, one after another; every one must succeed."""
    body: Object = {
        "metadata": {"generateName": "p-", "labels": {names.POOL_LABEL: "pool"}},
        "spec": {"containers": [{"name": "c", "image": "registry.example/c:1"}]},
    }
    took, failed = [], []
    for _ in range(CREATIONS):
        begun = time.perf_counter()
        try:
            made = plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body, dryRun="All")
            assert names.POOL_UID_LABEL in made["metadata"]["labels"]
        except ApiError as error:
            failed.append(str(error))
        took.append(time.perf_counter() - begun)
    assert failed == []
    return sorted(took)


def looked_up(webhook: Webhook) -> float:
    """Direct looks of the webhook at the API server so far."""
    page = webhook._get("metrics").text
    return sum(
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith("ateplace_webhook_pool_lookups_total{") and '"crowded"' not in line
    )


def test_six_hundred_connections_of_a_stranger_fail_no_creation(
    plane: ControlPlane, running: Webhook, seen: str
) -> None:
    numbers = itertools.count()
    before = create(plane, seen)
    with Strangers(running, 600, lambda: review(f"invented-{next(numbers)}")) as strangers:
        plane.wait(lambda: strangers.answers > 600, timeout=60, why="the stranger to be served")
        during = create(plane, seen)
    print(f"\ncreation: median {before[15]:.3f} s, longest {before[-1]:.3f} s alone;", end=" ")
    print(f"{during[15]:.3f} s, {during[-1]:.3f} s beside {strangers.opened} connections, {strangers.answers} answers")


def test_reviews_of_invented_pools_cost_a_bounded_number_of_reads(
    plane: ControlPlane, running: Webhook, seen: str
) -> None:
    numbers = itertools.count()
    before, begun = looked_up(running), time.monotonic()
    with Strangers(running, 100, lambda: review(f"invented-{next(numbers)}")) as strangers:
        plane.wait(lambda: strangers.answers > 500, timeout=60, why="reviews")
        during = create(plane, seen)
        fresh = substrate.pool(plane, seen, "fresh")["metadata"]["uid"]
        body: Object = {
            "metadata": {"generateName": "p-", "labels": {names.POOL_LABEL: "fresh"}},
            "spec": {"containers": [{"name": "c", "image": "registry.example/c:1"}]},
        }
        made = plane.api.post(f"/api/v1/namespaces/{seen}/pods", body, dryRun="All")
        assert made["metadata"]["labels"][names.POOL_UID_LABEL] == fresh
        reads, seconds = looked_up(running) - before, time.monotonic() - begun
    print(f"\n{strangers.answers} reviews in {seconds:.0f} s, {reads:.0f} reads; longest creation {during[-1]:.3f} s")
    assert reads <= pools.RATE * (seconds + 2)
    said = [line for line in running.log().splitlines() if "cannot look up a WorkerPool" in line]
    assert len(said) < 2 * seconds + 40
