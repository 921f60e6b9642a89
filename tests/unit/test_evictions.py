"""Preempt ends placeholders itself: one write each, all at once, for the pod that asks and for those behind it."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from ateplace import names
from ateplace.cluster.feed import View
from ateplace.cluster.records import PodRecord
from ateplace.extender import fit
from ateplace.extender.app import Verbs
from ateplace.extender.preempt import evict
from ateplace.extender.protocol import extender_args, preemption_args
from ateplace.process import metrics
from ateplace.settings import Settings
from tests.unit.cluster import pod, pool, ready, template
from tests.unit.kube_server import Answer, Request, Server, connected, kubeconfig, serving, until

Answers = dict[str, tuple[int, str]]
SIZE = {"requests": {"cpu": "1", "memory": "1Gi"}}


class Rig:
    """Four nodes: two placeholders on n1, one on n2 and n3 each, the pool's own; n4 has another pool's. Atelet is
    Ready on all of them. `answers` is what the API server says to a deletion, by the pod's name; what it takes is seen
    to go."""

    verbs: Verbs

    def __init__(self, server: Server, view: View, answers: Answers, *, replicas: int, seen: bool) -> None:
        self.server, self.view, self.answers, self.seen = server, view, answers, seen
        self.unclaimable: set[str] = set()
        self.spec: dict[str, Any] = {}
        for watch in view.watches:
            watch.synced.set()
            watch.staleness = lambda: 0.0  # type: ignore[method-assign]
        view.ledger.daemonset_seen(template(), 0.0)
        for uid in ("A", "B"):
            view.ledger.pool_seen(pool(uid, replicas=replicas if uid == "A" else 0), time.monotonic())
        for number in range(1, 5):
            record, atelet = ready(f"n{number}", "A" if number < 4 else "B")
            view.ledger.node_seen(record, 0)  # type: ignore[arg-type]
            view.ledger.atelet_seen(atelet, 0)  # type: ignore[arg-type]
        for name, on in (("ph1", "n1"), ("ph2", "n1"), ("ph3", "n2"), ("ph4", "n3"), ("other", "n4")):
            self.show(pod(name, on, "B" if name == "other" else "A", placeholder=True))

    def show(self, new: PodRecord) -> None:
        """The watch shows a pod."""
        store = self.view.placeholders.store if new.placeholder else self.view.ateoms.store
        key = f"{new.namespace}/{new.name}"
        old = store.get(key)
        store[key] = new
        self.view._pod(key, old, new)

    def hide(self, name: str) -> None:
        """The watch shows that a placeholder is gone."""
        old = self.view.placeholders.store.pop(f"ns/{name}")
        self.view._pod(f"ns/{name}", old, None)

    async def handle(self, request: Request, answer: Answer) -> None:
        name = request.path.rpartition("/")[2]
        if request.method == "PATCH" and name in self.unclaimable:
            await answer.refuse(422, "Invalid", "a policy on Nodes says no")
            return
        if request.method == "PATCH":
            await answer.reply(200, {"metadata": {"name": name, "uid": f"{name}-uid", "resourceVersion": "2"}})
            return
        status, reason = self.answers.get(name, (200, ""))
        if status == 200 and self.seen:
            self.hide(name)
        await (answer.reply(200, {}) if status == 200 else answer.refuse(status, reason, reason))

    def wire(self, uid: str, *, placeholder: bool = False) -> Any:
        key = names.PLACEHOLDER_LABEL if placeholder else names.POOL_LABEL
        meta = {"name": uid, "namespace": "ns", "uid": uid, "resourceVersion": "1"}
        labels = {key: "a", names.POOL_UID_LABEL: "A"}
        spec = {"containers": [{"name": "c", "resources": SIZE}], "priorityClassName": names.ATEOM_PRIORITY_CLASS}
        spec |= self.spec
        return {"metadata": {**meta, "labels": labels}, "spec": spec}

    async def preempt(self, uid: str, named: dict[str, list[str]]) -> dict[str, list[str]]:
        victims = {name: {"Pods": [{"UID": uid} for uid in uids]} for name, uids in named.items()}
        body = {"Pod": self.wire(uid), "NodeNameToMetaVictims": victims}
        answer = await self.verbs.preempt(preemption_args(json.dumps(body).encode()))
        return {name: [victim.uid for victim in one.pods or ()] for name, one in answer.victims.items()}

    async def filter(self, uid: str, *nodes: str, placeholder: bool = False) -> tuple[list[str], dict[str, str]]:
        body = {"Pod": self.wire(uid, placeholder=placeholder), "NodeNames": nodes}
        answer = await self.verbs.filter(extender_args(json.dumps(body).encode()))
        assert not answer.error
        return answer.node_names or [], answer.unresolvable or {}

    @property
    def ended(self) -> list[str]:
        """The pods whose deletion was asked for, in any order."""
        return sorted(one.path.rpartition("/")[2] for one in self.server.requests if one.method == "DELETE")

    @property
    def patched(self) -> list[str]:
        """The nodes that were written, in order."""
        return [one.path.rpartition("/")[2] for one in self.server.requests if one.method == "PATCH"]


def play(
    directory: Path,
    use: Callable[[Rig], Awaitable[None]],
    answers: Answers | None = None,
    *,
    replicas: int = 0,
    seen: bool = True,
) -> None:
    async def main() -> None:
        rig: Rig

        async def handle(request: Request, answer: Answer) -> None:
            await rig.handle(request, answer)

        async with serving(handle) as server, connected(kubeconfig(directory, server.url, token="t")) as kube:
            view = View(kube, Settings())
            rig = Rig(server, view, answers or {}, replicas=replicas, seen=seen)
            rig.verbs = Verbs(kube, view, Settings())
            try:
                await use(rig)
            finally:
                await rig.verbs.close()

    asyncio.run(main())


NAMED = {"n1": ["ph1"], "n2": ["ph3"], "n3": ["ph4"]}


def sample(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(f"ateplace_{name}", labels) or 0.0


def test_a_placeholder_is_ended_and_the_scheduler_has_nothing_left_to_preempt(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        rig.show(pod("p1"))
        assert await rig.preempt("p1", NAMED) == {}
        assert rig.ended == ["ph1"]
        (request,) = (one for one in rig.server.requests if one.method == "DELETE")
        assert request.path == "/api/v1/namespaces/ns/pods/ph1"
        assert request.json["preconditions"] == {"uid": "ph1"}, "and not one that was made anew under its name"
        assert "gracePeriodSeconds" not in request.json, "it has the time that it asks for"

    play(tmp_path, use)


def test_where_the_pod_fits_with_nobody_evicted_nobody_is(tmp_path: Path) -> None:
    """A call of kube-scheduler 1.38: filter refused n3 a moment ago, and would not any more."""

    async def use(rig: Rig) -> None:
        rig.show(pod("p1"))
        assert await rig.preempt("p1", {"n1": ["ph1"], "n2": ["ph3"], "n3": []}) == {"n3": []}
        assert (rig.ended, rig.patched) == ([], []), "filter claims it, when it is asked about that node"
        assert await rig.filter("p1", "n3") == (["n3"], {})
        assert rig.patched == ["n3"]

    play(tmp_path, use, replicas=2)


def test_room_is_made_for_those_that_wait_and_those_that_are_to_come(tmp_path: Path) -> None:
    """Three of this pool: one asks, one waits, one is still to be made. A pool's own placeholders only."""

    async def use(rig: Rig) -> None:
        rig.show(pod("p1"))
        rig.show(pod("p2"))
        assert await rig.preempt("p1", {**NAMED, "n4": ["other"]}) == {}
        assert rig.ended == ["ph1", "ph2", "ph3"]
        assert await rig.preempt("p2", {"n1": ["ph1"], "n2": ["ph3"]}) == {}, "the scheduler has not heard of it yet"
        assert len(rig.ended) == 3

    play(tmp_path, use, replicas=3)


