"""A server of ours on a real socket, in a thread of its own, and raw clients that misbehave."""

import asyncio
import contextlib
import json
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from ateplace.certs import authority
from ateplace.process.http_server import Limits, Server


class Tls:
    """A throwaway authority and a certificate for 127.0.0.1 and localhost."""

    def __init__(self) -> None:
        now = datetime.now(UTC)
        ca = authority.make_authority(now, days=1)
        wanted = authority.Wanted(authority.Use.SERVER, dns=("localhost",), addresses=("127.0.0.1",))
        pair = authority.issue(ca, wanted, now, days=1)
        self.ca = ca.certificate
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
            certificate.write_bytes(pair.certificate)
            key.write_bytes(pair.key)
            self.server.load_cert_chain(certificate, key)
        self.client = ssl.create_default_context(cadata=self.ca.decode())


class Running:
    """A started server; `call` runs something in its loop and waits for it."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop, tls: Tls | None) -> None:
        self.server = server
        self.loop = loop
        self.tls = tls

    def call(self, make: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(make(), self.loop).result(30)

    def connect(self, timeout: float = 20, source: str = "") -> socket.socket:
        """From another address of loopback if `source` names one."""
        bound = (source, 0) if source else None
        raw = socket.create_connection(("127.0.0.1", self.server.port), timeout=timeout, source_address=bound)
        return self.tls.client.wrap_socket(raw, server_hostname="localhost") if self.tls else raw


@contextlib.contextmanager
def loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """A uvloop in a thread, as in the real process."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@contextlib.contextmanager
def serving(app: Any, limits: Limits, tls: Tls | None = None) -> Iterator[Running]:
    """The application on a free port of 127.0.0.1, with the real server."""
    with loop_thread() as loop:
        server = Server(app, host="127.0.0.1", port=0, tls=tls.server if tls else None, limits=limits)
        running = Running(server, loop, tls)
        running.call(server.start)
        try:
            yield running
        finally:
            running.call(lambda: server.stop(0.2))


def request(path: str = "/", body: bytes = b"", *, headers: str = "", method: str = "POST") -> bytes:
    """A request's bytes; content type and length are set unless `headers` has them."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost"]
    lowered = headers.lower()
    if "content-type" not in lowered:
        lines.append("content-type: application/json")
    if "content-length" not in lowered and "transfer-encoding" not in lowered:
        lines.append(f"content-length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n" + headers + "\r\n").encode() + body


class Answer:
    """A whole HTTP answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def answer(connection: socket.socket) -> Answer:
    """Read one answer; it must have a Content-Length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += (chunk := connection.recv(65536))
        if not chunk:
            raise ConnectionError(f"closed after {data!r}")
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    assert "content-length" in headers, headers
    length = int(headers["content-length"])
    while len(body) < length:
        body += (chunk := connection.recv(65536))
        if not chunk:
            raise ConnectionError("closed in the middle of a body")
    return Answer(int(first.split()[1]), headers, body)


def closed(connection: socket.socket) -> bool:
    """Wait until the other side closes; whatever still comes is thrown away."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except ssl.SSLError:
        return True
    return True


def until(check: Callable[[], bool], seconds: float = 10) -> bool:
    """Wait for something that another thread brings about; whether it came."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
