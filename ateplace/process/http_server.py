"""A server for one application: uvicorn's HTTP, our limits (`http_connection`), our accept and our drain.

uvicorn by itself has no limit on bodies, headers, time or connections that fits us: its `limit_concurrency`
answers 503 to health probes as soon as clients keep idle connections. Connections are accepted here, so that
a TLS handshake under way counts as one and has a deadline too, and those of one address have a rate.
"""

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from ateplace import settings
from ateplace.process import metrics
from ateplace.process.http_connection import CLOSE, UNFINISHED, Accepts, Guard, GuardedProtocol, Limits, Phase
from ateplace.process.turns import Turns

__all__ = ["Limits", "Server", "limits"]

log = logging.getLogger(__name__)

TICK: Final = 0.25
"""Seconds between sweeps; the precision of every deadline."""

BACKLOG: Final = 1024

GREEDY: Final = 4
"""How many times another's connections an address must have before even its requests under way give way."""

RECEIVE: Final = 64 * 1024
"""Bytes of a socket's receive buffer (Linux doubles it). uvloop and OpenSSL keep buffers of the largest read that there
was, for as long as the connection lasts: without a bound half a megabyte for each."""

REFUSED: Final = metrics.counter(
    "http_refused_total",
    "Requests and connections refused before they reached a role, by limit.",
    ["port", "limit"],
)
CONNECTIONS: Final = metrics.gauge("http_connections", "Open connections, TLS handshakes included.", ["port"])


def limits(serve: settings.Serve, body_bytes: int) -> Limits:
    """The limits that the settings ask for."""
    return Limits(
        body_bytes=body_bytes,
        header_bytes=serve.header_bytes,
        request_deadline=serve.request_deadline,
        max_connections=serve.max_connections,
    )


