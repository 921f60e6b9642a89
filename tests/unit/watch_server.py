"""A small API server with a history for watches, the ways in which its streams break, and a watch that follows it."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from ateplace.kube import Kube
from ateplace.kube.objects import Pod
from ateplace.kube.watch import Watch
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving, until

PATH = "/api/v1/pods"


Record = tuple[str, str]


END = {"k8s.io/initial-events-end": "true"}


class Api:
    """Pods with a history. `faults` are used up one per watch request, before that is served in the normal way."""

    def __init__(self) -> None:
        self.version = 10
        self.pods: dict[str, Any] = {}
        self.history: list[tuple[int, str, Any]] = []
        self.oldest = 0
        self.faults: list[Callable[[Request, Answer], Awaitable[None]]] = []
        self.listed: list[dict[str, str]] = []
        self.watched: list[dict[str, str]] = []
        self._cuts = 0
        self._news = asyncio.Event()

    def put(self, name: str, node: str = "", filler: int = 0) -> None:
        kind = "MODIFIED" if name in self.pods else "ADDED"
        uid = self.pods[name]["metadata"]["uid"] if name in self.pods else f"uid-{self.version}"
        meta = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(self.version + 1)}
        meta["annotations"] = {"filler": "x" * filler}
        self.pods[name] = {"metadata": meta, "spec": {"nodeName": node}}
        self._add(kind, self.pods[name])

    def delete(self, name: str) -> None:
        pod = self.pods.pop(name)
        self._add("DELETED", {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(self.version + 1)}})

    def _add(self, kind: str, pod: Any) -> None:
        self.version += 1
        self.history.append((self.version, kind, pod))
        self._wake()

    def cut(self) -> None:
        """Break every stream that is being served."""
        self._cuts += 1
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def compact(self) -> None:
        self.oldest = self.version

    async def __call__(self, request: Request, answer: Answer) -> None:
        if "watch" not in request.query:
            self.listed.append(request.query)
            meta = {"resourceVersion": str(self.version)}
            await answer.reply(200, {"metadata": meta, "items": list(self.pods.values())})
            return
        self.watched.append(request.query)
        if self.faults:
            await self.faults.pop(0)(request, answer)
            return
        await self.stream(request, answer, math.inf)

    async def stream(self, request: Request, answer: Answer, most: float) -> None:
        """The normal way, for `most` events at most."""
        sent, cuts = 0, self._cuts
        await answer.begin()
        if "sendInitialEvents" in request.query:
            at = self.version
            for pod in list(self.pods.values()):
                if sent >= most:
                    return
                await answer.event("ADDED", pod)
                sent += 1
            await answer.event("BOOKMARK", {"metadata": {"resourceVersion": str(at), "annotations": END}})
        else:
            at = int(request.query["resourceVersion"])
            if at < self.oldest:
                await answer.event("ERROR", {"code": 410, "reason": "Expired", "message": "too old resource version"})
                await answer.end()
                return
        while sent < most:
            if cuts != self._cuts:
                answer.reset()
                return
            for version, kind, pod in [each for each in self.history if each[0] > at]:
                if sent < most:
                    await answer.event(kind, pod)
                    at, sent = version, sent + 1
            if sent < most:
                await self._news.wait()


Fault = Callable[[Api, Request, Answer], Awaitable[None]]


async def end(api: Api, request: Request, answer: Answer) -> None:
    """Ends without a word after an event."""
    await api.stream(request, answer, 1)
    await answer.end()


async def end_at_once(api: Api, request: Request, answer: Answer) -> None:
    await answer.begin()
    await answer.end()


async def reset(api: Api, request: Request, answer: Answer) -> None:
    await api.stream(request, answer, 1)
    answer.reset()


async def reset_in_a_line(api: Api, request: Request, answer: Answer) -> None:
    await api.stream(request, answer, 1)
    await answer.chunk(b'{"type":"MODIFIED","object":{"metadata":{"name":"')
    answer.reset()


async def cut_in_a_line(api: Api, request: Request, answer: Answer) -> None:
    await api.stream(request, answer, 1)
    await answer.chunk(b'{"type":"MODIFIED","object":{"metadata":{"name":"')
    await answer.end()


async def garbage(api: Api, request: Request, answer: Answer) -> None:
    await api.stream(request, answer, 1)
    await answer.chunk(b"<html>\n")


async def refused(api: Api, request: Request, answer: Answer) -> None:
    answer.reset()


async def broken(api: Api, request: Request, answer: Answer) -> None:
    await answer.refuse(500, "InternalError", "boom")


async def busy(api: Api, request: Request, answer: Answer) -> None:
    await answer.refuse(429, "TooManyRequests", "slow down", Retry_After="1")


async def expired(api: Api, request: Request, answer: Answer) -> None:
    await answer.refuse(410, "Expired", "too old resource version")


async def expired_event(api: Api, request: Request, answer: Answer) -> None:
    await answer.begin()
    await answer.event("ERROR", {"code": 410, "reason": "Expired", "message": "too old resource version"})
    await answer.end()


async def failed_event(api: Api, request: Request, answer: Answer) -> None:
    await answer.begin()
    await answer.event("ERROR", {"code": 500, "message": "RequestWatchProgress is disabled"})
    await answer.end()


async def invalid(api: Api, request: Request, answer: Answer) -> None:
    await answer.refuse(422, "Invalid", "sendInitialEvents: Forbidden: the WatchList feature gate is disabled")


async def mute(api: Api, request: Request, answer: Answer) -> None:
    await answer.begin()
    await asyncio.Event().wait()


class Follower:
    """Applies every change to a view of its own, and checks that each starts from what the last one left."""

    def __init__(self, api: Api, kube: Kube) -> None:
        self.api = api
        self.kube = kube
        self.view: dict[str, Record] = {}
        self.changes: list[tuple[str, Record | None, Record | None]] = []
        self.watch: Watch[Pod, Record] = Watch(kube, PATH, Pod, self.project, self.change, label_selector="a=b")

    @staticmethod
    def project(pod: Pod) -> Record | None:
        return (pod.metadata.uid, pod.spec.node_name) if pod.spec.node_name != "uninteresting" else None

    def change(self, key: str, old: Record | None, new: Record | None) -> None:
        assert self.view.pop(key, None) == old != new
        if new is not None:
            self.view[key] = new
        self.changes.append((key, old, new))

    def fault(self, *faults: Fault) -> None:
        self.api.faults += [lambda request, answer, f=f: f(self.api, request, answer) for f in faults]  # type: ignore[misc]

    @property
    def current(self) -> bool:
        pods = {f"ns/{name}": (pod["metadata"]["uid"], pod["spec"]["nodeName"]) for name, pod in self.api.pods.items()}
        return self.watch.synced.is_set() and self.watch.store == self.view == pods


def follow(directory: Path, use: Callable[[Follower], Awaitable[Any]], *before: Fault, **options: float) -> Any:
    """Run `use` beside a watch of an API server with two pods; the first watch requests meet the faults given."""

    @contextlib.asynccontextmanager
    async def running() -> AsyncIterator[Follower]:
        api = Api()
        api.put("a", "n1")
        api.put("b", "n2")
        async with serving(api) as server, connected(kubeconfig(directory, server.url, token="t"), **options) as kube:
            follower = Follower(api, kube)
            follower.fault(*before)
            task = asyncio.create_task(follower.watch.run())
            try:
                yield follower
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def main() -> Any:
        async with running() as follower:
            return await use(follower)

    return asyncio.run(main())


@contextlib.asynccontextmanager
async def removable(directory: Path, api: Api, *, is_there: Callable[[], bool]) -> AsyncIterator[Follower]:
    """A current follower of a collection that is not found unless `is_there`."""

    async def answers(request: Request, answer: Answer) -> None:
        if is_there():
            await api(request, answer)
        else:
            await answer.refuse(404, "NotFound", "the server could not find the requested resource")

    api.put("a", "n1")
    async with serving(answers) as server, connected(kubeconfig(directory, server.url, token="t")) as kube:
        follower = Follower(api, kube)
        follower.watch = Watch(kube, PATH, Pod, follower.project, follower.change, may_be_absent=True)
        task = asyncio.create_task(follower.watch.run())
        await until(lambda: follower.current)
        yield follower
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
