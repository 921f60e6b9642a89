"""What the API server says of a pool's pods before a claim is released."""

import asyncio
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from ateplace import errors, names
from ateplace.cluster.feed import View
from ateplace.cluster.records import NodeRecord
from ateplace.reconciler.claims.release import LOOK_AGAIN, NodeClaims
from ateplace.reconciler.events import About, Events
from ateplace.settings import Settings
from tests.unit import cluster
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving


class Heard(Events):
    """Keeps what was said, and about what."""

    words: list[tuple[str, str, str]]

    def say(self, about: About, reason: str, message: str) -> None:
        self.words.append((about.kind, reason, message))


def test_a_claim_that_somebody_has_written_is_told_of_once(tmp_path: Path) -> None:
    """By the extender, mostly: on the node and on its pool, and not again when it is touched, by whomever."""

    def node(version: int, *pools: str, value: str = "2026-01-01T00:00:00Z", uid: str = "") -> NodeRecord:
        made = cluster.node("n1", *pools, version=version, uid=uid)
        return structs.replace(made, claims=dict.fromkeys(pools, value))

    async def handle(_: Request, answer: Answer) -> None:
        await answer.reply(200, {"metadata": {"resourceVersion": "9"}})

    async def main() -> None:
        ledger = cluster.ledger(cluster.pool("A"), cluster.pool("B"), node(1, "A"))
        view = cast("View", SimpleNamespace(ledger=ledger, reason=lambda: "", follow_pods=lambda _: None))
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            heard = Heard(kube, "test")
            claims = NodeClaims(kube, view, Settings(), heard, clock=lambda: 0.0)

            async def told() -> list[tuple[str, str]]:
                heard.words = []
                await claims.reconcile("n1")
                return [(kind, message.rpartition(" ")[2]) for kind, reason, message in heard.words]

            a, b = ([("Node", f"ns/{pool}"), ("WorkerPool", f"ns/{pool}")] for pool in "ab")
            claims.begin()
            assert await told() == [], "it was there before us"
            ledger.node_seen(node(2, "A", "B"), 0.0)
            assert await told() == b
            ledger.node_seen(node(3, "A", "B", value="2026-01-01T00:00:01Z"), 0.0)
            assert await told() == [], "touched"
            ledger.node_seen(node(4, "B"), 0.0)
            assert await told() == []
            ledger.pod_seen(cluster.pod("p", "n1", "A"), 0.0)
            assert await told() == [], "our own is told of when it is acknowledged"
            assert await told() == a
            ledger.node_seen(node(10, "A", "B"), 0.0)
            assert await told() == []
            ledger.node_seen(node(11, "A", uid="recreated"), 0.0)
            assert await told() == a
            claims.forget()
            claims.begin()
            assert await told() == [], "another term"

    asyncio.run(main())


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
        view = cast("View", SimpleNamespace(ledger=ledger, reason=lambda: "", follow_pods=lambda _: None))
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            await NodeClaims(kube, view, Settings(), Events(kube, "test"), clock=lambda: 200.0).reconcile("n1")

    asyncio.run(main())
    assert written == ([{names.claim_key("A"): None}] if released else [])


def release(
    tmp_path: Path, *claimed: str, pods: dict[str, list[Any]] | None = None, stale: bool = False
) -> tuple[list[Any], float | None]:
    """What is written to a node whose claims nobody uses by our watch, and when it is looked at again. `pods` are the
    API server's, by the field selector that finds them."""
    written: list[Any] = []

    async def handle(request: Request, answer: Answer) -> None:
        if request.method == "PATCH":
            written.append(request.json["metadata"])
            await answer.reply(200, {"metadata": {"resourceVersion": "8"}})
        else:
            items = (pods or {}).get(request.query.get("fieldSelector", ""), [])
            await answer.reply(200, {"metadata": {}, "items": items})

    async def main() -> float | None:
        node = cluster.node("n1", *claimed, version=7)
        ledger = cluster.ledger(*(cluster.pool(uid) for uid in claimed), node)
        view = cast(
            "View",
            SimpleNamespace(ledger=ledger, reason=lambda: "stale" if stale else "", follow_pods=lambda _: None),
        )
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            return await NodeClaims(kube, view, Settings(), Events(kube, "test"), clock=lambda: 200.0).reconcile("n1")

    again = asyncio.run(main())
    return written, again


def live(pool_uid: str, **spec: str) -> dict[str, Any]:
    labels = {names.POOL_LABEL: pool_uid.lower(), names.POOL_UID_LABEL: pool_uid}
    return {"metadata": {"name": "p", "namespace": "ns", "labels": labels}, "spec": spec}


def test_a_pool_whose_name_no_label_can_hold_is_not_asked_about_and_holds_up_nobody(tmp_path: Path) -> None:
    written: list[Any] = []

    async def handle(request: Request, answer: Answer) -> None:
        if request.method == "PATCH":
            written.append(set(request.json["metadata"]["annotations"]))
            await answer.reply(200, {"metadata": {"resourceVersion": "8"}})
        elif "long" in request.query.get("labelSelector", ""):
            await answer.reply(400, {"kind": "Status", "message": "must be no more than 63 characters"})
        elif "forbidden" in request.query.get("labelSelector", ""):
            await answer.reply(403, {"kind": "Status", "message": "not here"})
        else:
            await answer.reply(200, {"metadata": {}, "items": []})

    async def main() -> None:
        pools = {"A": "a", "B": "long" * 20, "C": "forbidden"}
        made = (structs.replace(cluster.pool(uid), name=name) for uid, name in pools.items())
        ledger = cluster.ledger(*made, cluster.node("n1", *pools, version=7))
        view = cast("View", SimpleNamespace(ledger=ledger, reason=lambda: "", follow_pods=lambda _: None))
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            await NodeClaims(kube, view, Settings(), Events(kube, "test"), clock=lambda: 200.0).reconcile("n1")

    asyncio.run(main())
    assert written == [{names.claim_key("A"), names.claim_key("B")}]


