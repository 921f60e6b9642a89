"""Pods that wait behind one that was placed are nominated, and what the scheduler is then answered."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ateplace import names
from ateplace.cluster.records import TEMPLATE_LABEL
from ateplace.extender.filter import nominate
from ateplace.extender.filter.nominate import FIRST, MOST
from ateplace.extender.protocol import FilterResult
from ateplace.settings import Extender, Settings
from tests.unit.cluster import atelet, node, pod
from tests.unit.kube_server import Answer, Request, until
from tests.unit.verbs_rig import LABELS, Api, Rig, ask

MADE = {**LABELS, TEMPLATE_LABEL: "t"}
"""The labels of a Deployment's pods."""


CONTAINER = {"name": "ateom", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
"""As large as `pod` makes them."""


async def place(rig: Rig, *nodes: str, uid: str = "p", labels: dict[str, str] = MADE) -> FilterResult:
    return await rig.filter(*nodes, uid=uid, labels=labels, containers=[CONTAINER])


class Nominating(Api):
    """Also takes pods' status, or says why not."""

    def __init__(self, refusal: tuple[int, str] | None = None, *, slow: bool = False) -> None:
        super().__init__()
        self.refusal = refusal
        self.slow = asyncio.Event()
        """Set: it answers about pods' status."""
        if not slow:
            self.slow.set()
        self.asked = 0
        self.nominations: dict[str, str] = {}

    async def __call__(self, request: Request, answer: Answer) -> None:
        if not request.path.endswith("/status"):
            await super().__call__(request, answer)
            return
        self.asked += 1
        await self.slow.wait()
        if self.refusal:
            await answer.refuse(*self.refusal, "no")
            return
        assert list(request.json["status"]) == ["nominatedNodeName"]
        self.nominations[request.json["metadata"]["uid"]] = request.json["status"]["nominatedNodeName"]
        assert request.path == f"/api/v1/namespaces/ns/pods/{request.json['metadata']['uid']}/status"
        await answer.reply(200, {"metadata": {}})


def nominating(directory: Path, use: Callable[[Rig], Awaitable[Any]], api: Nominating, **extender: int) -> Nominating:
    ask(
        directory,
        api,
        use,
        "n1",
        "n2",
        settings=Settings(extender=Extender.model_validate({"nominate_nodes": 2, **extender})),
    )
    return api


def wait(rig: Rig, *uids: str, **fields: Any) -> None:
    """These pods of one template wait, in this order."""
    for uid in uids:
        rig.ledger.pod_seen(structs.replace(pod(uid), template="t", **fields), 0.0)


def warm(rig: Rig) -> None:
    """n1 is claimed and runs atelet; the watch has not shown our own claims yet."""
    rig.ledger.node_seen(node("n1", "A"), 0.0)
    rig.ledger.atelet_seen(atelet("n1"), 0.0)


def test_pods_behind_one_that_was_placed_are_nominated_but_for_the_next(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        warm(rig)
        wait(rig, "p", "next", "a", "b")
        assert (await place(rig, "n1", "n2")).node_names == ["n1"]
        await until(lambda: len(api.nominations) == 2)
        assert rig.ledger.picks.nominated == 2
        assert rig.ledger.nodes["n1"].ateoms == 3, "they count on their node"

    nominating(tmp_path, use, api := Nominating())
    assert api.nominations == {"a": "n1", "b": "n1"}


def large(rig: Rig) -> None:
    """n1 and n2 are claimed, run atelet, and take a thousand pods."""
    for name in ("n1", "n2"):
        record = structs.replace(node(name, "A", slots=1000), allocatable=(("cpu", 10**9), ("memory", 2**50)))
        rig.ledger.node_seen(record, 0.0)
        rig.ledger.atelet_seen(atelet(name), 0.0)


@pytest.mark.parametrize(
    ("behind", "told"), [pytest.param(FIRST + 1, True, id="many"), pytest.param(FIRST - 1, False, id="few")]
)
def test_where_many_wait_the_answer_comes_once_the_first_are_nominated(tmp_path: Path, behind: int, told: bool) -> None:
    """The scheduler takes the next pod as soon as it is answered."""
    waiting = [f"w{number}" for number in range(behind)]

    async def use(rig: Rig) -> None:
        large(rig)
        wait(rig, "claim")
        await place(rig, "n1", "n2", uid="claim")
        wait(rig, "p", *waiting)
        assert (await place(rig, "n1", "n2")).node_names == ["n1"]
        assert (set(waiting[:FIRST]) <= api.nominations.keys()) is told
        await until(lambda: set(waiting[1:]) <= api.nominations.keys())

    nominating(tmp_path, use, api := Nominating())
    assert "p" not in api.nominations


def test_an_answer_waits_for_nominations_for_a_moment_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nominate, "HOLD_SECONDS", 0.05)

    async def use(rig: Rig) -> None:
        large(rig)
        wait(rig, "claim")
        await place(rig, "n1", "n2", uid="claim")
        wait(rig, "p", *(f"w{number}" for number in range(FIRST + 1)))
        assert (await place(rig, "n1", "n2")).node_names == ["n1"]
        assert not api.nominations
        api.slow.set()

    nominating(tmp_path, use, api := Nominating(slow=True))


def test_a_nominated_pod_is_answered_its_node_alone_or_among_others(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        warm(rig)
        wait(rig, "p", "next", "a", "b")
        await place(rig, "n1", "n2")
        await until(lambda: len(api.nominations) == 2)
        for uid, sent in (("a", ("n1",)), ("b", ("n2", "n1"))):
            assert (await place(rig, *sent, uid=uid)).node_names == ["n1"]
        assert (rig.ledger.picks.nominated, rig.ledger.nodes["n1"].ateoms) == (0, 3), "each counts once"
        assert api.seen == ["PATCH"], "one claim for all of them"

    nominating(tmp_path, use, api := Nominating())


def test_a_nomination_that_the_scheduler_cannot_use_is_decided_anew(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        warm(rig)
        wait(rig, "p", "next", "a")
        await place(rig, "n1", "n2")
        await until(lambda: api.nominations)
        assert (await place(rig, "n2", uid="a")).node_names == ["n2"]
        assert (rig.ledger.nodes["n1"].ateoms, rig.ledger.nodes["n2"].ateoms) == (1, 1)

    nominating(tmp_path, use, api := Nominating())


def test_a_nominated_node_that_will_not_do_any_more_is_refused_alone(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        warm(rig)
        wait(rig, "p", "next", "a")
        await place(rig, "n1", "n2")
        await until(lambda: api.nominations)
        rig.ledger.node_seen(node("n1", "A", version=9, deleting=True), 0.0)
        said = await place(rig, "n1", uid="a")
        assert not said.node_names and said.unresolvable
        assert rig.ledger.picks.nominated == 0

    nominating(tmp_path, use, api := Nominating())


def test_the_reply_rule_holds_for_nominated_pods(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        warm(rig)
        wait(rig, "p", "next", "a")
        await place(rig, "n1", "n2")
        await until(lambda: api.nominations)
        rig.ledger.nodes["n1"].pools["A"].sent -= 3600
        assert (await place(rig, "n1", uid="a")).node_names == ["n1"]
        assert api.seen == ["PATCH", "PATCH"], "the claim was written again before the answer"

    nominating(tmp_path, use, api := Nominating())


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        pytest.param({"nominated": "n2"}, MADE, id="nominated by a scheduler"),
        pytest.param({"template": "other"}, MADE, id="of another template"),
        pytest.param({"terminating": True}, MADE, id="about to go"),
        pytest.param({"gated": True}, MADE, id="gated"),
        pytest.param({"placeholder": True}, MADE, id="a placeholder"),
        pytest.param({}, LABELS, id="no Deployment's"),
    ],
)
def test_a_pod_is_left_alone_that_is(tmp_path: Path, fields: dict[str, Any], labels: dict[str, str]) -> None:
    async def use(rig: Rig) -> None:
        warm(rig)
        wait(rig, "p", "next")
        rig.ledger.pod_seen(structs.replace(pod("a"), **{"template": "t", **fields}), 0.0)
        wait(rig, "b")
        await place(rig, "n1", "n2", labels=labels)
        if labels is MADE:
            await until(lambda: "b" in api.nominations)

    nominating(tmp_path, use, api := Nominating())
    assert "a" not in api.nominations


@pytest.mark.parametrize("least", [0, 3], ids=["off", "a smaller cluster"])
def test_small_clusters_are_left_to_the_scheduler(tmp_path: Path, least: int) -> None:
    async def use(rig: Rig) -> None:
        warm(rig)
        wait(rig, "p", "next", "a")
        await place(rig, "n1", "n2")
        assert rig.ledger.picks.nominated == 0

    assert nominating(tmp_path, use, Nominating(), nominate_nodes=least).asked == 0


def test_the_next_call_goes_on_where_the_last_stopped(tmp_path: Path) -> None:
    """A call for a nominated pod names one node only: the others are those of the last whole list."""

    async def use(rig: Rig) -> None:
        large(rig)
        wait(rig, "p", "next", *(f"w{number}" for number in range(MOST + 5)))
        await place(rig, "n1", "n2")
        await until(lambda: len(api.nominations) == MOST)
        assert rig.ledger.picks.nominated == MOST
        await place(rig, "n1", uid="w0")
        await until(lambda: f"w{MOST}" in api.nominations)

    nominating(tmp_path, use, api := Nominating())


@pytest.mark.parametrize(
    ("refusal", "again"),
    [
        ((422, "Invalid"), True),
        ((409, "Conflict"), True),
        ((403, "Forbidden"), False),
        ((503, "ServiceUnavailable"), False),
    ],
    ids=["bound meanwhile", "another pod of that name", "without the right", "no API server"],
)
def test_a_nomination_that_was_not_taken_counts_nowhere(tmp_path: Path, refusal: tuple[int, str], again: bool) -> None:
    async def use(rig: Rig) -> None:
        warm(rig)
        wait(rig, "p", "next", "a")
        await place(rig, "n1", "n2")
        await until(lambda: api.asked and not rig.ledger.picks.nominated)
        assert rig.ledger.nodes["n1"].ateoms == 1
        wait(rig, "b", "c")
        assert (await place(rig, "n1", "n2", uid="next")).node_names == ["n1"]
        assert (await place(rig, "n1", "n2", uid="a")).node_names == ["n1"], "all goes on as without it"
        if again:
            await until(lambda: api.asked > 1)

    nominating(tmp_path, use, api := Nominating(refusal))
    assert again or api.asked == 1


def test_only_what_could_be_answered_now_is_nominated(tmp_path: Path) -> None:
    """n1 takes three: the fourth would open n2, whose claim is begun, and waits for it."""

    async def use(rig: Rig) -> None:
        rig.ledger.node_seen(node("n1", "A", cpu=3500), 0.0)
        rig.ledger.atelet_seen(atelet("n1"), 0.0)
        wait(rig, "p", "next", "a", "b", "c")
        await place(rig, "n1", "n2")
        await until(lambda: len(api.nominations) == 2)
        await until(lambda: names.claim_key("A") in api.nodes["n2"].get("annotations", ()))
        assert api.nominations == {"a": "n1", "b": "n1"}

    nominating(tmp_path, use, api := Nominating(), open_ahead=0)
