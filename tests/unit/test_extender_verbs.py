"""Filter and its claims over an API server that refuses, fails, loses answers and lets things happen meanwhile."""

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ateplace import names
from ateplace.cluster.feed import View
from ateplace.cluster.records import PoolRecord
from ateplace.cluster.state import CRASH_LOOP
from ateplace.kube import Kube
from ateplace.settings import Settings
from extender import fit, metrics
from extender.demand import Demand
from extender.filter import choose as filter_
from extender.filter import handler, retry
from extender.filter.handler import BUSY, GONE
from extender.protocol import FilterResult, extender_args, preemption_args
from extender.verbs import Verbs
from tests.unit.cluster import SMALL, atelet, ledger, node, pod, pool, template
from tests.unit.kube_server import Answer, Request, Server, connected, kubeconfig, serving, until

POD: dict[str, dict[str, Any]] = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "p", "resourceVersion": "1"},
    "spec": {"containers": [{"name": "c"}]},
}
LABELS = {names.POOL_LABEL: "a", names.POOL_UID_LABEL: "A"}


class Api:
    """Nodes as an API server has them. `fates` are used up one per patch; then patches are taken."""

    def __init__(self, *fates: Callable[["Api", Request, Answer], Awaitable[None]]) -> None:
        self.fates = list(fates)
        self.nodes: dict[str, dict[str, Any]] = {
            name: {"name": name, "uid": f"{name}-uid", "resourceVersion": "1"} for name in ("n1", "n2")
        }
        self.seen: list[str] = []
        """The methods of requests about nodes."""
        self.strangers: dict[str, list[Any]] = {}
        self.read: list[str] = []
        """The nodes whose pods were listed."""

    async def __call__(self, request: Request, answer: Answer) -> None:
        if request.path == "/api/v1/pods":
            self.read.append(request.query["fieldSelector"].partition("=")[2])
            items = self.strangers.get(self.read[-1], [])
            await answer.reply(200, {"metadata": {"resourceVersion": "1"}, "items": items})
            return
        if "/workerpools/" in request.path:
            await self.pool(answer)
            return
        self.seen.append(request.method)
        if request.method == "PATCH" and self.fates:
            await self.fates.pop(0)(self, request, answer)
        elif request.method == "PATCH" and not self.meant(request):
            await conflict(self, request, answer)
        elif request.method == "PATCH":
            self.write(request)
            await answer.reply(200, {"metadata": self.nodes[self.named(request)]})
        else:
            await answer.reply(200, {"metadata": self.nodes[self.named(request)]})

    async def pool(self, answer: Answer) -> None:
        await answer.refuse(404, "NotFound", "no such pool")

    @staticmethod
    def named(request: Request) -> str:
        return request.path.rpartition("/")[2]

    def meant(self, request: Request) -> bool:
        """Whether the Node is the one, and in the version, that the patch was made for, as far as it says."""
        meta, said = self.nodes[self.named(request)], request.json["metadata"]
        return all(said.get(key, meta[key]) == meta[key] for key in ("uid", "resourceVersion"))

    def write(self, request: Request) -> None:
        meta: Any = self.nodes[self.named(request)]
        said = request.json["metadata"]
        version = str(int(meta["resourceVersion"]) + 1)
        meta |= {"resourceVersion": version, "labels": said["labels"]}
        meta["annotations"] = {**meta.get("annotations", {}), **said["annotations"]}


async def broken(_: Api, __: Request, answer: Answer) -> None:
    await answer.refuse(500, "InternalError", "boom")


async def lost(api: Api, request: Request, answer: Answer) -> None:
    """Taken, but nobody is told."""
    api.write(request)
    answer.reset()


async def spoilt(api: Api, request: Request, answer: Answer) -> None:
    """Taken, nobody is told, and somebody has removed the label since."""
    api.write(request)
    meta: Any = api.nodes[api.named(request)]
    meta |= {"resourceVersion": "3", "labels": {}}
    answer.reset()


async def busy(_: Api, __: Request, answer: Answer) -> None:
    await answer.refuse(429, "TooManyRequests", "slow down", Retry_After="1")


async def conflict(_: Api, __: Request, answer: Answer) -> None:
    await answer.refuse(409, "Conflict", "the object has been modified")


async def not_found(_: Api, __: Request, answer: Answer) -> None:
    await answer.refuse(404, "NotFound", "no such node")


async def overtaken(api: Api, request: Request, answer: Answer) -> None:
    """Another replica has opened the node a moment before."""
    meta: Any = api.nodes[api.named(request)]
    meta |= {"resourceVersion": "5", "annotations": {names.claim_key("A"): "theirs"}}
    await conflict(api, request, answer)


