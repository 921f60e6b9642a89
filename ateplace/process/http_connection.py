"""One HTTP connection, with limits: uvicorn's httptools protocol, hardened against hostile clients.

    (accepted) ──> Idle ──first byte──> Head ──headers end──> Body ──last byte──> Busy ──answer sent──> Idle
                    │                    │                     │                   │
               keep-alive            deadline,             deadline,          pipelined request,
                expires           too many bytes        too many bytes       drain: answer, then
                    v                    v                     v                   v
                 Closing <───────────  Refused (answered; further input is discarded)

The application is called only once a request has arrived completely and within the limits, so a slow client cannot
hold it up. There are no timers per request: each connection has a due time, by the server's coarse clock, and the
server's sweep checks all of them a few times a second. That is also cheaper than the timer that uvicorn arms and
cancels around each request.

Pipelining is not supported: if a second request arrives before the first is answered, the connection is closed after
that answer. HTTP/1.1 allows this, and none of our clients pipelines requests.
"""

import asyncio
import logging
import math
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

log = logging.getLogger(__name__)

LINGER: Final = 1.0
"""Seconds from a refused client's last byte until its connection is closed, so that it can read the answer."""

CLOSE: Final = 2.0
"""Seconds for an orderly close (TLS close_notify) before the connection is aborted."""

HEADERS: Final = 100
"""Maximum number of headers of a request: three bytes on the wire take two hundred in memory. API servers and
schedulers send ten."""

NEVER: Final = math.inf


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one server; the defaults are those of `settings.Serve`."""

    body_bytes: int
    header_bytes: int = 64 * 1024
    request_deadline: float = 10.0
    """Seconds for the TLS handshake, for the first byte, and from a request's first byte to its last."""
    max_connections: int = 512
    per_address: int = 0
    """Connections per client address; 0 means no limit except `max_connections`."""
    handshakes: float = 50.0
    """TLS handshakes per second and client address; further ones wait, since each takes a millisecond of the event
    loop. This does not delay an API server's burst of requests: a Go client that waits for a new connection uses an
    existing one that becomes idle meanwhile."""
    handshakes_at_once: int = 100
    """Handshakes that an address may make at once after a pause."""
    held_bytes: int = 64 * 1024 * 1024
    """Bytes of unfinished and unanswered large requests, over all connections. Above this, unfinished requests are
    refused, the oldest first."""
    keep_alive: float = 120.0
    """Seconds that an idle connection is kept. Go clients keep theirs for 90 s, and do not retry a POST that meets a
    closing connection, so the server has to wait longer."""


class Phase(Enum):
    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    BUSY = "busy"
    REFUSED = "refused"
    CLOSING = "closing"


UNFINISHED: Final = frozenset({Phase.HEAD, Phase.BODY, Phase.REFUSED, Phase.CLOSING})
"""Phases in which we wait for the client: for the rest of its request, or for its end of the connection to close."""


Accepts = Callable[[ssl.SSLObject], str]
"""Checks a client's certificate right after the handshake: the reason to reject it, or empty."""


class Guard:
    """State that the connections of one server share."""

    def __init__(self, limits: Limits, refused: Callable[[str], None], accepts: Accepts | None = None) -> None:
        self.limits = limits
        self.accepts = accepts
        self.refused = refused
        self.quiescing = False
        self.now = 0.0
        self.held = 0
        self.open: dict[object, str] = {}
        """Client address by connection token, from accept (so that handshakes count) until the connection is lost."""
        self.addresses: Counter[str] = Counter()
        """Open connections per client address."""
        self.lost = asyncio.Event()

    def remember(self, token: object, address: str) -> None:
        """Register an accepted connection."""
        self.open[token] = address
        self.addresses[address] += 1

    def forget(self, token: object) -> None:
        """Unregister a connection that was lost, or whose handshake failed; idempotent."""
        address = self.open.pop(token, None)
        if address is not None:
            self.addresses[address] -= 1
            if not self.addresses[address]:
                del self.addresses[address]
        self.lost.set()


