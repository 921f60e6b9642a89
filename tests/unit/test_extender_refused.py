"""Pods that are refused, and nodes that cannot be had: what is tried, remembered and said."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ateplace import names
from ateplace.cluster.records import PoolRecord
from ateplace.cluster.state import CRASH_LOOP
from ateplace.extender import fit
from ateplace.extender.demand import Demand
from ateplace.extender.filter import choose as filter_
from ateplace.extender.filter import claiming, refused_pods
from ateplace.extender.protocol import FilterResult, preemption_args
from tests.unit.cluster import SMALL, atelet, node, pod, pool, template
from tests.unit.kube_server import until
from tests.unit.verbs_rig import LABELS, POD, Api, Rig, ask, denied, not_found, overtaken, stranger


@pytest.mark.parametrize("fate", [not_found, overtaken])
def test_a_claim_that_is_refused_is_an_error_and_no_refusal(tmp_path: Path, fate: Any) -> None:
    """A refusal is a fit error, for which the scheduler preempts somebody elsewhere."""

    async def use(rig: Rig) -> FilterResult:
        answer = await rig.filter("n1")
        assert not rig.ledger.picks.attempts
        return answer

    said = ask(tmp_path, Api(fate), use, "n1")
    assert said.error.startswith("ateplace: n1 cannot be claimed") and said.unresolvable is None


def test_pods_that_are_refused_again_and_again_are_decided_upon_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event of any pod brings all refused ones back; only what matters to them makes them be looked at anew."""
    looks = 0

    def counted(*args: Any) -> str:
        nonlocal looks
        looks += 1
        return fit.drop(*args)

    monkeypatch.setattr(filter_, "drop", counted)
    names_ = [f"m{number:04d}" for number in range(1000)]

    async def use(rig: Rig) -> None:
        nonlocal looks
        for name in names_:
            rig.ledger.node_seen(node(name, deleting=True), 0)
        first = await rig.filter(*names_)
        assert first.unresolvable == dict.fromkeys(names_, fit.DELETING)
        assert looks <= 2 * len(names_)
        looks = 0
        for number in range(40):
            rig.ledger.pod_seen(pod("p"), 1)
            rig.ledger.node_seen(node(names_[0], deleting=True, version=number + 2), 1)
            assert (await rig.filter(*reversed(names_))).unresolvable == first.unresolvable
        assert looks == 0
        assert (await rig.filter(*names_[1:])).unresolvable == dict.fromkeys(names_[1:], fit.DELETING)
        rig.ledger.node_seen(node(names_[7], version=99), 1)
        assert (await rig.filter(*names_)).error, "it is tried, and there is no such node"

    ask(tmp_path, Api(not_found), use)


