"""The view: what may be decided from, and what reaches the ledger."""

import itertools
from typing import cast

import msgspec
import pytest

from ateplace.cluster.feed import View
from ateplace.cluster.records import atelet_template, node_record
from ateplace.cluster.state import State
from ateplace.kube import Kube
from ateplace.kube.objects import DaemonSet, Node
from ateplace.settings import Settings
from tests.unit.cluster import atelet, node, pod, pool


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
    assert view.reason() is None
    view.nodes.staleness = lambda: 76.0  # type: ignore[method-assign]
    assert view.reason() == "the watch of nodes has been silent for 76 s"


def test_an_object_recreated_under_its_name_is_another_one(view: View) -> None:
    ledger = view.ledger
    view._node("n1", None, node("n1", "A"))
    view._object(ledger.pod_seen, ledger.pod_gone, "ns/p", None, pod("old", "n1"))
    view._object(ledger.pod_seen, ledger.pod_gone, "ns/p", pod("old", "n1"), pod("new"))
    assert set(ledger.pods) == {"new"} and ledger.state("n1", "A") is State.LINGERING
    view._object(ledger.pool_seen, ledger.pool_gone, "ns/a", None, pool("A"))
    view._object(ledger.pool_seen, ledger.pool_gone, "ns/a", pool("A"), None)
    assert ledger.pool_named("ns", "a") is None


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
