"""Who gives way when all connections are taken: the address that has most of them."""

import asyncio
import contextlib
import socket
import ssl
import threading
import time

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ateplace.process import metrics
from ateplace.process.http_server import Limits
from tests.unit.sockets import Running, Tls, answer, closed, request, serving, until

STRANGER, FRIEND = "127.0.0.2", "127.0.0.3"
LIMITS = Limits(body_bytes=1000, request_deadline=20, max_connections=12)
TLS = Tls()


class App:
    """/ answers at once, /slow when it is let go."""

    def __init__(self) -> None:
        self.release = threading.Event()
        routes = [Route("/", self.quick, methods=["POST"]), Route("/slow", self.slow, methods=["POST"])]
        self.app = Starlette(routes=routes)

    async def quick(self, _: Request) -> Response:
        return Response("quick")

    async def slow(self, _: Request) -> Response:
        while not self.release.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)
        return Response("slow")


def refused(running: Running, limit: str) -> float:
    labels = {"port": str(running.server.port), "limit": limit}
    return metrics.REGISTRY.get_sample_value("ateplace_http_refused_total", labels) or 0.0


@pytest.mark.parametrize("tls", [None, TLS], ids=["plain", "tls"])
@pytest.mark.parametrize(
    "begun", [request(), b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nx"], ids=["idle", "unfinished"]
)
def test_a_stranger_with_many_connections_pushes_out_itself(tls: Tls | None, begun: bytes) -> None:
    with serving(App().app, LIMITS, tls) as running, contextlib.ExitStack() as stack:
        kept = [stack.enter_context(running.connect(source=FRIEND)) for _ in range(2)]
        for one in kept:
            one.sendall(request())
            assert answer(one).status == 200
        time.sleep(0.6)  # so that the friend's are the longest idle by the server's coarse clock
        for _ in range(4 * LIMITS.max_connections):
            stranger = stack.enter_context(running.connect(source=STRANGER))
            stranger.sendall(begun)
        for one in kept:
            one.sendall(request())
            assert answer(one).body == b"quick"
        new = stack.enter_context(running.connect(source=FRIEND))
        new.sendall(request())
        assert answer(new).body == b"quick"


def test_a_stranger_whose_requests_are_under_way_gives_way_too() -> None:
    app = App()
    with serving(app.app, LIMITS, TLS) as running, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(running.connect(source=STRANGER)) for _ in range(LIMITS.max_connections)]
        for one in slow:
            one.sendall(request("/slow"))
        assert until(lambda: len(running.server._state.tasks) == len(slow))
        friend = stack.enter_context(running.connect(source=FRIEND))
        friend.sendall(request())
        assert answer(friend).body == b"quick"
        assert refused(running, "greedy") == 1
        app.release.set()


def test_of_two_with_about_as_many_neither_loses_a_request_to_the_other() -> None:
    app = App()
    with serving(app.app, LIMITS, TLS) as running, contextlib.ExitStack() as stack:
        half = LIMITS.max_connections // 2
        sources = [STRANGER] * (half + 2) + [FRIEND] * (half - 2)
        slow = [stack.enter_context(running.connect(source=source)) for source in sources]
        for one in slow:
            one.sendall(request("/slow"))
        assert until(lambda: len(running.server._state.tasks) == len(slow))
        late = stack.enter_context(socket.create_connection(("127.0.0.1", running.server.port), 20, (FRIEND, 0)))
        assert closed(late)
        assert (refused(running, "connections"), refused(running, "greedy")) == (1, 0)
        app.release.set()
        assert [answer(one).body for one in slow] == [b"slow"] * len(slow)


def test_a_limit_for_each_address_holds_while_there_is_room() -> None:
    limits = Limits(body_bytes=1000, request_deadline=20, max_connections=12, per_address=3)
    with serving(App().app, limits) as running, contextlib.ExitStack() as stack:
        kept = [stack.enter_context(running.connect(source=STRANGER)) for _ in range(5)]
        assert until(lambda: running.server._open_connections() == 3)
        assert len(kept) == 5
        friend = stack.enter_context(running.connect(source=FRIEND))
        friend.sendall(request())
        assert answer(friend).body == b"quick"


def test_handshakes_of_an_address_have_a_rate_and_another_address_does_not_wait_for_them() -> None:
    limits = Limits(body_bytes=1000, request_deadline=5, handshakes=1 / 3600, handshakes_at_once=3)
    with serving(App().app, limits, TLS) as running, contextlib.ExitStack() as stack:
        served = [stack.enter_context(running.connect(source=STRANGER)) for _ in range(3)]
        where = ("127.0.0.1", running.server.port)
        waiting = [stack.enter_context(socket.create_connection(where, 30, (STRANGER, 0))) for _ in range(3)]
        assert until(lambda: running.server._open_connections() == 6)
        friends = [stack.enter_context(running.connect(source=FRIEND)) for _ in range(3)]
        for one in (*friends, *served):
            one.sendall(request())
            assert answer(one).body == b"quick"
        for one in waiting:
            with (
                pytest.raises((ssl.SSLError, ConnectionError)),
                TLS.client.wrap_socket(one, server_hostname="localhost"),
            ):
                pass
        assert refused(running, "handshake") == 3


def test_what_is_remembered_of_an_address_goes_when_its_turns_are_there_again() -> None:
    limits = Limits(body_bytes=1000, handshakes=100)
    with serving(App().app, limits, TLS) as running:
        for source in (STRANGER, FRIEND):
            with running.connect(source=source) as one:
                one.sendall(request())
                assert answer(one).body == b"quick"
        assert until(lambda: not running.server._turns)
