"""The reply rule: filter answers a node only when this process wrote its claim lately, whatever its watches show."""

from pathlib import Path
from typing import Any

import pytest

from ateplace.cluster import claims
from ateplace.extender.context import Rules
from ateplace.extender.protocol import FilterResult
from ateplace.settings import Reconciler, Settings
from tests.unit.cluster import atelet, node, pod, pool
from tests.unit.verbs_rig import Api, Rig, ask


def held(rig: Rig, name: str = "n1", version: int = 2) -> None:
    """The watch shows a claim of the pool, atelet Ready, and an ateom there: all long ago."""
    rig.ledger.node_seen(node(name, "A", version=version), 0)
    rig.ledger.atelet_seen(atelet(name), 0)
    rig.ledger.pod_seen(pod(f"on-{name}", name), 0)


def test_a_claim_that_only_a_watch_shows_to_be_held_is_written_before_it_is_answered(tmp_path: Path) -> None:
    """A process that was frozen, or whose API server is cut off from etcd, sees pods that are gone and claims that
    were released; nothing in its watches tells."""

    async def use(rig: Rig) -> FilterResult:
        held(rig)
        return await rig.filter("n1")

    api = Api()
    assert ask(tmp_path, api, use, "n1").node_names == ["n1"]
    assert api.seen == ["PATCH"]
    assert api.nodes["n1"]["labels"], "it is claimed and labelled, whatever became of it before"


def test_a_node_that_was_recreated_while_a_watch_shows_it_held_is_not_answered(tmp_path: Path) -> None:
    async def use(rig: Rig) -> FilterResult:
        held(rig)
        rig.api.nodes["n1"]["uid"] = "another"
        return await rig.filter("n1", "n2")

    assert ask(tmp_path, Api(), use, "n1", "n2").node_names == ["n2"]


@pytest.mark.parametrize(("passed", "patches"), [(59.0, 1), (61.0, 2)])
def test_time_for_which_the_machine_was_suspended_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed: float, patches: int
) -> None:
    suspended = 0.0

    def boottime() -> float:
        return real() + suspended

    real = claims.boottime
    for module in ("ateplace.extender.context", "ateplace.extender.claim_writer", "ateplace.extender.filter.handler"):
        monkeypatch.setattr(f"{module}.boottime", boottime)

    async def use(rig: Rig) -> None:
        nonlocal suspended
        assert (await rig.filter("n1")).node_names == ["n1"]
        rig.ledger.pod_seen(pod("p", "n1"), 1)
        suspended = passed
        assert (await rig.filter("n1", uid="q")).node_names == ["n1"]
        assert rig.api.seen.count("PATCH") == patches

    ask(tmp_path, Api(), use, "n1")


def test_the_window_is_half_the_linger() -> None:
    assert Rules.of(Settings(reconciler=Reconciler(linger=10.0))).window == 5.0


def test_without_a_linger_each_call_writes_and_answers_what_it_wrote(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        for uid in ("p", "q", "r"):
            assert (await rig.filter("n1", uid=uid)).node_names == ["n1"]
        assert rig.api.seen.count("PATCH") == 3

    ask(tmp_path, Api(), use, "n1", settings=Settings(reconciler=Reconciler(linger=0.0)))


def test_80_pods_onto_one_node_cost_one_write(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        for number in range(80):
            assert (await rig.filter("n1", uid=f"u{number}")).node_names == ["n1"]
        assert rig.api.seen == ["PATCH"]

    ask(tmp_path, Api(), use, "n1")


SPREAD: Any = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]


def test_a_pod_with_preferences_is_answered_the_nodes_that_its_pool_holds_each_written_first(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        for name in ("n1", "n2"):
            held(rig, name)
        rig.ledger.node_seen(node("n3"), 0)
        rig.api.nodes["n3"] = {"name": "n3", "uid": "n3-uid", "resourceVersion": "1"}
        answer = await rig.filter("n1", "n2", "n3", topologySpreadConstraints=SPREAD)
        assert answer.node_names == ["n3", "n1", "n2"]
        assert rig.api.seen == ["PATCH"] * 3
        again = await rig.filter("n1", "n2", "n3", uid="q", topologySpreadConstraints=SPREAD)
        assert again.node_names and {"n1", "n2"} <= {*again.node_names}
        assert rig.api.seen == ["PATCH"] * 3, "they were written a moment ago"

    ask(tmp_path, Api(), use, "n1", "n2")


def test_a_pod_with_preferences_is_not_answered_a_node_whose_write_fails(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        held(rig)
        rig.api.nodes["n1"]["uid"] = "another"
        answer = await rig.filter("n1", "n2", topologySpreadConstraints=SPREAD)
        assert answer.node_names == ["n2"]

    ask(tmp_path, Api(), use, "n1", "n2")


def test_a_pool_that_is_being_deleted_by_now_is_claimed_anew_and_not_answered_by_an_old_view(tmp_path: Path) -> None:
    """The reconciler may have released what a pool that is being deleted holds; our watch does not say so yet."""

    async def use(rig: Rig) -> None:
        rig.ledger.pool_seen(pool(), 0)
        held(rig)
        assert (await rig.filter("n1")).node_names == ["n1"]
        assert rig.api.seen == ["PATCH"]

    ask(tmp_path, Api(), use, "n1")
