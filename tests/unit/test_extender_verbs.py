"""Filter and its claims over an API server that refuses, fails, loses answers and lets things happen meanwhile."""

import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from ateplace import names
from ateplace.cluster.resources import Shape
from ateplace.extender import fit, metrics
from ateplace.extender.app import Application
from ateplace.extender.filter.claiming import GONE
from ateplace.extender.filter.handler import BUSY
from ateplace.extender.protocol import FilterResult, extender_args
from ateplace.settings import Extender, Settings
from tests.unit.cluster import SMALL, atelet, ledger, node, pod, pool, template
from tests.unit.kube_server import Answer, Request, until
from tests.unit.verbs_rig import (
    LABELS,
    POD,
    Api,
    Rig,
    ask,
    broken,
    busy,
    claimed,
    conflict,
    held_up,
    lost,
    not_found,
    overtaken,
    spoilt,
)


@pytest.mark.parametrize(
    ("fates", "answer", "patches"),
    [
        pytest.param([], ["n1"], 1, id="taken"),
        pytest.param([broken], ["n1"], 2, id="a failure is looked after, and the patch sent again"),
        pytest.param([lost], ["n1"], 1, id="an answer that was lost is found by looking"),
        pytest.param([spoilt], ["n1"], 3, id="found without the label: sent again, in the version that it has now"),
        pytest.param([conflict], ["n1"], 2, id="another version, and still nobody's"),
        pytest.param([overtaken], ["n2"], 2, id="opened by another replica: the next node"),
        pytest.param([not_found], ["n2"], 2, id="a node that is gone: the next one"),
        pytest.param([broken] * 9, None, 4, id="for ever failing: an error, after a few"),
        pytest.param([conflict] * 4, ["n2"], 5, id="for ever changing: the next one, after a few"),
        pytest.param([busy], ["n1"], 2, id="throttled: again when the server says"),
    ],
)
def test_what_becomes_of_a_claims_write(
    tmp_path: Path, fates: list[Any], answer: list[str] | None, patches: int
) -> None:
    async def use(rig: Rig) -> FilterResult:
        return await rig.filter("n1", "n2")

    api = Api(*fates)
    said = ask(tmp_path, api, use, "n1", "n2")
    assert said.node_names == answer and bool(said.error) == (answer is None)
    assert api.seen.count("PATCH") == patches
    if fates and fates[0] in {broken, lost, conflict}:
        assert api.seen[:2] == ["PATCH", "GET"], "it looks before it writes again"


@pytest.mark.parametrize(
    "behind",
    [{"uid": "recreated"}, {"resourceVersion": "5", "annotations": {names.claim_key("B"): "theirs"}}],
    ids=["recreated under its name", "opened by another since"],
)
def test_a_node_that_is_not_what_our_watch_shows_is_not_claimed(tmp_path: Path, behind: dict[str, Any]) -> None:
    api = Api()
    api.nodes["n1"] |= behind

    async def use(rig: Rig) -> FilterResult:
        return await rig.filter("n1", "n2")

    assert ask(tmp_path, api, use, "n1", "n2").node_names == ["n2"]
    assert names.claim_key("A") not in api.nodes["n1"].get("annotations", ())