class Rig:
    def __init__(
        self, api: Api, server: Server, kube: Kube, nodes: tuple[str, ...], settings: Settings | None = None
    ) -> None:
        settings = settings or Settings()
        self.api, self.server = api, server
        self.view = View(kube, settings)
        for watch in self.view.watches:
            watch.synced.set()
            watch.staleness = lambda: 0.0  # type: ignore[method-assign]
        self.view.ledger.daemonset_seen(template(), 0.0)
        self.ledger = self.view.ledger
        self.ledger.pool_seen(pool(), 0)
        self.ledger.pod_seen(pod("p"), 0)
        for name in nodes:
            self.ledger.node_seen(node(name), 0)
        self.verbs = Verbs(kube, self.view, settings)

    async def filter(self, *nodes: str, uid: str = "p", labels: dict[str, str] = LABELS, **spec: Any) -> FilterResult:
        metadata: Any = {**POD["metadata"], "labels": labels, "uid": uid, "name": uid}
        sent = {"metadata": metadata, "spec": {**POD["spec"], **spec}}
        return await self.verbs.filter(extender_args(json.dumps({"Pod": sent, "NodeNames": nodes}).encode()))


def ask(
    directory: Path,
    api: Api,
    use: Callable[[Rig], Awaitable[Any]],
    *nodes: str,
    settings: Settings | None = None,
) -> Any:
    async def main() -> Any:
        async with serving(api) as server, connected(kubeconfig(directory, server.url, token="t")) as kube:
            rig = Rig(api, server, kube, nodes, settings)
            try:
                return await use(rig)
            finally:
                await rig.verbs.close()

    return asyncio.run(main())


def claimed(result: str) -> float:
    return float(metrics.CLAIMS.labels(result)._value.get())


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


@pytest.mark.parametrize("fate", [not_found, overtaken])
def test_a_claim_that_is_refused_is_an_error_and_no_refusal(tmp_path: Path, fate: Any) -> None:
    """A refusal is a fit error, for which the scheduler preempts somebody elsewhere."""

    async def use(rig: Rig) -> FilterResult:
        answer = await rig.filter("n1")
        assert not rig.ledger.picks.attempts
        return answer

    said = ask(tmp_path, Api(fate), use, "n1")
    assert said.error.startswith("ateplace: n1 cannot be claimed") and said.unresolvable is None


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


def test_who_needs_a_node_that_is_being_claimed_waits_for_the_same_write(tmp_path: Path) -> None:
    """Even after the caller that began it has run out of time."""

    async def use(rig: Rig) -> None:
        gate = asyncio.Event()

        async def held_up(api: Api, request: Request, answer: Answer) -> None:
            await gate.wait()
            api.write(request)
            await answer.reply(200, {"metadata": api.nodes["n1"]})

        rig.api.fates.append(held_up)
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


def stranger(uid: str, cpu: str) -> Any:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": {"containers": [container]}}


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
    monkeypatch.setattr(retry, "FIRST", 0.05)

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
    monkeypatch.setattr(retry, "FIRST", 0.02)
    monkeypatch.setattr(retry, "LAST", 0.02)

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
        assert rig.verbs.filter_verb._wary_until < 0
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
        rig.verbs.filter_verb._wary_until = math.inf if wary else -math.inf
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
        rig.verbs.filter_verb._retry.later(Demand(uid="p", pool="A", shape=SMALL), retry.Among(["n2"]), 0.01)
        kinds = rig.verbs.filter_verb._retry._kinds
        await until(lambda: rig.api.seen or all(kind.delay > 0.01 for kind in kinds.values()))
        await rig.verbs.close()
        assert rig.api.seen == (["PATCH"] if opened else [])

    ask(tmp_path, Api(), use, "n1", "n2")


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


def test_a_refused_pod_is_brought_back_although_the_first_write_for_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST", 0.05)

    async def use(rig: Rig) -> None:
        rig.ledger.node_seen(node("n1", "A", version=2), 0)
        rig.ledger.atelet_seen(atelet("n1", ready=False, trouble=CRASH_LOOP), 0)
        assert (await rig.filter("n1")).unresolvable == {"n1": fit.CRASHING}
        rig.ledger.atelet_gone("atelet-n1", 1)
        rig.ledger.atelet_seen(atelet("n1"), 1)
        await until(lambda: rig.api.nodes["n1"].get("annotations"))
        assert rig.api.seen.count("PATCH") == 2

    ask(tmp_path, Api(not_found), use, "n1")


async def denied(_: Api, __: Request, answer: Answer) -> None:
    await answer.refuse(403, "Forbidden", "a webhook says no")


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


def test_a_call_that_waits_too_long_for_another_one_says_so(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        gate = asyncio.Event()

        async def held_up(api: Api, request: Request, answer: Answer) -> None:
            await gate.wait()
            api.write(request)
            await answer.reply(200, {"metadata": api.nodes["n1"]})

        rig.api.fates.append(held_up)
        first = asyncio.create_task(rig.filter("n1"))
        await until(lambda: rig.api.seen)
        rig.verbs.filter_verb._deadline = 0.01
        assert (await rig.filter("n1")).error == f"ateplace: {BUSY}"
        gate.set()
        assert (await first).node_names == ["n1"], "its pick was not forgotten for the other's sake"
        assert rig.ledger.picks.attempts

    ask(tmp_path, Api(), use, "n1")


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


@pytest.mark.parametrize("room", [True, False])
def test_among_nodes_that_others_have_filled_each_call_looks_at_other_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """What was read is believed for a minute only, and calls come every ten seconds: the same ones would be looked at
    again and again, and a pod would neither get the node at the end of the list nor be refused, and so preempt."""
    monkeypatch.setattr(handler, "READS", 4)
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
