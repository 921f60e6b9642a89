"""Whose a Deployment is that carries our labels."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from ateplace import errors, names
from ateplace.cluster.feed import View
from ateplace.cluster.ledger import Ledger
from ateplace.reconciler.events import Events
from ateplace.reconciler.headroom.controller import Headroom
from ateplace.reconciler.headroom.placeholder import MANAGED_BY, OWNER, AteomShape, DeploymentRecord
from ateplace.settings import Settings
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
        shape=None if ours else AteomShape((("cpu", 100),)),
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


def test_a_policy_that_refuses_the_headroom_is_told_on_the_pool(tmp_path: Path) -> None:
    """As in kube-system, where our own policy allows no placeholders. It is tried again later."""
    notes: list[tuple[str, str]] = []

    async def handle(request: Request, answer: Answer) -> None:
        if request.path.endswith("/events"):
            notes.append((request.json["reason"], request.json["note"]))
            await answer.reply(201, {"metadata": {"name": "event"}})
        else:
            await answer.reply(422, {"kind": "Status", "reason": "Invalid", "message": "no placeholders here"})

    async def main() -> None:
        ledger = Ledger()
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            ateoms = SimpleNamespace(store={})
            view = cast("View", SimpleNamespace(ledger=ledger, ateoms=ateoms, follow_pods=lambda _: None))
            events = Events(kube, "test")
            headroom = Headroom(kube, view, Settings(), events)
            ledger.pool_seen(structs.replace(cluster.pool("A"), namespace="ns", name="pool", headroom="2"), 0.0)
            headroom._changed("d", None, deployment("ns", "pool-deployment", ours=False))
            for _ in range(2):
                with pytest.raises(errors.Invalid):
                    await headroom.reconcile("A")
            writing = asyncio.create_task(events.run())
            async with asyncio.timeout(20):
                while not notes:  # noqa: ASYNC110 - the server runs in this loop, and tells nobody
                    await asyncio.sleep(0.01)
            writing.cancel()
            await asyncio.wait([writing])

    asyncio.run(main())
    ((reason, note),) = notes
    assert reason == "HeadroomRefused"
    assert note.startswith("The API server rejects this pool's placeholders: ") and "no placeholders here" in note