class GuardedProtocol(HttpToolsProtocol):
    """See the module's docstring."""

    def __init__(
        self,
        guard: Guard,
        token: object,
        config: Config,
        state: ServerState,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={}, _loop=loop)
        self.guard = guard
        self.token = token
        self.phase = Phase.IDLE
        self.due = guard.now + guard.limits.request_deadline
        self.waiting: tuple[RequestResponseCycle, ASGI3Application] | None = None
        self.read_bytes = 0
        self.head_bytes = 0
        self.raw_bytes = 0
        self.ended = False
        self.stalled = False
        self.refused_until = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        accepts = self.guard.accepts
        if accepts is None:
            return
        tls = transport.get_extra_info("ssl_object")
        reason = "it does not use TLS" if tls is None else accepts(tls)
        if reason:
            log.warning("client refused", extra={"reason": reason})
            self.guard.refused("client")
            self._closing()
            transport.abort()

    def data_received(self, data: bytes) -> None:
        phase = self.phase
        if phase is Phase.BUSY:
            # Do not parse what follows a complete request: the parser would buffer an endless header.
            self.cycle.keep_alive = False
            return
        if phase is Phase.REFUSED:
            self.due = max(self.due, min(self.guard.now + LINGER, self.refused_until))
            return
        if phase is Phase.CLOSING:
            return
        self.ended = False
        self.read_bytes = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self.cycle is not None:
                self.cycle.keep_alive = False
        except httptools.HttpParserError:
            if self.phase is Phase.BUSY:
                self.cycle.keep_alive = False
            else:
                self.refuse(400, "malformed")
            return
        limits = self.guard.limits
        if self.phase is Phase.HEAD:
            # If this read also ended an earlier request, how much of it is header is unknown; skip this one read.
            if not self.ended:
                self.head_bytes += len(data)
            if self.head_bytes > limits.header_bytes:
                self.refuse(431, "headers")
        elif self.phase is Phase.BODY:
            # on_body limits the body itself; this limits chunk framing and trailers.
            self.raw_bytes += len(data)
            self.guard.held += len(data)
            if self.raw_bytes > 2 * limits.body_bytes + limits.header_bytes:
                self.refuse(413, "body")
            else:
                self._share_memory()

    def _share_memory(self) -> None:
        """Refuse unfinished requests until the rest fit into `held_bytes`: the oldest first, because an honest request
        arrives quickly, and of equally old ones the largest."""
        while self.phase is Phase.BODY and self.guard.held > self.guard.limits.held_bytes:
            open_ = (one for one in self.connections if isinstance(one, GuardedProtocol) and one.phase is Phase.BODY)
            min(open_, key=lambda one: (one.due, -one.raw_bytes)).refuse(503, "memory")

    def on_message_begin(self) -> None:
        if self.phase is Phase.BUSY:
            self.cycle.keep_alive = False
        if self.phase is not Phase.IDLE:
            return
        super().on_message_begin()
        self.phase = Phase.HEAD
        self.head_bytes = 0
        self.due = self.guard.now + self.guard.limits.request_deadline

    def on_url(self, url: bytes) -> None:
        if self.phase is Phase.HEAD:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is not Phase.HEAD:
            return  # a trailer, or the header of a request that was refused
        if len(self.headers) >= HEADERS:
            self.refuse(431, "headers")
            return
        name = name.lower()
        self.headers.append((name, value))
        if name == b"content-length":
            if int(value) > self.guard.limits.body_bytes:
                self.refuse(413, "body")
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        if self.phase is not Phase.HEAD:
            return
        limit = self.guard.limits.header_bytes
        if self.head_bytes + self.read_bytes > limit:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > limit:
                self.refuse(431, "headers")
                return
        self.phase = Phase.BODY
        super().on_headers_complete()
        if self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.cycle.waiting_for_100_continue = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """uvicorn calls this at the end of the headers; we start the task at the end of the body."""
        self.waiting = (cycle, app)

    def on_body(self, body: bytes) -> None:
        if self.phase is not Phase.BODY:
            return
        received = self.cycle.body
        received += body
        if len(received) > self.guard.limits.body_bytes:
            self.refuse(413, "body")

    def on_message_complete(self) -> None:
        self.ended = True
        if self.phase is not Phase.BODY or self.waiting is None:
            return
        self.phase = Phase.BUSY
        self.due = NEVER
        cycle, app = self.waiting
        self.waiting = None
        if self.guard.quiescing:
            cycle.keep_alive = False
        cycle.more_body = False
        cycle.message_event.set()
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.raw_bytes:
            self._release()
        if self.cycle.keep_alive:
            self.phase = Phase.IDLE
            if not self.stalled:
                self.due = self.guard.now + self.guard.limits.keep_alive
        else:
            self._closing()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._release()
        self.guard.forget(self.token)

    def refuse(self, status: int, reason: str) -> None:
        """Answer with a status, and discard further input until `request_deadline`: closing the connection while the
        client still sends would reset it, and the answer would be lost."""
        if self.phase is Phase.REFUSED:
            return
        self.guard.refused(reason)
        self._release()
        self.phase = Phase.REFUSED
        self.waiting = None
        self.cycle = None  # type: ignore[assignment]
        self.due = self.guard.now + LINGER
        self.refused_until = self.guard.now + self.guard.limits.request_deadline
        self.transport.write(STATUS_LINE[status] + b"content-length: 0\r\nconnection: close\r\n\r\n")

    def expire(self) -> None:
        """Called by the sweep when the connection is due."""
        match self.phase:
            case Phase.IDLE | Phase.REFUSED:
                self._closing()
                self.transport.close()
            case Phase.HEAD | Phase.BODY:
                self.refuse(408, "deadline")
            case Phase.BUSY | Phase.CLOSING:
                self.transport.abort()

    @property
    def counts(self) -> bool:
        """Whether it counts towards `max_connections`: not after `drop`, although connection_lost comes later."""
        return self.token in self.guard.open

    def drop(self) -> None:
        """Abort now, to make room for another connection."""
        self._closing()
        self.guard.forget(self.token)
        self.transport.abort()

    def watch_writes(self) -> None:
        """Called by every sweep: a client that does not read has the same deadline as one that does not send."""
        if self.phase is not Phase.BUSY and self.phase is not Phase.IDLE:
            return
        if self.flow.write_paused != self.stalled:
            self.stalled = self.flow.write_paused
            if self.stalled:
                self.due = self.guard.now + self.guard.limits.request_deadline
            else:
                self.due = NEVER if self.phase is Phase.BUSY else self.guard.now + self.guard.limits.keep_alive

    def shutdown(self) -> None:
        """Close now if idle, otherwise after the answer."""
        if self.phase is Phase.IDLE:
            self._closing()
            self.transport.close()
        elif self.cycle is not None:
            self.cycle.keep_alive = False

    def _release(self) -> None:
        self.guard.held -= self.raw_bytes
        self.raw_bytes = 0

    def _closing(self) -> None:
        self.phase = Phase.CLOSING
        self.due = self.guard.now + CLOSE