def test_no_room_is_made_for_pods_that_were_to_come_and_did_not(tmp_path: Path) -> None:
    """A quota of one ateom where twenty are wanted: each time that one asks, room is made for it alone."""

    async def use(rig: Rig) -> None:
        rig.view.ledger.pools["A"].raised = time.monotonic() - 6.0
        rig.show(pod("p1"))
        assert await rig.preempt("p1", NAMED) == {}
        assert rig.ended == ["ph1"]

    play(tmp_path, use, replicas=20)


def test_who_finds_no_room_all_the_same_is_made_another(tmp_path: Path) -> None:
    """Somebody else may have taken it. Who asks again with a living victim does not wait for anything else."""

    async def use(rig: Rig) -> None:
        rig.show(pod("p1"))
        await rig.preempt("p1", {"n1": ["ph1"]})
        assert await rig.preempt("p1", {"n1": ["ph2"], "n2": ["ph3"]}) == {}
        assert rig.ended == ["ph1", "ph2"]

    play(tmp_path, use)


@pytest.mark.parametrize(
    ("answer", "tried_again"),
    [
        pytest.param((403, "Forbidden"), False, id="not allowed: this one is not tried for a while"),
        pytest.param((500, "InternalError"), True, id="broken"),
        pytest.param((422, "Invalid"), True, id="refused"),
    ],
)
def test_where_we_cannot_the_scheduler_preempts(tmp_path: Path, answer: tuple[int, str], tried_again: bool) -> None:
    async def use(rig: Rig) -> None:
        rig.show(pod("p1"))
        rig.show(pod("p2"))
        assert await rig.preempt("p1", {"n2": ["ph3"]}) == {"n2": ["ph3"]}
        assert await rig.preempt("p1", {"n2": ["ph3"]}) == {"n2": ["ph3"]}
        assert await rig.preempt("p2", {"n2": ["ph3"]}) == {}, "it was promised to the other one"
        assert rig.ended == ["ph3"] * (2 if tried_again else 1)

    play(tmp_path, use, {"ph3": answer, "ph1": answer, "ph2": answer, "ph4": answer}, replicas=0)


