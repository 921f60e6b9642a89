"""A proxy between one of us and the API server that refuses, loses, delays and cuts on request.

It speaks plain HTTP to us and shows the admin's certificate to the API server, so every request can be told apart. What
it does to a request is decided by `rule`, which may be replaced at any time.
"""

import asyncio
import enum
import json
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from ateplace.local import ControlPlane, pki


class Fate(enum.Enum):
    PASS = "pass"
    REFUSE_429 = "429, not carried out, Retry-After 1"
    REFUSE_500 = "500, not carried out"
    DONE_500 = "carried out, answered 500"
    DONE_LOST = "carried out, the answer is lost"
    LOST = "not carried out, the connection is lost"
    LATE = "held back until `let_through`, then carried out, whoever still waits for it"
    ENDLESS_500 = "500, not carried out, with a body that does not end"


BOOKMARK_SECONDS = 0.5
PASSED = ("Content-Type", "Accept", "Accept-Encoding")

Rule = Callable[[str, str], Fate]
"""Method and path."""


def passes(_method: str, _path: str) -> Fate:
    return Fate.PASS


def only(method: str, part: str, fate: Fate) -> Rule:
    """This fate for one method on paths with this part; everything else passes."""
    return lambda asked, path: fate if asked == method and part in path else Fate.PASS


class Meddler:
    """Runs in a thread from `with` to its end; `kubeconfig` leads through it."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._streams: dict[asyncio.Task[Any], str] = {}
        self._gate = asyncio.Event()
        self.rule: Rule = passes
        self.seen: list[tuple[float, str, str, Fate]] = []
        self.late: list[int] = []
        """How the API server answered what was late, by status."""
        self.endless: list[int] = []
        """How many bytes of each endless body were taken before the reader had enough."""
        self.cuts: Counter[str] = Counter()
        """How often each watch was cut, by what it watches."""
        self.delay = 0.0
        """Seconds by which every answer but a watch's is late."""
        self.cut_off = ""
        """While not empty: streams say nothing but bookmarks with this version, as an API server does that has lost its
        etcd."""
        self.away = False
        """While True nothing gets through, and streams are cut."""
        self.kubeconfig = Path()

    def __enter__(self) -> "Meddler":
        self._thread.start()
        port = self._call(self._start())
        cluster = {"name": "local", "cluster": {"server": f"http://127.0.0.1:{port}"}}
        context = {"name": "local", "context": {"cluster": "local", "user": "nobody"}}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [cluster],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [context],
            "current-context": "local",
        }
        self.kubeconfig = self._plane.directory / f"kubeconfig-meddler-{port}"
        self.kubeconfig.write_text(yaml.safe_dump(document))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> int:
        """Break every stream that is open now; how many."""
        return int(self._call(self._cut()))

    def let_through(self) -> None:
        """Let go what is held back, and hold back nothing more."""
        self.rule = passes
        self._loop.call_soon_threadsafe(self._gate.set)

    def leave(self, away: bool) -> None:
        """Be unreachable (True) or back (False)."""
        self.away = away
        if away:
            self.cut()

    def _call(self, coro: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result(30)

    async def _start(self) -> int:
        tls: ssl.SSLContext = pki.client_context(self._plane.ca, self._plane.directory / "pki" / "admin")
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._upstream = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, timeout=timeout, read_bufsize=16 * 1024 * 1024
        )
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def _stop(self) -> None:
        await self._cut()
        await self._runner.cleanup()
        await self._upstream.close()

    async def _cut(self) -> int:
        cut = dict(self._streams)
        for task in cut:
            task.cancel()
        self.cuts.update(cut.values())
        if cut:
            await asyncio.wait(set(cut))
        return len(cut)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        fate = Fate.LOST if self.away else self.rule(request.method, request.path)
        if "watch" not in request.query:
            self.seen.append((self._loop.time(), request.method, request.path, fate))
        if fate is Fate.REFUSE_429:
            return web.Response(status=429, headers={"Retry-After": "1"}, text="too many requests, please try again")
        if fate is Fate.REFUSE_500:
            return web.Response(status=500, text="no")
        if fate is Fate.LOST:
            return _lose(request)
        if fate is Fate.ENDLESS_500:
            return await self._never_end(request)
        if fate is Fate.LATE:
            await self._gate.wait()
        if "watch" not in request.query:
            await asyncio.sleep(self.delay)
        url = self._plane.url + str(request.rel_url)
        headers = {name: request.headers[name] for name in PASSED if name in request.headers}
        try:
            async with self._upstream.request(request.method, url, data=body, headers=headers) as answer:
                if "watch" in request.query and answer.status == 200:
                    return await self._stream(request, answer)
                content = await answer.read()
                if fate is Fate.LATE:
                    self.late.append(answer.status)
        except aiohttp.ClientError:
            return _lose(request)
        if fate is Fate.DONE_500:
            return web.Response(status=500, text="no")
        if fate is Fate.DONE_LOST:
            return _lose(request)
        kept = {name: answer.headers[name] for name in ("Content-Type", "Retry-After") if name in answer.headers}
        return web.Response(status=answer.status, body=content, headers=kept)

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        task = asyncio.ensure_future(self._copy(answer, response))
        kind = ("labelSelector", "fieldSelector")
        self._streams[task] = " ".join([request.path, *(request.query[key] for key in kind if key in request.query)])
        try:
            await asyncio.wait({task})
        finally:
            self._streams.pop(task, None)
            task.cancel()
            if answer.connection is not None and answer.connection.transport is not None:
                # A stream that was broken off has no farewell to wait for, and would outlive the loop with one.
                answer.connection.transport.abort()
        if task.cancelled() or task.exception():
            return _lose(request)
        return response

    async def _copy(self, answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        while not answer.content.at_eof():
            line = asyncio.ensure_future(answer.content.readline())
            try:
                while not (await asyncio.wait({line}, timeout=BOOKMARK_SECONDS))[0] or self.cut_off:
                    if self.cut_off:
                        meta = {"resourceVersion": self.cut_off}
                        event = {"type": "BOOKMARK", "object": {"metadata": meta}}
                        await response.write(json.dumps(event).encode() + b"\n")
                        await asyncio.sleep(BOOKMARK_SECONDS)
                await response.write(line.result())
            finally:
                line.cancel()

    async def _never_end(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        taken = 0
        try:
            while True:
                await response.write(b"x" * 4096)
                taken += 4096
        except ConnectionError:
            self.endless.append(taken)
        return response


def _lose(request: web.Request) -> web.StreamResponse:
    """Close the connection without a word."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)
