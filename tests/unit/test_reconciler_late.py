"""When it is said that ateoms wait for atelet, and why."""

import asyncio
from pathlib import Path

import pytest

from ateplace.errors import Forbidden
from ateplace.process import metrics
from ateplace.reconciler.claims.atelet_late import SAY_AGAIN, AteletLate
from ateplace.reconciler.events import About, Events
from ateplace.settings import Reconciler, Settings
from tests.unit import cluster
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving


class Heard(Events):
    """Keeps what was said about the node."""

    words: list[str]

    def warn(self, about: About, reason: str, message: str) -> None:
        if about.kind == "Node":
            self.words.append(message)


def test_another_reason_is_said_without_waiting_for_the_next_time(tmp_path: Path) -> None:
    async def handle(_: Request, answer: Answer) -> None:
        pod = {"metadata": {"name": "p", "namespace": "ns", "uid": "p"}, "spec": {"nodeName": "n1"}}
        await answer.reply(200, {"metadata": {}, "items": [pod]})

    async def main() -> None:
        now = 0.0
        ledger = cluster.ledger(cluster.node("n1", "A"), cluster.pool("A"), cluster.pod("p", "n1", "A"))
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            heard = Heard(kube, "test")
            heard.words = []
            settings = Settings(reconciler=Reconciler(atelet_late=30))
            late = AteletLate(kube, ledger, settings, heard, clock=lambda: now)
            assert await late.look("n1") == 30
            now = 30.0
            assert await late.look("n1") == SAY_AGAIN
            crashing = cluster.atelet("n1", ready=False, trouble="CrashLoopBackOff")
            ledger.atelet_seen(crashing, now)
            now = 40.0
            assert await late.look("n1") == 20, "not at every change"
            now = 60.0
            assert await late.look("n1") == SAY_AGAIN
            now = 100.0
            assert await late.look("n1") == SAY_AGAIN - 40, "the same reason"
            assert metrics.REGISTRY.get_sample_value("ateplace_nodes_atelet_late") == 1
            assert heard.words == [
                "1 ateoms wait for atelet: the DaemonSet has made no pod for this node",
                f"1 ateoms wait for atelet: its pod {crashing.name} is CrashLoopBackOff",
            ]

    asyncio.run(main())


def test_a_node_that_goes_while_its_pods_are_read_is_not_spoken_of(tmp_path: Path) -> None:
    ledger = cluster.ledger(cluster.node("n1", "A"), cluster.pool("A"), cluster.pod("p", "n1", "A"))

    async def handle(_: Request, answer: Answer) -> None:
        ledger.node_gone("n1", 0)
        pod = {"metadata": {"name": "p", "namespace": "ns", "uid": "p"}, "spec": {"nodeName": "n1"}}
        await answer.reply(200, {"metadata": {}, "items": [pod]})

    async def main() -> None:
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            heard = Heard(kube, "test")
            heard.words = []
            times = iter((0.0, 60.0))
            late = AteletLate(kube, ledger, Settings(), heard, clock=lambda: next(times))
            assert await late.look("n1") == 60
            assert await late.look("n1") is None
            assert heard.words == []
            assert not late._waits

    asyncio.run(main())


def test_nodes_are_counted_from_when_their_atelet_is_late_until_it_comes(tmp_path: Path) -> None:
    async def broken(_: Request, answer: Answer) -> None:
        await answer.refuse(403, "Forbidden", "no")

    def counted() -> float | None:
        return metrics.REGISTRY.get_sample_value("ateplace_nodes_atelet_late")

    async def main() -> None:
        now = 0.0
        ledger = cluster.ledger(cluster.node("n1", "A"), cluster.node("n2", "A"), cluster.pool("A"))
        for name in ("n1", "n2"):
            ledger.pod_seen(cluster.pod(f"p-{name}", name, "A"), 0)
        async with serving(broken) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            settings = Settings(reconciler=Reconciler(atelet_late=30))
            late = AteletLate(kube, ledger, settings, Events(kube, "test"), clock=lambda: now)
            await late.look("n1")
            now = 20.0
            await late.look("n2")
            assert counted() == 0
            now = 30.0
            with pytest.raises(Forbidden):
                await late.look("n1")
            assert counted() == 1, "even if it cannot be said on the pods"
            now = 50.0
            assert counted() == 2
            ledger.atelet_seen(cluster.atelet("n1"), now)
            assert await late.look("n1") is None
            assert counted() == 1
            late.forget()
            assert counted() == 0, "whoever leads now tells"

    asyncio.run(main())