def test_that_one_may_not_be_ended_says_nothing_about_others(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        rig.show(pod("p1"))
        rig.show(pod("p2"))
        assert await rig.preempt("p1", {"n2": ["ph3"]}) == {"n2": ["ph3"]}
        assert await rig.preempt("p2", {"n3": ["ph4"]}) == {}
        assert rig.ended == ["ph3", "ph4"]

    play(tmp_path, use, {"ph3": (403, "Forbidden")}, replicas=0)


def test_nothing_is_ended_where_the_node_cannot_be_claimed(tmp_path: Path) -> None:
    """A policy on Nodes: the placeholders would be ended again and again, and the ateom could never go there."""

    async def use(rig: Rig) -> None:
        rig.show(pod("p1"))
        rig.show(pod("p2"))
        rig.unclaimable = {"n1", "n3"}
        assert await rig.preempt("p1", NAMED) == {}
        assert rig.ended == ["ph3"], "the first node that may be claimed, and no more than what is there"
        assert rig.patched[:2] == ["n1", "n2"]
        rig.unclaimable = {"n1", "n2", "n3"}
        assert await rig.preempt("p2", {"n1": ["ph1"], "n3": ["ph4"]}) == {}
        assert rig.ended == ["ph3"]

    play(tmp_path, use)


@pytest.mark.parametrize("how", ["host port", "anti-affinity"])
def test_for_pods_that_do_not_share_a_node_one_room_is_made_on_each(tmp_path: Path, how: str) -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {names.POOL_LABEL: "a"}}}
    port = {"containers": [{"name": "c", "resources": SIZE, "ports": [{"containerPort": 80, "hostPort": 80}]}]}
    apart = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}

    async def use(rig: Rig) -> None:
        for uid in ("p1", "p2", "p3", "p4"):
            rig.show(pod(uid))
        rig.spec = port if how == "host port" else apart
        assert await rig.preempt("p1", NAMED) == {}
        assert rig.ended == ["ph1", "ph3", "ph4"], "not ph2, beside ph1"

    play(tmp_path, use)


