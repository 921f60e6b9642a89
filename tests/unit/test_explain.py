"""Explanations: one pod's situation judged, and extenders asked through the API server's proxy or directly."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ateplace.cli.explain import app, explain
from ateplace.cli.pod_checks import Situation, findings
from ateplace.cli.replicas import HINT, ask
from ateplace.errors import AteplaceError
from ateplace.settings import Settings
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving
from tests.unit.objects import atelet, node, pod, pool

UNSCHEDULABLE = {
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no room"}
    ]
}
SITUATIONS: dict[str, tuple[Situation, list[tuple[str, str]]]] = {
    "all is well": (
        Situation(pod("a", "n1"), pool(), node("n1", "u1"), (atelet("n1"), atelet("n2"))),
        [
            ("ok", "an ateom of WorkerPool demo/web"),
            ("ok", "the webhook prepared it"),
            ("ok", "bound to n1, which carries its pool's claim (since 2026-01-01T00:00:00Z)"),
            ("ok", "atelet is Ready on n1"),
            ("ok", "it is running and Ready"),
        ],
    ),
    "gone": (Situation(None), [("warn", "the pod is gone")]),
    "no ateom": (Situation(pod("a", "n1", of="")), [("warn", "it has no label ate.dev/worker-pool")]),
    "no pool": (
        Situation(pod("a")),
        [("fail", "there is no WorkerPool demo/web"), ("ok", ""), ("warn", "no scheduler")],
    ),
    "another pool": (
        Situation(pod("a"), pool(uid="u2")),
        [("fail", "it was made for an earlier WorkerPool demo/web"), ("ok", ""), ("warn", "no scheduler has tried it")],
    ),
    "not prepared": (
        Situation(pod("a", "n1", uid=""), pool(), node("n1", "u1"), (atelet("n1"),)),
        [
            ("ok", ""),
            ("warn", "the webhook has not seen it"),
            ("ok", "bound"),
            ("ok", "atelet"),
            ("ok", "it is running"),
        ],
    ),
    "another scheduler": (
        Situation(pod("a", schedulerName="default-scheduler"), pool()),
        [("ok", ""), ("warn", "it asked for the scheduler 'default-scheduler'"), ("warn", "no scheduler has tried")],
    ),
    "no node takes it": (
        Situation(pod("a", status=UNSCHEDULABLE), pool()),
        [("ok", ""), ("ok", ""), ("fail", "no node fits: 0/3 nodes: no room")],
    ),
    "nominated": (
        Situation(pod("a", status={"nominatedNodeName": "n7"}), pool()),
        [("ok", ""), ("ok", ""), ("warn", "n7 is kept for it: pods are being evicted there, or it is about")],
    ),
    "no claim": (
        Situation(pod("a", "n1"), pool(), node("n1", "u9"), (atelet("n1"),)),
        [
            ("ok", ""),
            ("ok", ""),
            ("fail", "bound to n1, which has no claim"),
            ("ok", "atelet"),
            ("ok", "it is running"),
        ],
    ),
    "no label": (
        Situation(pod("a", "n1", ready=False), pool(), node("n1", "u1", labelled=False)),
        [
            ("ok", ""),
            ("ok", ""),
            ("ok", "bound"),
            ("fail", "n1 has no label ate.dev/atelet=true"),
            ("fail", "there is no atelet on n1"),
            ("warn", "it is not Ready: Running"),
        ],
    ),
    "atelet crashes": (
        Situation(pod("a", "n1"), pool(), node("n1", "u1"), (atelet("n1", ready=False, trouble="CrashLoopBackOff"),)),
        [("ok", ""), ("ok", ""), ("ok", ""), ("fail", "atelet on n1 does not run: CrashLoopBackOff"), ("ok", "")],
    ),
    "atelet has no room": (
        Situation(pod("a", "n1"), pool(), node("n1", "u1"), (atelet("n1", bound=False),)),
        [("ok", ""), ("ok", ""), ("ok", ""), ("fail", "atelet on n1 does not run: Unschedulable"), ("ok", "")],
    ),
    "waits": (
        Situation(
            pod("a", "n1", status={"conditions": [], "initContainerStatuses": [{"name": "wait-for-atelet"}]}),
            pool(),
            node("n1", "u1"),
            (atelet("n1", ready=False),),
        ),
        [("ok", ""), ("ok", ""), ("ok", ""), ("warn", "atelet is starting"), ("warn", "wait-for-atelet holds it")],
    ),
    "finished": (
        Situation(pod("a", "n1", phase="Failed"), pool(), node("n1")),
        [("ok", ""), ("ok", ""), ("warn", "it has failed")],
    ),
    "node gone": (
        Situation(pod("a", "n1"), pool()),
        [("ok", ""), ("ok", ""), ("fail", "it is bound to n1, which does not exist")],
    ),
    "placeholder": (
        Situation(pod("p", "n1", placeholder=True), pool(), node("n1", "u1"), (atelet("n1"),)),
        [("ok", "a placeholder of WorkerPool demo/web"), ("ok", "bound"), ("ok", "atelet"), ("ok", "it is running")],
    ),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_each_situation_has_its_sentence_and_trouble_has_a_fix(name: str) -> None:
    situation, expected = SITUATIONS[name]
    found = findings(situation, Settings())
    assert [one.level for one in found] == [level for level, _ in expected], found
    for one, (_, begins) in zip(found, expected, strict=True):
        assert one.says.startswith(begins)
        assert bool(one.fix) == (one.level != "ok")


DECISIONS: dict[str, list[dict[str, Any]]] = {
    "extender-1": [{"at": "2026-01-01T10:00:02.000+00:00", "verb": "filter", "outcome": "picked n1", "notes": ["why"]}],
    "extender-2": [{"at": "2026-01-01T10:00:01.000+00:00", "verb": "filter", "outcome": "refused all 3 nodes"}],
}


async def api(request: Request, answer: Answer) -> None:
    """An API server with three extender pods, one of which does not answer, and no other pod."""
    base = "/api/v1/namespaces/ateplace-system/pods"
    if request.path == base:
        assert request.query["labelSelector"] == "app.kubernetes.io/component=extender"
        names = (*DECISIONS, "extender-3")
        running = [{"metadata": {"name": name}, "spec": {}, "status": {"phase": "Running"}} for name in names]
        starting = {"metadata": {"name": "extender-4"}, "spec": {}, "status": {"phase": "Pending"}}
        await answer.reply(200, {"metadata": {}, "items": [*running, starting]})
        return
    for name, decisions in DECISIONS.items():
        if request.path == f"{base}/http:{name}:8080/proxy/explain":
            assert request.query == {"pod": "demo/a"}
            await answer.reply(200, decisions)
            return
    if "/proxy/" in request.path:
        await answer.refuse(404, "NotFound", "no such page")
        return
    await answer.refuse(404, "NotFound", "not here")


def test_every_replica_is_asked_through_the_proxy_and_their_answers_are_merged_by_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(api) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            found = await explain(kube, Settings(), "demo", "a", [])
            assert [(one.replica, one.outcome) for one in found.decisions] == [
                ("extender-2", "refused all 3 nodes"),
                ("extender-1", "picked n1"),
            ]
            assert [note.split(":")[0] for note in found.notes] == ["extender-3 did not answer"]
            assert found.as_data()["findings"][0]["says"] == "the pod is gone"

    asyncio.run(main())


def test_a_pod_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    async def nothing(request: Request, answer: Answer) -> None:
        if request.path.endswith("/ateplace-system/pods"):
            await answer.reply(200, {"metadata": {}, "items": []})
        else:
            await answer.refuse(404, "NotFound", "not here")

    async def main() -> None:
        async with serving(nothing) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            with pytest.raises(AteplaceError, match="there is no pod demo/a"):
                await explain(kube, Settings(), "demo", "a", [])

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [(["a"], "demo/a"), (["a", "-n", "other"], "other/a"), (["other/a"], "other/a")],
    ids=["of the kubeconfig's context", "an option", "before the name"],
)
def test_the_namespace_is(tmp_path: Path, arguments: list[str], asked: str) -> None:
    path = Path(kubeconfig(tmp_path, "http://127.0.0.1:1"))
    document = json.loads(path.read_text())
    document["contexts"][0]["context"]["namespace"] = "demo"
    path.write_text(json.dumps(document))
    flags = [f"--set=cluster.kubeconfig={path}", "--set=cluster.request_timeout=0.2"]
    done = CliRunner().invoke(app, ["pod", *arguments, *flags])
    namespace, _, name = asked.partition("/")
    assert f"/api/v1/namespaces/{namespace}/pods/{name}" in str(done.exception)


def test_given_addresses_are_asked_directly_and_silence_is_noted(tmp_path: Path) -> None:
    async def page(request: Request, answer: Answer) -> None:
        assert (request.path, request.query) == ("/explain", {"pod": "demo/a"})
        await answer.reply(200, DECISIONS["extender-1"])

    async def main() -> None:
        async with serving(page) as server, connected(kubeconfig(tmp_path, "http://127.0.0.1:1")) as kube:
            urls = [server.url, "http://127.0.0.1:1"]
            query = {"pod": "demo/a"}
            asked = await ask(kube, Settings(), "extender", "explain", list[dict[str, Any]], query=query, urls=urls)
            assert asked.answers == {server.url: DECISIONS["extender-1"]}
            assert [note.split(":")[0] for note in asked.notes] == ["http"]
            silent = await ask(kube, Settings(), "extender", "explain", object, urls=urls[1:])
            assert silent.notes[-1] == HINT

    asyncio.run(main())
