"""The view: what may be decided from, and what reaches the ledger."""

import asyncio
import itertools
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec import structs

from ateplace.cluster.feed import View
from ateplace.cluster.pool_rules import Quota
from ateplace.cluster.records import (
    AteletTemplate,
    LimitRangeRecord,
    NamespaceRecord,
    atelet_template,
    limit_range_record,
    node_record,
)
from ateplace.cluster.state import State
from ateplace.kube import Kube
from ateplace.kube.objects import DaemonSet, LimitRange, Node
from ateplace.kube.watch import Watch
from ateplace.settings import Cluster, Settings
from tests.unit.cluster import atelet, node, pod, pool
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving, until


@pytest.fixture
def view() -> View:
    """One whose watches are not running: its handlers are called as they would call them."""
    ticks = itertools.count(100.0)
    return View(cast("Kube", None), Settings(), clock=lambda: next(ticks))


def test_nothing_may_be_decided_before_every_watch_has_synced(view: View) -> None:
    assert view.reason() == "the watch of workerpools has not synced yet"
    for watch in view.watches[:-1]:
        watch.synced.set()
        watch.staleness = lambda: 0.0  # type: ignore[method-assign]
    assert view.reason() == "the watch of placeholders has not synced yet"


def test_nothing_may_be_decided_once_a_watch_has_been_silent_for_too_long(view: View) -> None:
    for watch in view.watches:
        watch.synced.set()
        watch.staleness = lambda: 74.0  # type: ignore[method-assign]
    assert not view.reason()
    view.nodes.staleness = lambda: 76.0  # type: ignore[method-assign]
    assert view.reason() == "the watch of nodes has been silent for 76 s"


def test_nothing_may_be_decided_once_the_api_server_has_answered_no_consistent_read_for_too_long(
    tmp_path: Path,
) -> None:
    """It sends bookmarks, and so its watches look alive, but it cannot reach etcd."""
    now, cut_off = 100.0, False

    async def handle(request: Request, answer: Answer) -> None:
        assert (request.path, request.query) == ("/api/v1/nodes", {"limit": "1"})
        if cut_off:
            await answer.refuse(500, "InternalError", "etcdserver: request timed out")
        else:
            await answer.reply(200, {"metadata": {"resourceVersion": "1"}, "items": []})

    async def main() -> None:
        nonlocal now, cut_off
        settings = Settings(cluster=Cluster(stale_after=0.5))
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url, token="t")) as kube:
            view = View(kube, settings, clock=lambda: now)
            for watch in view.watches:
                watch.synced.set()
                watch.staleness = lambda: 0.0  # type: ignore[method-assign]
            reading = asyncio.create_task(view.read_consistently())
            now += 10
            await until(lambda: not view.reason())
            cut_off = True
            asked = len(server.requests)
            await until(lambda: len(server.requests) > asked)
            now += 10
            await until(lambda: view.reason() == "the API server has answered no consistent read for 10 s")
            cut_off = False
            await until(lambda: not view.reason())
            reading.cancel()

    asyncio.run(main())


def test_an_object_recreated_under_its_name_is_another_one(view: View) -> None:
    ledger = view.ledger
    view._node("n1", None, node("n1", "A"))
    view._object(ledger.pod_seen, ledger.pod_gone, "ns/p", None, pod("old", "n1"))
    view._object(ledger.pod_seen, ledger.pod_gone, "ns/p", pod("old", "n1"), pod("new"))
    assert set(ledger.pods) == {"new"} and ledger.claims.state("n1", "A") is State.LINGERING
    view._object(ledger.pool_seen, ledger.pool_gone, "ns/a", None, pool("A"))
    view._object(ledger.pool_seen, ledger.pool_gone, "ns/a", pool("A"), None)
    assert ledger.owners.pool_named("ns", "a") is None