def test_one_that_is_gone_already_needs_no_end(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        rig.show(pod("p1"))
        before = sample("placeholders_preempted_total", pool="ns/pool")
        assert await rig.preempt("p1", {"n1": ["ph1"]}) == {}
        assert await rig.preempt("p1", {"n2": ["ph3"]}) == {}
        assert sample("placeholders_preempted_total", pool="ns/pool") == before, "whoever ended it counts it"

    play(tmp_path, use, {"ph1": (404, "NotFound"), "ph3": (409, "Conflict")})


def test_strangers_are_left_to_the_scheduler(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        rig.show(pod("p1"))
        rig.show(pod("ateom", "n1"))
        assert await rig.preempt("p1", {"n1": ["ateom", "ph1"]}) == {}, "nor may it, for our class"
        assert rig.ended == []

    play(tmp_path, use)


def test_the_answer_waits_a_little_for_the_watch_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(rig: Rig) -> None:
        rig.show(pod("p1"))
        asked = asyncio.create_task(rig.preempt("p1", NAMED))
        await until(lambda: len(rig.ended) == 2)
        await asyncio.sleep(0.05)
        assert not asked.done(), "the next pods would be tried before the scheduler knows"
        for name in rig.ended:
            rig.hide(name)
        assert await asked == {}
        monkeypatch.setattr(evict, "SEEN_SECONDS", 0.01)
        rig.show(pod("p2"))
        rig.show(pod("p3"))
        rig.show(pod("p4"))
        assert await rig.preempt("p2", {"n1": ["ph2"], "n3": ["ph4"], "n2": ["ph3"]}) == {}

    play(tmp_path, use, replicas=2, seen=False)


def test_no_placeholder_goes_where_room_was_made_until_an_ateom_came(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        rig.show(pod("p1"))
        rig.show(pod("p2"))
        await rig.preempt("p1", NAMED)
        assert rig.ended == ["ph1", "ph2"]
        for uid in ("new1", "new2"):
            rig.show(pod(uid, placeholder=True))
            assert await rig.filter(uid, "n1", placeholder=True) == ([], {"n1": fit.PROMISED})
        assert (await rig.filter("p1", "n1"))[0] == ["n1"]
        assert (await rig.filter("p1", "n1"))[0] == ["n1"], "the same call again takes no other room"
        assert await rig.filter("new1", "n1", placeholder=True) == ([], {"n1": fit.PROMISED})
        assert (await rig.filter("p2", "n1"))[0] == ["n1"]
        assert (await rig.filter("new1", "n1", placeholder=True))[0] == ["n1"]

    play(tmp_path, use)


def test_a_placeholder_that_claims_nothing_is_told_to_come_back(tmp_path: Path) -> None:
    """A refused one comes back with the next event, and there may be none; we bring others back by their claim."""

    async def use(rig: Rig) -> None:
        rig.view.ledger.pool_seen(pool("A", warm=False), 0)
        rig.show(pod("p1"))
        await rig.preempt("p1", {"n2": ["ph3"]})
        rig.show(pod("new", placeholder=True))
        body = {"Pod": rig.wire("new", placeholder=True), "NodeNames": ["n2"]}
        answer = await rig.verbs.filter(extender_args(json.dumps(body).encode()))
        assert answer.error == f"ateplace: {fit.PROMISED}"

    play(tmp_path, use)


def test_what_gave_way_is_counted_and_timed_until_its_refill(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        before = sample("placeholder_refill_seconds_count")
        gave_way = sample("placeholders_preempted_total", pool="ns/pool")
        rig.show(pod("p1"))
        await rig.preempt("p1", {"n2": ["ph3"]})
        assert sample("placeholders_preempted_total", pool="ns/pool") == gave_way + 1
        rig.show(pod("new", placeholder=True))
        assert sample("placeholder_refill_seconds_count") == before
        rig.show(pod("new", "n2", placeholder=True))
        assert sample("placeholder_refill_seconds_count") == before + 1
        rig.view.ledger.pool_gone("A", 0)
        assert 'pool="ns/pool"' not in generate_latest(metrics.REGISTRY).decode(), "nothing is kept of it"

    play(tmp_path, use)


def test_a_pod_that_takes_the_last_placeholders_room_needs_one_write(tmp_path: Path) -> None:

    async def use(rig: Rig) -> None:
        rig.show(pod("p1"))
        await rig.preempt("p1", {"n2": ["ph3"]})
        assert (await rig.filter("p1", "n2"))[0] == ["n2"]
        assert rig.patched == ["n2"]

    play(tmp_path, use)
