"""Health, readiness and metrics as an operator's curl sees them."""

from collections.abc import Iterator

import pytest

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
    reason: str | None = "the list of pools has not arrived"
    health.add("pools", lambda: reason)
    health.add("nodes", lambda: "stale for 80 s")
    health.add("fine", lambda: None)
    found = get(running, "/readyz")
    assert (found.status, found.body) == (503, b"pools: the list of pools has not arrived\nnodes: stale for 80 s\n")
    assert b"ateplace_ready 0.0" in get(running, "/metrics").body
    reason = None
    health.remove("nodes")
    assert get(running, "/readyz").status == 200
    assert b"ateplace_ready 1.0" in get(running, "/metrics").body


def test_a_check_that_fails_is_a_reason(running: Running, health: Health) -> None:
    def broken() -> str | None:
        raise RuntimeError("broken on purpose")

    health.add("broken", broken)
    found = get(running, "/readyz")
    assert (found.status, found.body) == (503, b"broken: the check failed: broken on purpose\n")


def test_a_name_is_taken_once(health: Health) -> None:
    health.add("pools", lambda: None)
    with pytest.raises(ValueError, match="already a check named 'pools'"):
        health.add("pools", lambda: None)


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