def test_nodes_are_barred_as_the_daemonset_comes_and_changes(view: View) -> None:
    body = {"metadata": {"name": "n1", "uid": "u"}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
    record = node_record(msgspec.convert(body, Node))
    view._node("n1", None, record)
    ledger = view.ledger
    assert ledger.nodes["n1"].atelet.barred == ""
    for tolerations, expected in (([], "atelet does not tolerate the taint k"), ([{"operator": "Exists"}], "")):
        spec = {"template": {"spec": {"tolerations": tolerations}}}
        daemonset = msgspec.convert({"metadata": {}, "spec": spec}, DaemonSet)
        before, now = next(iter(ledger.templates), None), atelet_template(daemonset)
        view._object(ledger.daemonset_seen, ledger.daemonset_gone, "ate-system/atelet", before, now)
        assert ledger.nodes["n1"].atelet.barred == expected
    view._object(ledger.daemonset_seen, ledger.daemonset_gone, "ate-system/atelet", now, None)
    assert not ledger.templates


def test_a_node_that_is_gone_keeps_nothing_but_what_is_still_on_it(view: View) -> None:
    ledger = view.ledger
    view._node("n1", None, node("n1", "A"))
    view._object(ledger.atelet_seen, ledger.atelet_gone, "ate-system/a", None, atelet("n1"))
    view._node("n1", node("n1", "A"), None)
    assert "n1" in ledger.nodes and ledger.nodes["n1"].record is None
    view._object(ledger.atelet_seen, ledger.atelet_gone, "ate-system/a", atelet("n1"), None)
    assert not ledger.nodes


def daemonset(**resources: Any) -> AteletTemplate:
    spec = {"template": {"spec": {"containers": [{"name": "atelet", "resources": resources}, {"name": "other"}]}}}
    return atelet_template(msgspec.convert({"metadata": {"name": "atelet", "uid": "ds"}, "spec": spec}, DaemonSet))


def limit_range(**cpu: str) -> LimitRangeRecord | None:
    items = [{"type": "Container", "defaultRequest": cpu}, {"type": "Pod", "max": {"cpu": "9"}}]
    return limit_range_record(msgspec.convert({"metadata": {"uid": "l"}, "spec": {"limits": items}}, LimitRange))


def test_atelets_room_is_what_the_api_server_admits_not_what_its_template_says(view: View) -> None:
    """By a LimitRange of its namespace, and by what its live pods have, whoever gave it to them."""

    def kept(watch: Watch[Any, Any], record: Any) -> None:
        old = watch.store.pop("ns/x", None)
        if record:
            watch.store["ns/x"] = record
        watch._on_change("ns/x", old, record)

    def room() -> int:
        return dict(view.ledger.nodes["n1"].atelet.requests).get("cpu", 0)

    view._node("n1", None, node("n1"))
    kept(view.limit_ranges, limit_range(cpu="500m"))
    kept(view.daemonsets, daemonset())
    assert room() == 1000  # two containers
    kept(view.limit_ranges, limit_range(cpu="700m"))
    assert room() == 1400
    kept(view.daemonsets, daemonset(requests={"cpu": "100m"}))
    assert room() == 800
    kept(view.limit_ranges, limit_range())
    assert room() == 100
    kept(view.atelets, structs.replace(atelet("n1"), daemonset="ds", requests=(("cpu", 300),)))
    assert room() == 300
    kept(view.atelets, None)
    assert room() == 300, "the next one will be admitted like the last"
    kept(view.daemonsets, daemonset(limits={"cpu": "200m"}))
    assert room() == 200


def test_a_namespaces_quota_comes_and_goes_with_its_annotation() -> None:
    view = View(None, Settings())  # type: ignore[arg-type]
    one = NamespaceRecord("ns", "u", Quota(3))
    view._namespace("ns", None, one)
    assert view.ledger.quotas == {"ns": Quota(3)}
    view._namespace("ns", one, None)
    assert not view.ledger.quotas
