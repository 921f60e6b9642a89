"""The webhook under strangers: real creations through the API server beside them.

Strangers have addresses of loopback of their own (127.0.0.x); the API server's is 127.0.0.1.
"""

import itertools
import ssl
import time
from collections.abc import Iterator

import pytest

from ateplace import names
from ateplace.local import ApiError, ControlPlane, substrate, webhooks
from ateplace.local.api import Object
from ateplace.local.strangers import Strangers, review
from ateplace.local.webhooks import Webhook
from ateplace.webhook import pools

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


def strangers_of(webhook: Webhook, count: int) -> Strangers:
    """Each asks about a pool that it invents."""
    numbers = itertools.count()
    context = ssl.create_default_context(cadata=webhook.ca.decode())
    return Strangers(webhook.port, count, lambda: review(f"invented-{next(numbers)}"), tls=context)


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
    before = create(plane, seen)
    with strangers_of(running, 600) as strangers:
        plane.wait(lambda: strangers.answers > 600, timeout=60, why="the stranger to be served")
        during = create(plane, seen)
    print(f"\ncreation: median {before[15]:.3f} s, longest {before[-1]:.3f} s alone;", end=" ")
    print(f"{during[15]:.3f} s, {during[-1]:.3f} s beside {strangers.opened} connections, {strangers.answers} answers")


def test_reviews_of_invented_pools_cost_a_bounded_number_of_reads(
    plane: ControlPlane, running: Webhook, seen: str
) -> None:
    before, begun = looked_up(running), time.monotonic()
    with strangers_of(running, 100) as strangers:
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
