"""A pool's end, where it hangs on what the API server says of its pods."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ateplace import names
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.pool_rules import NONE, PoolRules
from ateplace.process import metrics
from ateplace.reconciler.events import Events
from ateplace.reconciler.pool_pods import SETS
from ateplace.reconciler.pools import CLAIMS_SECONDS, Pools
from ateplace.settings import Reconciler, Settings
from tests.unit import cluster
from tests.unit.kube_server import Answer, Handler, Request, connected, kubeconfig, serving, until


def test_pods_that_stay_do_not_wait_for_a_sibling_that_does_not_end(tmp_path: Path) -> None:
    """Orphaned, and the collector has taken its finalizer off already: only the ReplicaSet tells that its pods stay."""
    owner = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}]
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


OWNER = {"apiVersion": "ate.dev/v1alpha1", "kind": "WorkerPool", "name": "a", "uid": "A"}
OWNED = [{**OWNER, "controller": True}]
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


OTHER = {**OWNER, "name": "b", "uid": "B"}


@pytest.mark.parametrize(
    ("owners", "goes"),
    [
        ([{**OWNER, "controller": True}], True),
        ([OWNER], True),
        ([{**OWNER, "controller": True}, OTHER], True),
        ([OWNER, OTHER], False),
        ([OWNER, {**OTHER, "controller": True}], False),
        ([{**OWNER, "apiVersion": "example.com/v1"}], False),
        ([{**OWNER, "kind": "Other"}], False),
        ([{**OWNER, "name": "b"}], False),
        ([], False),
    ],
    ids=[
        "controlled",
        "owned alone",
        "controlled, and another's too",
        "owned by two",
        "controlled by another",
        "of another group",
        "of another kind",
        "of another name",
        "nobody's",
    ],
)
def test_a_deployment_goes_with_its_pool_if_the_pool_controls_it_or_alone_owns_it(
    tmp_path: Path, owners: list[Any], goes: bool
) -> None:
    deployment = {"metadata": {"name": "d", "uid": "d", "ownerReferences": owners}}
    deleted, _ = ended(tmp_path, deployments=[deployment], pods=[], claimed=False)
    assert bool(deleted) is goes


@pytest.mark.parametrize(
    "owner",
    [
        {"apiVersion": "example.com/v1", "kind": "ReplicaSet", "name": "rs"},
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "../../../../api/v1/pods?watch=true"},
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": ".."},
    ],
    ids=["of another group", "a path", "one up"],
)
def test_no_owner_is_asked_for_that_is_no_replicaset(tmp_path: Path, owner: dict[str, str]) -> None:
    """`ended` answers every other path than those it knows with a failure."""
    labels = {names.POOL_LABEL: "a", names.POOL_UID_LABEL: "A"}
    owned = [{**owner, "uid": "x", "controller": True}]
    pod = {"metadata": {"name": "p", "namespace": "ns", "labels": labels, "ownerReferences": owned}}
    assert ended(tmp_path, deployments=[], pods=[pod], claimed=True) == ([], [LET_GO]), "nobody will delete it"


def test_no_more_replicasets_are_read_at_one_look_than_a_few(tmp_path: Path) -> None:
    labels = {names.POOL_LABEL: "a", names.POOL_UID_LABEL: "A"}
    kind: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True}
    pods = [
        {"metadata": {"name": f"p{n}", "labels": labels, "ownerReferences": [kind | {"name": f"rs{n}", "uid": f"{n}"}]}}
        for n in range(100)
    ]
    asked: list[str] = []
    listed: Counter[str] = Counter()

    async def handle(request: Request, answer: Answer) -> None:
        last = request.path.rpartition("/")[2]
        listed[last] += last in {"pods", "deployments"}
        if last == "pods":
            await answer.reply(200, {"metadata": {}, "items": pods})
        elif last == "deployments":
            await answer.reply(200, {"metadata": {}, "items": []})
        else:
            asked.append(last)
            await answer.reply(404, {"kind": "Status", "reason": "NotFound"})

    async def main() -> None:
        ledger = cluster.ledger(structs.replace(cluster.pool(), deleting=True, finalizers=(names.FINALIZER,)))
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            await Pools(kube, ledger, Settings(), Events(kube, "test"), look_at=lambda _: None).reconcile("A")

    asyncio.run(main())
    assert len(asked) == SETS
    assert listed["deployments"] == 1 and listed["pods"] <= 3


def nothing_left(written: list[Any]) -> Handler:
    """An API server that has neither Deployments nor pods, and takes what is patched."""

    async def handle(request: Request, answer: Answer) -> None:
        if request.method == "PATCH":
            written.append(request.json["metadata"])
            await answer.reply(200, {"metadata": {"name": "a"}})
        else:
            await answer.reply(200, {"metadata": {}, "items": []})

    return handle


def test_claims_that_cannot_be_released_do_not_keep_a_pool(tmp_path: Path) -> None:
    written: list[Any] = []

    async def main() -> None:
        now = Settings().reconciler.linger
        going = structs.replace(cluster.pool(), deleting=True, finalizers=(names.FINALIZER,))
        ledger = cluster.ledger(going, cluster.node("n1", "A"))
        looked: list[str] = []
        async with serving(nothing_left(written)) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            pools = Pools(kube, ledger, Settings(), Events(kube, "test"), look_at=looked.append, clock=lambda: now)
            await pools.reconcile("A")
            now += CLAIMS_SECONDS - 0.1
            await pools.reconcile("A")
            assert (looked, written) == (["n1", "n1"], [])
            now += 0.2
            await pools.reconcile("A")
            assert written == [LET_GO]

    asyncio.run(main())


def test_claims_that_have_to_linger_are_not_waited_for(tmp_path: Path) -> None:
    written: list[Any] = []

    async def main() -> None:
        going = structs.replace(cluster.pool(), deleting=True, finalizers=(names.FINALIZER,))
        ledger = cluster.ledger(going, cluster.node("n1", "A"))
        async with serving(nothing_left(written)) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            pools = Pools(kube, ledger, Settings(), Events(kube, "test"), look_at=lambda _: None, clock=lambda: 1.0)
            await pools.reconcile("A")
            assert written == [LET_GO]

    asyncio.run(main())


def test_what_nobody_ends_is_looked_at_ever_more_rarely(tmp_path: Path) -> None:
    labels = {names.POOL_LABEL: "a", names.POOL_UID_LABEL: "A"}
    pod = {"metadata": {"name": "p", "labels": labels, "deletionTimestamp": "2026-11-18T13:00:00Z"}}

    async def handle(request: Request, answer: Answer) -> None:
        selected = request.query.get("labelSelector") == f"{names.POOL_UID_LABEL}=A"
        await answer.reply(200, {"metadata": {}, "items": [pod] if selected else []})

    async def main() -> None:
        now = 0.0
        going = structs.replace(cluster.pool(), deleting=True, finalizers=(names.FINALIZER,))
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            settings = Settings(reconciler=Reconciler(deletion_slow=86_400))
            ledger = cluster.ledger(going)
            pools = Pools(kube, ledger, settings, Events(kube, "test"), look_at=lambda _: None, clock=lambda: now)
            looks = []
            for seconds in (0.0, 4.0, 20.0, 60.0, 3600.0):
                now = seconds
                looks.append(await pools.reconcile("A"))
            assert looks == [2.0, 2.0, 5.0, 15.0, 30.0]

    asyncio.run(main())


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
        labels = {names.POOL_LABEL: "a"}
        going = {"name": "p", "namespace": "ns", "labels": labels, "deletionTimestamp": "2026-01-01T00:00:00Z"}
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


def test_rules_that_cannot_be_read_are_said_once_and_counted_until_they_can(tmp_path: Path) -> None:
    said: list[str] = []

    async def handle(request: Request, answer: Answer) -> None:
        said.append(f"{request.json['reason']}: {request.json['note']}")
        await answer.reply(201, {})

    async def main() -> None:
        ledger = Ledger()
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            events = Events(kube, "test")
            pools = Pools(kube, ledger, Settings(), events, look_at=lambda _: None)
            writing = asyncio.create_task(events.run())
            for wrong in ("it is nonsense", "it is nonsense", "", "it is nonsense again"):
                kept = structs.replace(
                    cluster.pool(), finalizers=(names.FINALIZER,), rules=PoolRules(wrong=wrong) if wrong else NONE
                )
                ledger.pool_seen(kept, 0)
                await pools.reconcile("A")
                assert metrics.REGISTRY.get_sample_value("ateplace_pools_with_unreadable_rules") == bool(wrong)
            await until(lambda: len(said) == 2)
            ledger.pool_gone("A", 0)
            await pools.reconcile("A")
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    asyncio.run(main())
    assert said == [
        "BadRule: No ateom of this pool is placed: it is nonsense",
        "BadRule: No ateom of this pool is placed: it is nonsense again",
    ]
