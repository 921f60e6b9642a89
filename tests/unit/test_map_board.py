"""The map's board, kept change by change, against a whole look at the same cluster."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ateplace.cli.map import wire
from ateplace.cli.map.board import Board, pod_seen
from ateplace.cli.map.history import apply
from ateplace.cli.map.wire import Placement, as_status
from ateplace.cli.snapshot import as_data, compose
from ateplace.cluster.records import atelet_record, node_record, pool_record
from ateplace.kube.objects import Node, Pod, WorkerPool
from ateplace.settings import Headroom
from tests.unit.objects import atelet, node, pod, pool


class Cluster:
    """Objects as the API has them, and a board that hears of every change of them."""

    def __init__(self) -> None:
        self.board = Board(Headroom())
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.atelets: dict[str, Pod] = {}
        self.pools: dict[str, WorkerPool] = {}
        self.picks: dict[str, dict[str, int]] = {}
        self.placement = self.board.start(0.0, "test")

    def node(self, name: str, new: Node | None) -> None:
        _put(self.nodes, name, new)
        self.board.node_changed(name, node_record(new) if new else None, 0.0)

    def pod(self, name: str, new: Pod | None, at: float = 0.0) -> None:
        _put(self.pods, name, new)
        self.board.pod_changed(f"demo/{name}", pod_seen(new) if new else None, at)

    def atelet(self, on: str, new: Pod | None) -> None:
        old = self.atelets.get(on)
        _put(self.atelets, on, new)
        self.board.atelet_changed(atelet_record(old) if old else None, atelet_record(new) if new else None)

    def pool(self, name: str, new: WorkerPool | None) -> None:
        old = self.pools.get(name)
        _put(self.pools, name, new)
        self.board.pool_changed(pool_record(old) if old else None, pool_record(new) if new else None, 0.0)

    def picked(self, picks: dict[str, dict[str, int]]) -> None:
        self.picks = picks
        self.board.in_flight_changed(picks)

    def follow(self, at: float = 1.0) -> wire.Change | None:
        change = self.board.changed(at)
        if change:
            apply(self.placement, change)
        return change

    def looked_at(self) -> dict[str, Any]:
        """As `status` sees it."""
        seen = compose(
            self.nodes.values(),
            self.pods.values(),
            self.atelets.values(),
            self.pools.values(),
            in_flight=self.picks,
        )
        return timeless(as_data(seen))


def _put(kept: dict[str, Any], key: str, new: object | None) -> None:
    kept.pop(key, None)
    if new is not None:
        kept[key] = new


def timeless(status: dict[str, Any]) -> dict[str, Any]:
    """What status says of nodes and pools, but for what time alone changes; the map shows each pod that is ending."""
    by_time = {"draining", "overdue"}
    pools = [{key: value for key, value in row.items() if key not in by_time} for row in status["pools"]]
    return ordered({"nodes": status["nodes"], "pools": pools})


def ordered(status: dict[str, Any]) -> dict[str, Any]:
    nodes = sorted(status["nodes"], key=lambda one: str(one["name"]))
    return {"nodes": nodes, "pools": sorted(status["pools"], key=lambda one: str(one["pool"]))}


NODES, PODS, POOLS, UIDS = ("n1", "n2", "n3"), ("a", "b", "c", "d"), ("web", "job"), ("u1", "u2", "u3")
PLACES = st.sampled_from(("", *NODES, "gone"))
OPERATIONS = st.one_of(
    st.tuples(st.just("node"), st.sampled_from(NODES), st.none() | st.lists(st.sampled_from(UIDS), unique=True)),
    st.tuples(
        st.just("pod"),
        st.sampled_from(PODS),
        st.none()
        | st.fixed_dictionaries(
            {
                "on": PLACES,
                "of": st.sampled_from(POOLS),
                "uid": st.sampled_from(("", *UIDS)),
                "placeholder": st.booleans(),
                "ready": st.booleans(),
                "phase": st.sampled_from(("Running", "Pending", "Failed")),
            }
        ),
    ),
    st.tuples(st.just("atelet"), st.sampled_from(NODES), st.none() | st.booleans()),
    st.tuples(
        st.just("pool"),
        st.sampled_from(POOLS),
        st.none() | st.fixed_dictionaries({"uid": st.sampled_from(UIDS), "replicas": st.integers(0, 3)}),
    ),
    st.tuples(
        st.just("picked"), st.just(""), st.dictionaries(st.sampled_from(NODES), st.just({"u1": 2, "u9": 1}), max_size=2)
    ),
    st.tuples(st.just("follow"), st.just(""), st.none()),
)


def carry_out(cluster: Cluster, kind: str, name: str, what: Any) -> None:
    match kind:
        case "node":
            cluster.node(name, None if what is None else node(name, *what, labels={"zone": "z"}))
        case "pod":
            cluster.pod(name, None if what is None else pod(name, **what))
        case "atelet":
            cluster.atelet(name, None if what is None else atelet(name, ready=what))
        case "pool":
            owner = next(
                (other for other, one in cluster.pools.items() if what and one.metadata.uid == what["uid"]), name
            )
            if owner == name:  # a UID is never two pools'
                cluster.pool(name, None if what is None else pool(name, **what))
        case "picked":
            cluster.picked(what)
        case "follow":
            cluster.follow()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine
@given(st.lists(OPERATIONS, max_size=40))
def test_what_is_kept_change_by_change_is_what_a_whole_look_shows(operations: list[tuple[str, str, Any]]) -> None:
    cluster = Cluster()
    for kind, name, what in operations:
        carry_out(cluster, kind, name, what)
    cluster.follow()
    assert ordered(as_status(cluster.placement)) == cluster.looked_at()
    totals = cluster.placement.totals
    shown = cluster.placement.pods.values()
    ateoms = [one for one in shown if not one.placeholder]
    assert totals.ready + totals.starting == sum(bool(one.node) for one in ateoms)
    assert totals.waiting == sum(not one.node for one in ateoms)
    assert totals.cold + totals.claimed + totals.warm == len(cluster.nodes)
    assert cluster.follow() is None, "nothing has happened since"


def test_a_change_has_what_changed_and_says_it_in_words() -> None:
    cluster = Cluster()
    cluster.pool("web", pool(replicas=2))
    cluster.node("n1", node("n1"))
    cluster.node("n2", node("n2"))
    cluster.follow()
    cluster.node("n1", node("n1", "u1"))
    cluster.pod("a", pod("a", "n1", ready=False))
    cluster.pool("web", pool(replicas=3))
    change = cluster.follow()
    assert change is not None
    assert list(change.nodes) == ["n1"]
    assert change.nodes["n1"] and change.nodes["n1"].state == "claimed"
    assert change.pods == {"demo/a": wire.Pod("demo/web", "n1", ready=False, placeholder=False, leaving=False)}
    assert change.said == [
        "pool demo/web wants 3 ateoms, no longer 2",
        "n1 claimed for demo/web",
        "n1: +1 ateoms, now 1",
    ]


def test_a_node_is_warm_once_its_atelet_is_ready() -> None:
    cluster = Cluster()
    cluster.pool("web", pool())

    def seen() -> tuple[str, str | None]:
        cluster.follow()
        shown = cluster.placement.nodes["n1"]
        assert shown.zone == "north"
        return shown.state, shown.atelet

    cluster.node("n1", node("n1", labels={"topology.kubernetes.io/zone": "north"}))
    assert seen() == ("cold", None)
    cluster.node("n1", node("n1", "u1", labels={"topology.kubernetes.io/zone": "north"}))
    assert seen() == ("claimed", None)
    cluster.atelet("n1", atelet("n1", ready=False))
    assert seen() == ("claimed", "starting")
    cluster.atelet("n1", atelet("n1"))
    assert seen() == ("warm", "ready")


def test_ateoms_are_timed_from_their_creation_to_their_binding() -> None:
    cluster = Cluster()
    cluster.pool("web", pool(replicas=20))
    cluster.node("n1", node("n1", "u1"))
    cluster.follow()
    for number in range(20):
        cluster.pod(f"p{number}", pod(f"p{number}"), at=100.0)
    for number in range(20):
        cluster.pod(f"p{number}", pod(f"p{number}", "n1"), at=101.0 + number)
    change = cluster.follow(at=130.0)
    assert change is not None
    (burst,) = change.bursts
    assert (burst.created, burst.bound, burst.p50, burst.p99, burst.over) == (20, 20, 10.0, 20.0, True)
    assert change.said[-1] == "burst of 20 in demo/web: 20 bound, P50 10.00 s, P99 20.00 s"


def test_pods_that_were_there_before_are_no_burst() -> None:
    board = Board(Headroom())
    for number in range(20):
        board.pod_changed(f"demo/p{number}", pod_seen(pod(f"p{number}")), 0.0)
    board.start(1.0, "test")
    for number in range(20):
        board.pod_changed(f"demo/p{number}", pod_seen(pod(f"p{number}", "n1")), 2.0)
    change = board.changed(3.0)
    assert change is not None and change.bursts == []


@pytest.mark.parametrize(("annotation", "expected"), [("", 0), ("5", 5), ("5000", 1), ("many", 1)])
def test_a_pools_headroom_is_what_the_reconciler_would_make_of_it(annotation: str, expected: int) -> None:
    cluster = Cluster()
    asking = pool()
    asking.metadata.annotations = {"ateplace.ate.dev/headroom": annotation}
    cluster.pool("web", asking)
    cluster.pod("p", pod("p", placeholder=True))
    cluster.follow()
    assert cluster.placement.pools["demo/web"].headroom == expected


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, []),
        (
            {"min-nodes": "2", "max-per-node": "10", "same": "example.com/cpu"},
            ["min-nodes=2", "max-per-node=10", "same=example.com/cpu"],
        ),
        (
            {"min-nodes": "<b>two</b>", "max-per-node": "10"},
            [
                "rules cannot be read: ateplace.ate.dev/min-nodes must be a whole number from 1 to 1000, "
                'not "<b>two</b>"'
            ],
        ),
    ],
)
def test_a_pools_rules_are_shown_and_a_change_of_them_is_a_change(
    annotations: dict[str, str], expected: list[str]
) -> None:
    cluster = Cluster()
    cluster.pool("web", pool())
    cluster.follow()
    ruled = pool()
    ruled.metadata.annotations = {f"ateplace.ate.dev/{key}": value for key, value in annotations.items()}
    cluster.pool("web", ruled)
    cluster.follow()
    assert cluster.placement.pools["demo/web"].rules == expected


def test_a_moment_with_very_many_changes_is_told_in_few_words() -> None:
    cluster = Cluster()
    for number in range(100):
        cluster.node(f"n{number}", node(f"n{number}"))
    change = cluster.follow()
    assert change is not None
    assert change.said[-1] == "and 60 more changes in this moment"
    assert len(change.said) == 41


def test_notes_are_sent_only_when_they_change() -> None:
    cluster = Cluster()
    cluster.board.noted(["the extender did not answer"])
    change = cluster.follow()
    assert change is not None and change.notes == ["the extender did not answer"]
    cluster.board.noted(["the extender did not answer"])
    assert cluster.follow() is None
    placement: Placement = cluster.placement
    assert placement.notes == ["the extender did not answer"]