@pytest.mark.parametrize(
    ("meanwhile", "answered"),
    [
        ({}, True),
        ({"resourceVersion": "5"}, True),
        (
            {"resourceVersion": "5", "annotations": {names.claim_key("A"): "touched", names.claim_key("B"): "then"}},
            False,
        ),
    ],
    ids=["nothing", "its status changed", "another replica has touched it"],
)
def test_a_unit_is_given_where_others_claimed_long_ago_unless_they_do_so_again_meanwhile(
    tmp_path: Path, meanwhile: dict[str, Any], answered: bool
) -> None:
    """One unit, and a second pod that another replica may be answering: of two writes only one is taken."""
    api = Api()
    claims = {names.claim_key(uid): "then" for uid in "AB"}
    api.nodes["n1"] |= {"resourceVersion": "2", "annotations": claims} | meanwhile
    shape = Shape((("ate.dev/kvm", 1),), (("ate.dev/kvm", 1),))

    async def use(rig: Rig) -> FilterResult:
        seen = node("n1", "A", "B", version=2)
        seen = structs.replace(seen, allocatable=(("ate.dev/kvm", 1), *seen.allocatable))
        rig.ledger.node_seen(seen, time.monotonic() - 121)
        rig.ledger.atelet_seen(atelet("n1"), time.monotonic() - 121)
        for uid in ("p", "q"):
            rig.ledger.pod_seen(pod(uid, shape=shape), 1)
        limits = {"ate.dev/kvm": "1"}
        return await rig.filter("n1", containers=[{"name": "c", "resources": {"limits": limits, "requests": limits}}])

    said = ask(tmp_path, api, use, "n1")
    assert said.node_names == (["n1"] if answered else None), said.error
    assert (api.nodes["n1"]["annotations"][names.claim_key("A")] not in {"then", "touched"}) is answered