def test_a_node_is_read_before_strangers_are_preempted_there_and_again_afterwards(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        rig.view.ledger.daemonset_seen(template(cpu=500), 0.0)
        rig.api.strangers = {"n1": [stranger("s1", "7900m")], "n2": [stranger("s2", "4"), stranger("s3", "4")]}
        named = {"n1": ["s1"], "n2": ["s2", "nobody"]}
        body = {
            "Pod": {**POD, "metadata": {**POD["metadata"], "labels": LABELS}},
            "NodeNameToMetaVictims": {name: {"Pods": [{"UID": uid} for uid in uids]} for name, uids in named.items()},
        }
        answer = await rig.verbs.preempt(preemption_args(json.dumps(body).encode()))
        assert {name: [pod.uid for pod in one.pods or ()] for name, one in answer.victims.items()} == {"n1": ["s1"]}
        assert sorted(rig.api.read) == ["n1", "n2"], "n2 has no such pod, and is not asked twice"
        assert rig.ledger.nodes["n1"].reading is None, "it will have changed when the pod comes back"
        rig.api.strangers["n1"] = []
        assert (await rig.filter("n1")).node_names == ["n1"]

    ask(tmp_path, Api(), use, "n1", "n2")


def test_a_refused_pod_is_brought_back_when_something_changed_that_no_scheduler_looks_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Atelet is Ready again, its DaemonSet tolerates more, our books were behind the scheduler's: none of these makes
    the scheduler try again. A write to the Node does."""
    monkeypatch.setattr(refused_pods, "FIRST", 0.05)

    async def use(rig: Rig) -> None:
        rig.ledger.node_seen(node("n1", "A", version=2), 0)
        rig.ledger.atelet_seen(atelet("n1", ready=False, trouble=CRASH_LOOP), 0)
        assert (await rig.filter("n1")).unresolvable == {"n1": fit.CRASHING}
        await asyncio.sleep(0.1)
        assert rig.api.seen == [], "nothing has changed"
        rig.ledger.atelet_gone("atelet-n1", 1)
        rig.ledger.atelet_seen(atelet("n1"), 1)
        await until(lambda: rig.api.seen == ["PATCH"])
        assert (await rig.filter("n1")).node_names == ["n1"]

    ask(tmp_path, Api(), use, "n1")


@pytest.mark.parametrize("why", ["it is gone", "its pool is being deleted", "it claims nothing"])
def test_nothing_is_written_for_a_refused_pod_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(refused_pods, "FIRST", 0.02)
    monkeypatch.setattr(refused_pods, "LAST", 0.02)

    async def use(rig: Rig) -> None:
        labels = LABELS
        if why == "it claims nothing":
            rig.ledger.pool_seen(pool(warm=False), 0)
            rig.ledger.pod_seen(pod("p", placeholder=True), 0)
            labels = {names.PLACEHOLDER_LABEL: "a", names.POOL_UID_LABEL: "A"}
        rig.ledger.node_seen(node("n1", deleting=True), 0)
        assert (await rig.filter("n1", labels=labels)).unresolvable == {"n1": fit.DELETING}
        if why == "it is gone":
            rig.ledger.pod_gone("p", 1)
        if why == "its pool is being deleted":
            rig.ledger.pool_seen(msgspec.structs.replace(pool(), deleting=True), 1)
        rig.ledger.node_seen(node("n1", version=2), 1)
        await asyncio.sleep(0.2)
        assert rig.api.seen == [] and rig.api.read == []

    ask(tmp_path, Api(), use, "n1")


@pytest.mark.parametrize(
    ("seen", "opened"),
    [
        pytest.param([pod("p")], True, id="an ateom waits"),
        pytest.param([pod("p", "n1")], False, id="nobody waits"),
        pytest.param([pod("p", "n1"), pod("ph", placeholder=True)], False, id="only a placeholder waits"),
        pytest.param([pod("p"), msgspec.structs.replace(pool(), deleting=True)], False, id="the pool is being deleted"),
    ],
)
def test_when_a_hold_is_over_a_node_is_opened_only_if(tmp_path: Path, seen: list[Any], opened: bool) -> None:
    async def use(rig: Rig) -> None:
        for record in seen:
            (rig.ledger.pool_seen if isinstance(record, PoolRecord) else rig.ledger.pod_seen)(record, 1)
        rig.verbs.filter_verb._retry.later(Demand(uid="p", pool="A", shape=SMALL), refused_pods.Among(["n2"]), 0.01)
        kinds = rig.verbs.filter_verb._retry._kinds
        await until(lambda: rig.api.seen or all(kind.delay > 0.01 for kind in kinds.values()))
        await rig.verbs.close()
        assert rig.api.seen == (["PATCH"] if opened else [])

    ask(tmp_path, Api(), use, "n1", "n2")


def test_a_refused_pod_is_brought_back_although_the_first_write_for_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_pods, "FIRST", 0.05)

    async def use(rig: Rig) -> None:
        rig.ledger.node_seen(node("n1", "A", version=2), 0)
        rig.ledger.atelet_seen(atelet("n1", ready=False, trouble=CRASH_LOOP), 0)
        assert (await rig.filter("n1")).unresolvable == {"n1": fit.CRASHING}
        rig.ledger.atelet_gone("atelet-n1", 1)
        rig.ledger.atelet_seen(atelet("n1"), 1)
        await until(lambda: rig.api.nodes["n1"].get("annotations"))
        assert rig.api.seen.count("PATCH") == 2

    ask(tmp_path, Api(not_found), use, "n1")


def test_a_node_that_may_not_be_claimed_does_not_stand_in_the_way_of_others(tmp_path: Path) -> None:
    """It is refused with that reason, and not tried at every call."""

    async def use(rig: Rig) -> None:
        assert (await rig.filter("n1", "n2")).node_names == ["n2"]
        rig.ledger.pod_seen(pod("p", "n2"), 1)
        assert (await rig.filter("n1", uid="q")).unresolvable == {"n1": fit.UNCLAIMED}
        assert rig.api.seen == ["PATCH", "PATCH"]

    ask(tmp_path, Api(denied), use, "n1", "n2")


def test_one_call_tries_a_few_of_many_nodes_that_may_not_be_claimed(tmp_path: Path) -> None:
    names_ = [f"m{number:02d}" for number in range(20)]

    async def use(rig: Rig) -> None:
        for name in names_:
            rig.ledger.node_seen(node(name), 0)
            rig.api.nodes[name] = {"name": name, "uid": f"{name}-uid", "resourceVersion": "1"}
        said = (await rig.filter(*names_)).error
        assert said == "ateplace: the API server refuses to have 4 nodes claimed; there are more"
        assert rig.api.seen == ["PATCH"] * 4
        for _ in range(3):
            assert (await rig.filter(*names_)).error == said
        assert (await rig.filter(*names_)).unresolvable == dict.fromkeys(names_, fit.UNCLAIMED)

    ask(tmp_path, Api(*[denied] * 99), use)


def test_a_node_to_which_atelet_does_not_come_is_refused_in_the_end(tmp_path: Path) -> None:
    """Its DaemonSet makes no pod for it: other pods on their way cannot be what is waited for."""

    async def use(rig: Rig) -> None:
        rig.ledger.daemonset_seen(template(cpu=500), 0.0)
        now = time.monotonic()
        for number in range(9):
            rig.ledger.pod_seen(pod(f"q{number}"), now)
        rig.ledger.node_seen(node("n1", "B", version=2), now - 59.0)
        assert (await rig.filter("n1")).error == f"ateplace: {fit.COMING}"
        rig.ledger.node_gone("n1", now)
        rig.ledger.node_seen(node("n1", "B", version=2), now - 61.0)
        assert (await rig.filter("n1")).unresolvable == {"n1": fit.COMING}

    ask(tmp_path, Api(), use, "n1")


@pytest.mark.parametrize("room", [True, False])
def test_among_nodes_that_others_have_filled_each_call_looks_at_other_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """What was read is believed for a minute only, and calls come every ten seconds: the same ones would be looked at
    again and again, and a pod would neither get the node at the end of the list nor be refused, and so preempt."""
    monkeypatch.setattr(claiming, "READS", 4)
    names_ = [f"m{number:02d}" for number in range(20)]

    async def use(rig: Rig) -> FilterResult:
        rig.view.ledger.daemonset_seen(template(cpu=500), 0.0)
        for name in names_:
            rig.ledger.node_seen(node(name), 0)
            rig.api.nodes[name] = {"name": name, "uid": f"{name}-uid", "resourceVersion": "1"}
            rig.api.strangers[name] = [stranger(f"s-{name}", "7900m")]
        if room:
            rig.api.strangers[names_[-1]] = []
        for _ in range(8):
            answer = await rig.filter(*names_)
            if not answer.error:
                break
            for name in names_:
                rig.ledger.others_changed(name)
        return answer

    answer = ask(tmp_path, Api(), use)
    assert answer.node_names == ([names_[-1]] if room else [])
    assert answer.unresolvable == (None if room else dict.fromkeys(names_, fit.NO_ROOM))
