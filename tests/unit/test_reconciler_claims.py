"""What the API server says of a pool's pods before a claim is released."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from ateplace import names
from ateplace.settings import Settings
from ateplace.view import View
from reconciler.claims import Claims
from reconciler.events import Events
from tests.unit import cluster
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving


@pytest.mark.parametrize(
    ("known", "warm", "released"),
    [(True, True, False), (True, False, True), (False, False, True)],
    ids=["of a pool that wants it warm", "of one that does not", "of a pool that is gone"],
)
def test_a_placeholder_that_our_watch_has_not_shown_holds_the_claim(
    tmp_path: Path, known: bool, warm: bool, released: bool
) -> None:
    labels = {names.PLACEHOLDER_LABEL: "pool", names.POOL_UID_LABEL: "A"}
    placeholder = {"metadata": {"name": "p", "namespace": "ns", "labels": labels}, "spec": {"nodeName": "n1"}}
    written: list[Any] = []

    async def handle(request: Request, answer: Answer) -> None:
        if request.method == "PATCH":
            written.append(request.json["metadata"]["annotations"])
            await answer.reply(200, {"metadata": {"resourceVersion": "8"}})
        else:
            asked = request.query.get("fieldSelector") == "spec.nodeName=n1"
            await answer.reply(200, {"metadata": {}, "items": [placeholder] if asked else []})

    async def main() -> None:
        ledger = cluster.ledger(cluster.node("n1", "A"))
        if known:
            ledger.pool_seen(structs.replace(cluster.pool("A", warm=warm), namespace="ns"), 0.0)
        view = cast("View", SimpleNamespace(ledger=ledger, reason=lambda: None))
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            await Claims(kube, view, Settings(), Events(kube, "test"), clock=lambda: 200.0).reconcile("n1")

    asyncio.run(main())
    assert written == ([{names.claim_key("A"): None}] if released else [])