def test_at_the_end_a_write_under_way_is_waited_for_and_known(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        gate = asyncio.Event()
        rig.api.fates.append(held_up(gate))
        call = asyncio.create_task(rig.filter("n1"))
        await until(lambda: rig.api.seen)
        call.cancel()  # as when the connection that asked is gone
        ending = asyncio.create_task(rig.verbs.close())
        done, _ = await asyncio.wait([ending], timeout=0.1)
        assert not done
        gate.set()
        await ending
        assert rig.ledger.nodes["n1"].pools["A"].sent > -math.inf

    ask(tmp_path, Api(), use, "n1")


def test_who_needs_a_node_that_is_being_claimed_waits_for_the_same_write(tmp_path: Path) -> None:
    """Even after the caller that began it has run out of time."""

    async def use(rig: Rig) -> None:
        gate = asyncio.Event()
        rig.api.fates.append(held_up(gate))
        loop, wanted = asyncio.get_running_loop(), rig.ledger.nodes["n1"]

        async def claim(seconds: float) -> None:
            await rig.verbs.claims.open(wanted, "A", write=True, read=False, until=loop.time() + seconds)

        first, second = asyncio.create_task(claim(10)), asyncio.create_task(claim(10))
        await until(lambda: rig.api.seen)
        with pytest.raises(TimeoutError):
            await claim(0)
        gate.set()
        await asyncio.gather(first, second)
        assert rig.api.seen == ["PATCH"]

    ask(tmp_path, Api(), use, "n1")


def test_a_replay_in_the_same_cycle_writes_nothing(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        before = claimed("written")
        first, second = await rig.filter("n1", "n2"), await rig.filter("n1")
        assert first.node_names == second.node_names == ["n1"]
        assert claimed("written") - before == 1

    ask(tmp_path, Api(), use, "n1", "n2")


def test_a_pod_that_is_deleted_while_its_node_is_claimed_is_not_counted_there(tmp_path: Path) -> None:
    async def use(rig: Rig) -> FilterResult:
        async def deleted(api: Api, request: Request, answer: Answer) -> None:
            rig.ledger.pod_gone("p", 1)
            api.write(request)
            await answer.reply(200, {"metadata": api.nodes["n1"]})

        rig.api.fates.append(deleted)
        answer = await rig.filter("n1")
        assert not rig.ledger.picks.attempts and rig.ledger.nodes["n1"].pods == 0
        return answer

    assert ask(tmp_path, Api(), use, "n1").error == f"ateplace: {GONE}"


def test_a_call_that_fails_in_a_way_nobody_thought_of_leaves_no_pick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(rig: Rig) -> None:
        async def fails(*_: object, **__: object) -> None:
            raise msgspec.ValidationError("nobody thought of it")

        monkeypatch.setattr(rig.verbs.claims, "open", fails)
        with pytest.raises(msgspec.ValidationError):
            await rig.filter("n1")
        assert not rig.ledger.picks.attempts

    ask(tmp_path, Api(), use, "n1")


def test_a_replay_while_the_first_call_still_claims_gets_the_same_node(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        asked = asyncio.Event()

        async def slow(api: Api, request: Request, answer: Answer) -> None:
            asked.set()
            await asyncio.sleep(0.1)
            api.write(request)
            await answer.reply(200, {"metadata": api.nodes["n1"]})

        rig.api.fates.append(slow)
        first = asyncio.create_task(rig.filter("n1", "n2"))
        await asked.wait()
        second = await rig.filter("n1", "n2")
        assert (await first).node_names == second.node_names == ["n1"]
        assert rig.api.seen == ["PATCH"]
        assert [one.node for one in rig.ledger.picks.attempts.values()] == ["n1"]

    ask(tmp_path, Api(), use, "n1", "n2")


def test_that_more_pods_may_be_on_their_way_does_not_make_us_wary_of_strangers(tmp_path: Path) -> None:
    """Then each further node would be read before it is written, in the scheduling cycle."""

    async def use(rig: Rig) -> FilterResult:
        async def others_come(api: Api, request: Request, answer: Answer) -> None:
            for number in range(9):
                rig.ledger.pod_seen(pod(f"q{number}"), 1)
            api.write(request)
            await answer.reply(200, {"metadata": api.nodes["n1"]})

        rig.view.ledger.daemonset_seen(template(cpu=500), 0.0)
        rig.ledger.node_seen(node("n1", "B", version=2), time.monotonic())
        rig.api.nodes["n1"]["resourceVersion"] = "2"
        rig.api.fates.append(others_come)
        answer = await rig.filter("n1")
        assert rig.verbs.filter_verb._claiming._read_first_until < 0
        return answer

    assert ask(tmp_path, Api(), use, "n1").error == f"ateplace: {fit.COMING}"


@pytest.mark.parametrize(("wary", "said"), [(False, ["claimed ahead: n2"]), (True, [])])
def test_a_node_that_was_only_looked_at_ahead_is_not_said_to_be_claimed(
    tmp_path: Path, wary: bool, said: list[str]
) -> None:
    async def use(rig: Rig) -> None:
        rig.view.ledger.daemonset_seen(template(cpu=500), 0.0)
        for number in range(200):
            rig.ledger.pod_seen(pod(f"q{number}"), 0)
        rig.verbs.filter_verb._claiming._read_first_until = math.inf if wary else -math.inf
        assert (await rig.filter("n1", "n2")).node_names == ["n1"]
        assert [note for note in rig.verbs.decisions.of("ns/p")[-1].notes if "ahead" in note] == said

    ask(tmp_path, Api(), use, "n1", "n2")


def test_the_share_of_warm_picks_is_that_of_ateoms(tmp_path: Path) -> None:
    """A placeholder waits for no atelet: what it finds is nobody's hit."""

    def picks() -> dict[Any, float]:
        return {key: one._value.get() for key, one in metrics.PICKS._metrics.items()}  # type: ignore[attr-defined]

    async def use(rig: Rig) -> None:
        rig.ledger.pod_seen(pod("p", placeholder=True), 0)
        before = picks()
        placeholder = {names.PLACEHOLDER_LABEL: "a", names.POOL_UID_LABEL: "A"}
        assert (await rig.filter("n1", labels=placeholder)).node_names == ["n1"]
        assert picks() == before

    ask(tmp_path, Api(), use, "n1")


def test_picks_in_flight_are_those_that_were_answered() -> None:
    known = ledger(node("n1"), node("n2"), pool(), pod("p"), pod("q"), pod("r"))
    for uid in ("p", "q", "r"):
        known.picks.assume(uid, "A", "n1", SMALL, now=0)
    known.picks.failed("q")
    known.picks.forget("r")
    assert known.picks.in_flight() == 1


def test_a_pool_that_came_and_went_while_it_was_looked_up_is_not_kept(tmp_path: Path) -> None:
    """Nobody would ever say that it is gone."""

    async def use(rig: Rig) -> FilterResult:
        async def gone_by_now(answer: Answer) -> None:
            rig.view.pools._mirror.version = 9
            meta = {"name": "a", "namespace": "ns", "uid": "A", "resourceVersion": "5"}
            await answer.reply(200, {"metadata": meta})

        rig.ledger.pod_gone("p", 1)
        rig.ledger.pool_gone("A", 1)
        rig.api.pool = gone_by_now  # type: ignore[method-assign]
        answer = await rig.filter("n1")
        assert rig.ledger.pools == {}
        return answer

    said = ask(tmp_path, Api(), use, "n1")
    assert said.error == "ateplace: there is no WorkerPool ns/a any more"


def test_a_pool_that_the_watch_shows_being_deleted_meanwhile_is_not_believed_alive(tmp_path: Path) -> None:
    async def use(rig: Rig) -> FilterResult:
        async def overtaken_by_the_watch(answer: Answer) -> None:
            rig.ledger.pool_seen(msgspec.structs.replace(pool(), deleting=True, version=9), 1)
            meta = {"name": "a", "namespace": "ns", "uid": "A", "resourceVersion": "5"}
            await answer.reply(200, {"metadata": meta})

        rig.ledger.pool_gone("A", 1)
        rig.api.pool = overtaken_by_the_watch  # type: ignore[method-assign]
        return await rig.filter("n1")

    assert ask(tmp_path, Api(), use, "n1").error == "ateplace: the WorkerPool ns/a is being deleted"


def test_a_call_that_waits_too_long_for_another_one_says_so(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        gate = asyncio.Event()
        rig.api.fates.append(held_up(gate))
        first = asyncio.create_task(rig.filter("n1"))
        await until(lambda: rig.api.seen)
        rig.verbs.filter_verb._deadline = 0.01
        assert (await rig.filter("n1")).error == f"ateplace: {BUSY}"
        gate.set()
        assert (await first).node_names == ["n1"], "its pick was not forgotten for the other's sake"
        assert rig.ledger.picks.attempts

    ask(tmp_path, Api(), use, "n1")


def test_a_preemption_that_takes_too_long_says_so(tmp_path: Path) -> None:
    """Its answer has no field for an error: the scheduler shows the body of a 503."""

    async def use(rig: Rig) -> None:
        gate, sent = asyncio.Event(), list[dict[str, Any]]()

        async def held_up(answer: Answer) -> None:
            await gate.wait()
            answer.reset()

        async def receive() -> dict[str, Any]:
            meta = {**POD["metadata"], "labels": {names.POOL_LABEL: "unseen"}}
            return {"body": json.dumps({"Pod": {**POD, "metadata": meta}, "NodeNameToMetaVictims": {}}).encode()}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        rig.api.pool = held_up  # type: ignore[method-assign]
        try:
            await Application(rig.verbs)({"path": "/preempt", "method": "POST"}, receive, send)
        finally:
            gate.set()
        assert sent[0]["status"] == 503
        assert json.loads(sent[1]["body"]) == "the API server took longer than 0.05 s"

    ask(tmp_path, Api(), use, "n1", settings=Settings(extender=Extender(deadline=0.05)))


def test_every_call_is_counted_by_what_was_answered(tmp_path: Path) -> None:
    def calls() -> dict[Any, float]:
        return {key: one._value.get() for key, one in metrics.CALLS._metrics.items()}  # type: ignore[attr-defined]

    async def use(rig: Rig) -> None:
        before = calls()
        assert (await rig.filter()).error == "ateplace: the call names no node"
        await rig.verbs.filter(extender_args(b'{"NodeNames":["n1"]}'))
        await rig.verbs.filter(extender_args(json.dumps({"Pod": POD}).encode()))
        await rig.verbs.prioritize(extender_args(json.dumps({"Pod": POD, "NodeNames": ["n1"]}).encode()))
        labelled = {**POD, "metadata": {**POD["metadata"], "labels": LABELS}}
        await rig.verbs.prioritize(extender_args(json.dumps({"Pod": labelled, "NodeNames": ["n1"]}).encode()))
        more = {key: now - before.get(key, 0) for key, now in calls().items() if now != before.get(key, 0)}
        assert more == {
            ("filter", "error"): 1,
            ("filter", "bad"): 2,
            ("prioritize", "passed"): 1,
            ("prioritize", "answered"): 1,
        }

    ask(tmp_path, Api(), use, "n1")
