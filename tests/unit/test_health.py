"""Health, readiness and metrics as an operator's curl sees them."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ateplace.process import health as module
from ateplace.process import metrics
from ateplace.process.health import LIMITS, Health
from tests.unit.sockets import Answer, Running, answer, request, serving


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def running(health: Health) -> Iterator[Running]:
    with serving(health.app(), LIMITS) as server:
        yield server


def get(running: Running, path: str) -> Answer:
    with running.connect() as connection:
        connection.sendall(request(path, method="GET"))
        return answer(connection)


def test_a_process_without_checks_is_ready(running: Running) -> None:
    assert (get(running, "/readyz").status, get(running, "/readyz").body) == (200, b"ready\n")


def test_every_reason_is_told_and_forgotten_when_it_is_over(running: Running, health: Health) -> None:
    reason: str = "the list of pools has not arrived"
    health.add("pools", lambda: reason)
    health.add("nodes", lambda: "stale for 80 s")
    health.add("fine", lambda: "")
    found = get(running, "/readyz")
    assert (found.status, found.body) == (503, b"pools: the list of pools has not arrived\nnodes: stale for 80 s\n")
    assert b"ateplace_ready 0.0" in get(running, "/metrics").body
    reason = ""
    health.remove("nodes")
    assert get(running, "/readyz").status == 200
    assert b"ateplace_ready 1.0" in get(running, "/metrics").body


def test_a_check_that_fails_is_a_reason(running: Running, health: Health) -> None:
    def broken() -> str:
        raise RuntimeError("broken on purpose")

    health.add("broken", broken)
    found = get(running, "/readyz")
    assert (found.status, found.body) == (503, b"broken: the check failed: broken on purpose\n")


def test_a_name_is_taken_once(health: Health) -> None:
    health.add("pools", lambda: "")
    with pytest.raises(ValueError, match="already a check named 'pools'"):
        health.add("pools", lambda: "")


def test_a_process_that_is_not_ready_still_lives(running: Running, health: Health) -> None:
    health.add("pools", lambda: "not yet")
    assert (get(running, "/healthz").status, get(running, "/healthz").body) == (200, b"ok\n")


def test_metrics_are_in_the_text_format(running: Running) -> None:
    found = get(running, "/metrics")
    assert found.status == 200
    assert found.headers["content-type"].startswith("text/plain; version=")
    assert b"process_resident_memory_bytes" in found.body
    assert b"ateplace_build_info{version=" in found.body


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/redoc"])
def test_nothing_else_is_there(running: Running, path: str) -> None:
    assert get(running, path).status == 404


class Large(Collector):
    """Stands in for the metrics of a large cluster: each look at them holds up the loop for 20 ms."""

    def __init__(self) -> None:
        self.made = 0

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.made += 1
        time.sleep(0.02)
        yield GaugeMetricFamily("large_made", "How often.", value=self.made)


@pytest.fixture
def large() -> Iterator[Large]:
    found = Large()
    metrics.REGISTRY.register(found)
    yield found
    metrics.REGISTRY.unregister(found)


def test_metrics_are_made_after_the_question_and_once_for_all_who_ask_meanwhile(running: Running, large: Large) -> None:
    first = get(running, "/metrics")
    assert b"large_made 1.0" in first.body
    with ExitStack() as stack:
        asking = [stack.enter_context(running.connect()) for _ in range(10)]
        for connection in asking:
            connection.sendall(request("/metrics", method="GET"))
        assert {answer(connection).body for connection in asking} != {first.body}
    assert large.made == 2


async def work(steps: int) -> float:
    """Seconds for so many turns of the loop, a millisecond apart."""
    begun = time.perf_counter()
    for _ in range(steps):
        await asyncio.sleep(0.001)
    return time.perf_counter() - begun


def test_sixty_clients_that_ask_for_metrics_hold_up_no_work(running: Running, large: Large) -> None:
    before: float = running.call(lambda: work(1000))
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            try:
                with running.connect(timeout=5) as connection:
                    while not over.is_set():
                        connection.sendall(request("/metrics", method="GET"))
                        answer(connection)
            except OSError:
                time.sleep(0.01)

    clients = [threading.Thread(target=ask) for _ in range(60)]
    for client in clients:
        client.start()
    begun, made = time.monotonic(), large.made
    during: float = running.call(lambda: work(1000))
    seconds = time.monotonic() - begun
    over.set()
    for client in clients:
        client.join()
    print(f"\n1,000 turns of the loop: {before:.2f} s alone, {during:.2f} s beside 60 clients")
    assert large.made - made <= seconds / module.EVERY + 2
    assert during < 2 * before + 1


def test_an_address_has_few_connections_and_another_address_its_own(running: Running) -> None:
    with ExitStack() as stack:
        for _ in range(4 * LIMITS.per_address):
            connection = stack.enter_context(running.connect(source="127.0.0.2"))
            connection.sendall(request("/healthz", method="GET"))
            assert answer(connection).status == 200
        assert running.server._open_connections() == LIMITS.per_address
        assert get(running, "/readyz").status == 200
