"""A stand-in for the API server's wire: the test says, request by request, what comes back and how it breaks off."""

import asyncio
import contextlib
import json
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from ateplace.kube import Kube
from ateplace.settings import Cluster

REASONS = {200: "OK", 201: "Created"}


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Answer:
    """What the test does with one request."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def reply(self, status: int, body: object = None, **headers: str) -> None:
        """A whole answer; the connection stays open."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n"
        await self.raw(head.encode() + data)

    async def refuse(self, status: int, reason: str = "", message: str = "", **headers: str) -> None:
        body = {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": message}
        await self.reply(status, body, **headers)

    async def begin(self) -> None:
        """A stream begins."""
        await self.raw(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
        )

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, kind: str, what: object) -> None:
        await self.chunk(json.dumps({"type": kind, "object": what}).encode() + b"\n")

    async def end(self) -> None:
        """The stream ends as it should."""
        await self.raw(b"0\r\n\r\n")

    def reset(self) -> None:
        """The connection breaks."""
        self._writer.transport.abort()


Handler = Callable[[Request, Answer], Awaitable[None]]


class Server:
    """Requests seen so far, and where it listens."""

    def __init__(self, handler: Handler, scheme: str) -> None:
        self._handler = handler
        self._scheme = scheme
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.requests: list[Request] = []
        self.connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)  # a task that is cancelled before its first step runs no `finally`
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode()
                    line, *fields = head.split("\r\n")
                    method, target, _ = line.split(" ")
                    headers = {name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
                    body = await reader.readexactly(int(headers.get("content-length", 0)))
                    url = urllib.parse.urlsplit(target)
                    query = dict(urllib.parse.parse_qsl(url.query))
                    request = Request(method, urllib.parse.unquote(url.path), query, headers, body)
                    self.requests.append(request)
                    await self._handler(request, Answer(writer))
        finally:
            writer.transport.abort()
            self._writers.discard(writer)

    async def stop(self) -> None:
        for _ in range(4):  # what was accepted already arrives in one of the next turns
            await asyncio.sleep(0)
        tasks, writers = list(self._tasks), list(self._writers)
        for task in tasks:
            task.cancel()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # a transport lets go of its socket in the next turn


@contextlib.asynccontextmanager
async def serving(handler: Handler, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(handler, "https" if tls else "http")
    listening = await asyncio.start_server(server.accept, "127.0.0.1", port, limit=2**20, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        # asyncio loses the socket of a connection that it was accepting while its server closes.
        asyncio.get_running_loop().remove_reader(listening.sockets[0].fileno())
        await server.stop()
        listening.close()
        await listening.wait_closed()


def kubeconfig(directory: Path, url: str, ca: Path | None = None, **user: object) -> str:
    """A kubeconfig for the server at `url`; `token="…"`, `tokenFile="…"` or `exec={…}`."""
    path = directory / "kubeconfig"
    trust = {"certificate-authority": str(ca)} if ca else {}
    document = {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": url} | trust}],
        "users": [{"name": "test", "user": user}],
    }
    path.write_text(json.dumps(document))
    return str(path)


@contextlib.asynccontextmanager
async def connected(path: str, *, request_timeout: float = 5.0, stale_after: float = 75.0) -> AsyncIterator[Kube]:
    cluster = Cluster(kubeconfig=path, request_timeout=request_timeout, stale_after=stale_after)
    kube = await Kube.connect(cluster, user_agent="ateplace-test")
    try:
        yield kube
    finally:
        await kube.close()


async def until(check: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for a condition; TimeoutError when it does not come true."""
    async with asyncio.timeout(seconds):
        while not check():  # noqa: ASYNC110 - the condition is the tested code's, which tells nobody
            await asyncio.sleep(0.005)