@pytest.mark.parametrize(
    ("claims", "released"),
    [({"A": "then"}, True), ({"A": "touched"}, False), ({}, False), ({"A": "then", "B": "new"}, True)],
    ids=["by something else", "by a touch", "by another release", "by another pool's claim"],
)
def test_a_release_that_a_write_has_overtaken_goes_on_where_the_claim_is_untouched(
    tmp_path: Path, claims: dict[str, str], released: bool
) -> None:
    written: list[Any] = []
    notes = {names.claim_key(uid): value for uid, value in claims.items()}
    labels = {names.NODE_LABEL: "true"}
    node = {"metadata": {"name": "n1", "uid": "n1-uid", "resourceVersion": "9", "annotations": notes, "labels": labels}}

    async def handle(request: Request, answer: Answer) -> None:
        if request.method == "PATCH":
            written.append(request.json["metadata"])
            if request.json["metadata"]["resourceVersion"] == "9":
                await answer.reply(200, {"metadata": {"resourceVersion": "10"}})
            else:
                await answer.reply(409, {"kind": "Status", "reason": "Conflict", "message": "another version"})
        elif request.path == "/api/v1/nodes":
            await answer.reply(200, {"metadata": {}, "items": [node]})
        else:
            await answer.reply(200, {"metadata": {}, "items": []})

    async def main() -> None:
        ledger = cluster.ledger(cluster.pool("A"), cluster.node("n1", "A", version=7))
        view = cast("View", SimpleNamespace(ledger=ledger, reason=lambda: "", follow_pods=lambda _: None))
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            reconciling = NodeClaims(kube, view, Settings(), Events(kube, "test"), clock=lambda: 200.0)
            with nullcontext() if released else pytest.raises(errors.Conflict):
                await reconciling.reconcile("n1")

    asyncio.run(main())
    assert [one["resourceVersion"] for one in written] == (["7", "9"] if released else ["7"])
    if released:
        assert ("labels" in written[1]) is (len(claims) == 1), "the label stays with another pool's claim"


def test_a_release_is_of_this_node_in_this_version_and_takes_the_label_with_the_last_claim(tmp_path: Path) -> None:
    said = {"uid": "n1-uid", "resourceVersion": "7", "labels": {names.NODE_LABEL: None}}
    assert release(tmp_path, "A")[0] == [{**said, "annotations": {names.claim_key("A"): None}}]


@pytest.mark.parametrize(
    ("selector", "spec"),
    [("spec.nodeName=n1", {"nodeName": "n1"}), ("spec.nodeName=", {})],
    ids=["on the node", "that is unbound"],
)
def test_a_pod_that_our_watch_has_not_shown_holds_its_pools_claim_and_the_label(
    tmp_path: Path, selector: str, spec: dict[str, str]
) -> None:
    pods = {selector: [live("B", **spec)]}
    assert release(tmp_path, "B", pods=pods) == ([], LOOK_AGAIN)
    written, again = release(tmp_path, "A", "B", pods=pods)
    assert written == [{"uid": "n1-uid", "resourceVersion": "7", "annotations": {names.claim_key("A"): None}}]
    assert again == LOOK_AGAIN


def test_nothing_is_released_by_a_view_that_is_stale(tmp_path: Path) -> None:
    assert release(tmp_path, "A", stale=True) == ([], LOOK_AGAIN)


def test_one_pools_refused_question_keeps_its_own_claim_and_no_other(tmp_path: Path) -> None:
    """By name: of a pool called what no label can carry nothing is asked. Nor does a mirror pod keep a claim."""
    released: list[Any] = []
    mirror = {
        "metadata": {
            "name": "m",
            "namespace": "ns",
            "annotations": {"kubernetes.io/config.mirror": "x"},
            "labels": {names.POOL_LABEL: "a", names.POOL_UID_LABEL: "A"},
        },
        "spec": {"nodeName": "n1"},
    }

    async def handle(request: Request, answer: Answer) -> None:
        labels = request.query.get("labelSelector", "")
        if request.method == "PATCH":
            released.append(sorted(request.json["metadata"]["annotations"]))
            await answer.reply(200, {"metadata": {"resourceVersion": "9"}})
        elif f"={'l' * 64}" in labels or f"{names.POOL_LABEL}=b" in labels:
            await answer.refuse(400, message="no such selector")
        else:
            await answer.reply(200, {"metadata": {}, "items": [mirror]})

    async def main() -> None:
        long = structs.replace(cluster.pool("L"), name="l" * 100)
        ledger = cluster.ledger(cluster.pool("A"), cluster.pool("B"), long, cluster.node("n1", "A", "B", "L"))
        view = cast("View", SimpleNamespace(ledger=ledger, reason=lambda: "", follow_pods=lambda _: None))
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            await NodeClaims(kube, view, Settings(), Events(kube, "test"), clock=lambda: 1e6).reconcile("n1")

    asyncio.run(main())
    assert released == [[names.claim_key("A"), names.claim_key("L")]]
