"""A pool's end, where it hangs on what the API server says of its pods."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ateplace import names
from ateplace.cluster.ledger import Ledger
from ateplace.process import metrics
from ateplace.settings import Settings
from reconciler.events import Events
from reconciler.pools import Pools
from tests.unit import cluster
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving


def test_pods_that_stay_do_not_wait_for_a_sibling_that_does_not_end(tmp_path: Path) -> None:
    """Orphaned, and the collector has taken its finalizer off already: only the ReplicaSet tells that its pods stay."""
    owner = [{"kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}]
    labels = {names.POOL_LABEL: "a", names.POOL_UID_LABEL: "A"}
    pods: list[dict[str, Any]] = [
        {"metadata": {"name": name, "namespace": "ns", "labels": labels, "ownerReferences": owner}} for name in "ab"
    ]
    pods[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    written: list[Any] = []

    async def handle(request: Request, answer: Answer) -> None:
        match request.method, request.path.rpartition("/")[2]:
            case "GET", "deployments":
                await answer.reply(200, {"metadata": {}, "items": []})
            case "GET", "pods":
                await answer.reply(200, {"metadata": {}, "items": pods})
            case "GET", "rs":
                await answer.reply(200, {"metadata": {"name": "rs", "uid": "rs"}})
            case _:
                written.append(request.json["metadata"]["finalizers"])
                await answer.reply(200, {"metadata": {"name": "a"}})

    async def main() -> None:
        ledger = Ledger()
        ledger.pool_seen(structs.replace(cluster.pool(), deleting=True, finalizers=(names.FINALIZER,)), 0)
        for name in "ab":
            ledger.pod_seen(cluster.pod(name, "n1"), 0)
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            await Pools(kube, ledger, Settings(), Events(kube, "test"), look_at=lambda _: None).reconcile("A")

    asyncio.run(main())
    assert written == [[]]


OWNED = [{"kind": "WorkerPool", "name": "a", "uid": "A", "controller": True}]
DEPLOYMENT = {"metadata": {"name": "d", "uid": "d", "ownerReferences": OWNED}}
GOING = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "labels": {names.POOL_LABEL: "a", names.POOL_UID_LABEL: "A"},
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
}
LET_GO = {"uid": "A", "resourceVersion": "1", "finalizers": []}


def ended(
    tmp_path: Path, *marks: str, deployments: list[Any], pods: list[Any], claimed: bool
) -> tuple[list[Any], list[Any]]:
    """What is deleted, how, and what is written to the pool, at one look at a pool that is being deleted."""
    deleted: list[Any] = []
    written: list[Any] = []

    async def handle(request: Request, answer: Answer) -> None:
        match request.method, request.path.rpartition("/")[2]:
            case "GET", "deployments":
                await answer.reply(200, {"metadata": {}, "items": deployments})
            case "GET", "pods":
                await answer.reply(200, {"metadata": {}, "items": pods})
            case "DELETE", name:
                deleted.append((name, request.json["preconditions"], request.json["propagationPolicy"]))
                await answer.reply(200, {"kind": "Status"})
            case _:
                written.append(request.json["metadata"])
                await answer.reply(200, {"metadata": {"name": "a"}})

    async def main() -> None:
        going = structs.replace(cluster.pool(), deleting=True, finalizers=(*marks, names.FINALIZER))
        ledger = cluster.ledger(going, cluster.node("n1", *(("A",) if claimed else ())))
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            await Pools(kube, ledger, Settings(), Events(kube, "test"), look_at=lambda _: None).reconcile("A")

    asyncio.run(main())
    return deleted, written


@pytest.mark.parametrize(("marks", "how"), [((), "Background"), (("foregroundDeletion",), "Foreground")])
def test_a_pool_goes_after_its_deployments_its_pods_and_its_claims(
    tmp_path: Path, marks: tuple[str, ...], how: str
) -> None:
    its = [("d", {"uid": "d"}, how)]
    assert ended(tmp_path, *marks, deployments=[DEPLOYMENT], pods=[], claimed=False) == (its, [])
    assert ended(tmp_path, *marks, deployments=[], pods=[GOING], claimed=False) == ([], [])
    assert ended(tmp_path, *marks, deployments=[], pods=[], claimed=True) == ([], [])
    left = {**LET_GO, "finalizers": list(marks)}
    assert ended(tmp_path, *marks, deployments=[], pods=[], claimed=False) == ([], [left])


def test_a_pool_whose_pods_are_orphaned_goes_at_once_and_nothing_with_it(tmp_path: Path) -> None:
    left = {**LET_GO, "finalizers": ["orphan"]}
    assert ended(tmp_path, "orphan", deployments=[DEPLOYMENT], pods=[GOING], claimed=True) == ([], [left])


def test_a_placeholder_that_somebody_made_by_hand_is_not_waited_for(tmp_path: Path) -> None:
    """It holds its pool's claim by name, as it has no UID label, and nobody is going to end it."""
    by_hand = {"metadata": {"name": "p", "namespace": "ns", "labels": {names.PLACEHOLDER_LABEL: "a"}}}
    written: list[Any] = []

    async def handle(request: Request, answer: Answer) -> None:
        if request.method == "GET":
            selected = request.query.get("labelSelector") == f"{names.PLACEHOLDER_LABEL}=a,!{names.POOL_UID_LABEL}"
            await answer.reply(200, {"metadata": {}, "items": [by_hand] if selected else []})
        else:
            written.append(request.json["metadata"]["finalizers"])
            await answer.reply(200, {"metadata": {"name": "a"}})

    async def main() -> None:
        deleting = structs.replace(cluster.pool(), deleting=True, finalizers=(names.FINALIZER,))
        unlabelled = structs.replace(cluster.pod("p", "n1", "", placeholder=True), pool="a")
        ledger = cluster.ledger(cluster.node("n1", "A"), deleting, unlabelled)
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            await Pools(kube, ledger, Settings(), Events(kube, "test"), look_at=lambda _: None).reconcile("A")

    asyncio.run(main())
    assert written == [[]]