class Server:
    """Serves `app` (ASGI; no lifespan) on `host` and `port` from `start` to `stop`.

    `accepts` is asked about every client right after the TLS handshake; one with a reason against it is dropped
    before anything that it sends is looked at.
    """

    def __init__(
        self,
        app: Any,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        limits: Limits,
        accepts: Accepts | None = None,
    ) -> None:
        self.host = host
        self.port = port
        """The real one once started, when 0 was asked for."""
        self.limits = limits
        self._tls = tls
        self._config = Config(
            app,
            http=GuardedProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
        )
        self._state = ServerState()
        self._guard = Guard(limits, self._count, accepts)
        self._handshakes: dict[socket.socket, asyncio.Task[None]] = {}
        """Connections that are not ready yet, the oldest first."""
        self._turns: dict[str, Turns] = {}
        """Of addresses that have made handshakes lately."""
        self._running: list[asyncio.Task[None]] = []
        self._listener: socket.socket | None = None

    async def start(self) -> None:
        """Listen; raises OSError when the address is taken."""
        self._config.load()
        self._listener = _listen(self.host, self.port)
        self.port = self._listener.getsockname()[1]
        CONNECTIONS.labels(str(self.port)).set_function(self._open_connections)
        loop = asyncio.get_running_loop()
        self._guard.now = loop.time()
        self._running = [loop.create_task(self._accept(self._listener)), loop.create_task(self._sweep())]

    def quiesce(self) -> None:
        """Still serve, but make every answer its connection's last: clients move on without losing a call."""
        self._guard.quiescing = True

    async def stop(self, grace: float) -> None:
        """Take nothing new, finish what is under way within `grace` seconds, drop the rest."""
        if self._listener is None:
            return
        self.quiesce()
        accepting, sweeping = self._running
        await _end(accepting)
        self._listener.close()
        self._listener = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        for connection in tuple(self._state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while self._open_connections():
                    self._guard.lost.clear()
                    await self._guard.lost.wait()
        if self._open_connections():
            log.warning("connections dropped at the end of grace", extra={"connections": self._open_connections()})
        for task in (*self._handshakes.values(), *self._state.tasks):
            await _end(task)
        for connection in tuple(self._state.connections):
            connection.transport.abort()
        await _end(sweeping)
        CONNECTIONS.remove(str(self.port))

    def _open_connections(self) -> int:
        return len(self._guard.open)

    def _count(self, limit: str) -> None:
        REFUSED.labels(str(self.port), limit).inc()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, peer = await loop.sock_accept(listener)
            except OSError as error:
                # Out of file descriptors, or the client has gone; neither may end the server.
                log.warning("cannot accept a connection", extra={"reason": str(error)})
                await asyncio.sleep(TICK)
                continue
            if not self._has_room(peer[0]):
                self._count("connections")
                client.close()
                continue
            self._guard.remember(client, peer[0])
            task = loop.create_task(self._open(client, peer[0]))
            self._handshakes[client] = task
            task.add_done_callback(functools.partial(self._opened, client))

    def _opened(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(client, None)
        if task.cancelled():  # perhaps before it did anything
            self._guard.forget(client)
            client.close()

    def _has_room(self, address: str) -> bool:
        """Whether a connection from there may come. When all are taken, the address with most of them gives one up: a
        client that opens many keeps out itself and no other."""
        addresses, limits = self._guard.addresses, self.limits
        here = addresses[address]
        if limits.per_address and here >= limits.per_address:
            return self._make_room(address)
        if self._open_connections() < limits.max_connections:
            return True
        heaviest = max(addresses, key=lambda one: (addresses[one], one == address))
        if addresses[heaviest] >= GREEDY * (here + 1):
            return self._make_room(heaviest, busy=True)
        return self._make_room(heaviest)

    def _make_room(self, address: str, *, busy: bool = False) -> bool:
        """Drop a connection of this address that asks for nothing, if there is one. When most have not finished their
        handshake or their request it is the oldest of those, so that slow clients push out one another and not those
        who have been served; else the one idle for longest; else, if `busy`, one whose request is being answered."""
        open_ = [one for one in self._state.connections if isinstance(one, GuardedProtocol) and one.counts]
        open_ = [one for one in open_ if self._guard.open[one.token] == address]
        handshakes = [client for client in self._handshakes if self._guard.open.get(client) == address]
        unfinished = [one for one in open_ if one.phase in UNFINISHED]
        if 2 * (len(handshakes) + len(unfinished)) > self._guard.addresses[address]:
            if len(handshakes) > len(unfinished) and self._drop_handshake(handshakes):
                return True
            if self._drop_first(unfinished, "unfinished"):
                return True
        if self._drop_first([one for one in open_ if one.phase is Phase.IDLE], "idle"):
            return True
        return busy and (self._drop_handshake(handshakes) or self._drop_first(unfinished or open_, "greedy"))

    def _drop_handshake(self, clients: list[socket.socket]) -> bool:
        for client in clients:
            if self._handshakes.pop(client).cancel():
                self._count("handshake")
                self._guard.forget(client)
                return True
        return False

    def _drop_first(self, connections: list[GuardedProtocol], limit: str) -> bool:
        first = min(connections, key=lambda one: one.due, default=None)
        if first is not None:
            self._count(limit)
            first.drop()
        return first is not None

    async def _open(self, client: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        tls = {}
        try:
            if self._tls:
                async with asyncio.timeout(self.limits.request_deadline):
                    await self._turns_of(address).turn()
                tls = {"ssl_handshake_timeout": self.limits.request_deadline, "ssl_shutdown_timeout": CLOSE}
            await loop.connect_accepted_socket(
                lambda: GuardedProtocol(self._guard, client, self._config, self._state, loop),
                client,
                ssl=self._tls,
                **tls,
            )
        except OSError:  # TLS errors and timeouts are such
            self._count("handshake")
            self._guard.forget(client)
            client.close()

    def _turns_of(self, address: str) -> Turns:
        found = self._turns.get(address)
        if found is None:
            found = self._turns[address] = Turns(self.limits.handshakes, at_once=self.limits.handshakes_at_once)
        return found

    async def _sweep(self) -> None:
        guard, loop = self._guard, asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK)
            before, guard.now = guard.now, loop.time()
            # What came while this loop was busy was timed by an old clock: our delay is not the client's.
            late = max(0.0, guard.now - before - 2 * TICK)
            for address in [address for address, turns in self._turns.items() if turns.rested]:
                del self._turns[address]
            for connection in tuple(self._state.connections):
                if isinstance(connection, GuardedProtocol):
                    connection.due += late
                    connection.watch_writes()
                    if connection.due <= guard.now:
                        connection.expire()


def _listen(host: str, port: int) -> socket.socket:
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"  # noqa: S104 - the same on a machine without IPv6
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server(
        (host, port),
        family=family,
        backlog=BACKLOG,
        dualstack_ipv6=host == "::" and family == socket.AF_INET6,
    )
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE)
    listener.setblocking(False)
    return listener


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()):
        log.error("a task of the server failed", exc_info=error)
