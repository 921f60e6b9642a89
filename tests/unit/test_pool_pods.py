"""What becomes of a pool's pods, as the API server tells it."""

import asyncio
from datetime import datetime
from pathlib import Path

import pytest

from ateplace import names
from ateplace.reconciler.pool_pods import Fates, PoolPods
from tests.unit import cluster
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving

HOUR = "2026-11-18T13:00:00Z"


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-11-18T12:00:00Z", ("draining", "p: Terminating, 3630 s left")),
        ("2026-11-18T13:00:29Z", ("draining", "p: Terminating, 1 s left")),
        ("2026-11-18T13:01:30Z", ("overdue", "p: Terminating, 60 s over its grace period")),
    ],
)
def test_a_pod_drains_until_its_own_grace_is_over(tmp_path: Path, now: str, expected: tuple[str, str]) -> None:
    labels = {names.POOL_LABEL: "a", names.POOL_UID_LABEL: "A"}
    pod = {"metadata": {"name": "p", "labels": labels, "deletionTimestamp": HOUR}}

    async def handle(request: Request, answer: Answer) -> None:
        selected = request.query["labelSelector"] == f"{names.POOL_UID_LABEL}=A"
        await answer.reply(200, {"metadata": {}, "items": [pod] if selected else []})

    async def main() -> tuple[Fates, list[str]]:
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            pods = PoolPods(kube, names.POOL_LABEL, clock=lambda: datetime.fromisoformat(now))
            return await pods.fates(cluster.pool(), set()), await pods.described(cluster.pool())

    fates, described = asyncio.run(main())
    assert (fates, described) == (Fates(**{expected[0]: 1}), [expected[1]])