def oldest() -> float | None:
    return metrics.REGISTRY.get_sample_value("ateplace_pool_deletion_oldest_seconds", {"awaited": "pods"})


def test_the_oldest_wait_is_told_and_ends_with_it(tmp_path: Path) -> None:
    """How many wait says nothing: where pools come and go all the time, some always do."""

    async def handle(request: Request, answer: Answer) -> None:
        going = {"name": "p", "namespace": "ns", "labels": {names.POOL_LABEL: "a"}, "deletionTimestamp": "2026-01-01"}
        items = [{"metadata": going}] if request.path.endswith("/pods") else []
        await answer.reply(200, {"metadata": {}, "items": items})

    async def main() -> None:
        now = 100.0
        ledger = Ledger()
        held = structs.replace(cluster.pool(), deleting=True, finalizers=(names.FINALIZER,))
        ledger.pool_seen(held, 0)
        ledger.pool_seen(structs.replace(held, uid="B", name="b"), 0)
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            told = Events(kube, "test")
            pools = Pools(kube, ledger, Settings(), told, look_at=lambda _: None, clock=lambda: now)
            assert oldest() == 0
            await pools.reconcile("A")
            now = 700.0
            await pools.reconcile("B")
            now = 1000.0
            assert oldest() == 900
            ledger.pool_seen(structs.replace(held, finalizers=("another's",), version=2), 0)
            await pools.reconcile("A")
            assert oldest() == 300, "it is not ours to wait for any more"
            pools.forget()
            assert oldest() == 0, "whoever leads now tells"

    asyncio.run(main())


def test_a_pool_with_a_name_that_no_label_can_carry_is_let_go(tmp_path: Path) -> None:
    written: list[Any] = []

    async def handle(request: Request, answer: Answer) -> None:
        if request.method == "PATCH":
            written.append(request.json["metadata"]["finalizers"])
            await answer.reply(200, {"metadata": {}})
        elif "a" * 64 in request.query.get("labelSelector", ""):
            await answer.reply(400, {"code": 400, "message": "must be no more than 63 characters"})
        else:
            await answer.reply(200, {"metadata": {}, "items": []})

    async def main() -> None:
        ledger = Ledger()
        going = structs.replace(cluster.pool(), name="a" * 100, deleting=True, finalizers=(names.FINALIZER,))
        ledger.pool_seen(going, 0)
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            await Pools(kube, ledger, Settings(), Events(kube, "test"), look_at=lambda _: None).reconcile("A")

    asyncio.run(main())
    assert written == [[]]
