"""Whose a Deployment is that carries our labels."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from msgspec import structs

from ateplace import names
from ateplace.cluster.feed import View
from ateplace.cluster.ledger import Ledger
from ateplace.settings import Settings
from reconciler.events import Events
from reconciler.headroom.controller import Headroom
from reconciler.headroom.placeholder import MANAGED_BY, OWNER, DeploymentRecord, Mould
from tests.unit import cluster
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving


def deployment(namespace: str, name: str, *, ours: bool) -> DeploymentRecord:
    labels = {names.PLACEHOLDER_LABEL: "pool", names.POOL_UID_LABEL: "A", MANAGED_BY: OWNER} if ours else {}
    return DeploymentRecord(
        namespace=namespace,
        name=name,
        uid=f"{namespace}/{name}",
        pool_uid="A",
        replicas=7,
        generation=1,
        deleting=False,
        ours=ours,
        owned=not ours,
        labels=labels,
        mould=None if ours else Mould((("cpu", 100),)),
    )


def test_our_labels_in_another_namespace_do_not_stop_a_pools_headroom(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    async def handle(request: Request, answer: Answer) -> None:
        seen.append((request.method, request.path))
        body: dict[str, Any] = {"metadata": {"name": "pool-headroom", "uid": "new", "generation": 1}}
        await answer.reply(201, body)

    async def main() -> None:
        ledger = Ledger()
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            ateoms = SimpleNamespace(store={})
            view = cast("View", SimpleNamespace(ledger=ledger, ateoms=ateoms, follow_pods=lambda _: None))
            headroom = Headroom(kube, view, Settings(), Events(kube, "test"))
            ledger.pool_seen(structs.replace(cluster.pool("A"), namespace="ns", name="pool", headroom="2"), 0.0)
            for one in (
                deployment("ns", "pool-deployment", ours=False),
                deployment("else", "pool-headroom", ours=True),
            ):
                headroom._changed(one.uid, None, one)
            await headroom.reconcile("A")

    asyncio.run(main())
    assert seen == [("POST", "/apis/apps/v1/namespaces/ns/deployments")]
