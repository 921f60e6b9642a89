"""The verbs of the extender over an API server whose writes fail, get lost or come too late."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ateplace import names
from ateplace.cluster.feed import View
from ateplace.extender import metrics
from ateplace.extender.app import Verbs
from ateplace.extender.protocol import FilterResult, extender_args
from ateplace.kube import Kube
from ateplace.settings import Settings
from tests.unit.cluster import node, pod, pool, template
from tests.unit.kube_server import Answer, Request, Server, connected, kubeconfig, serving

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


def held_up(gate: asyncio.Event) -> Callable[[Api, Request, Answer], Awaitable[None]]:
    """Taken once the gate is open."""

    async def wait(api: Api, request: Request, answer: Answer) -> None:
        await gate.wait()
        api.write(request)
        await answer.reply(200, {"metadata": api.nodes[api.named(request)]})

    return wait


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


def stranger(uid: str, cpu: str) -> Any:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": {"containers": [container]}}


async def denied(_: Api, __: Request, answer: Answer) -> None:
    await answer.refuse(403, "Forbidden", "a webhook says no")
