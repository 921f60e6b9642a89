"""The server's limits, over real sockets."""

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

from ateplace.process.http_connection import LINGER
from ateplace.process.http_server import Limits
from tests.unit.serving import HASTY, LIMITS, TLS, App, one_answer, plain_and_tls, refused
from tests.unit.sockets import Running, Tls, answer, closed, request, serving, until

running = plain_and_tls(LIMITS)
hasty = plain_and_tls(HASTY)


def test_a_body_that_says_it_is_too_large_is_answered_413_before_it_is_sent(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(request(headers="content-length: 100001\r\n"))
        assert answer(connection).status == 413
        assert closed(connection)
    assert until(lambda: refused(running.server, "body") == 1)


def test_endless_chunks_are_answered_413(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(request(headers="transfer-encoding: chunked\r\n"))
        for _ in range(200):
            connection.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert answer(connection).status == 413
        assert closed(connection)


@pytest.mark.parametrize("part", [b"1;extension=" + b"x" * 1000 + b"\r\n.\r\n", b"0\r\nt: "])
def test_endless_framing_around_a_small_body_is_refused(running: Running, part: bytes) -> None:
    with running.connect() as connection:
        connection.sendall(request(headers="transfer-encoding: chunked\r\n") + part)
        more = part if part.startswith(b"1") else b"x" * 1000
        try:
            for _ in range(600):
                connection.sendall(more)
            assert answer(connection).status in {400, 413}
        except ConnectionError:
            pass
        assert closed(connection)


@pytest.mark.parametrize("size", [70_000, 32 * 1024 * 1024])
@pytest.mark.parametrize("many", [False, True], ids=["one header", "many headers"])
def test_too_many_header_bytes_are_refused(running: Running, size: int, many: bool) -> None:
    filler = b"".join(b"h%d: %s\r\n" % (n, b"v" * 1000) for n in range(64)) if many else b"v" * 65536
    with running.connect() as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: localhost\r\n" + (b"" if many else b"long: "))
        sent = 0
        try:
            while sent < size:
                connection.sendall(filler)
                sent += len(filler)
            assert answer(connection).status == 431
        except ConnectionError:
            pass
        assert closed(connection)
    assert until(lambda: refused(running.server, "headers") == 1)


def test_too_many_headers_are_refused_however_short(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(request(headers="a: b\r\n" * 97))
        assert answer(connection).status == 200
        connection.sendall(request(headers="a: b\r\n" * 98))
        assert answer(connection).status == 431
        assert closed(connection)
    assert refused(running.server, "headers") == 1


def test_headers_that_arrive_at_once_are_counted_too(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(request(headers="long: " + "v" * 66_000 + "\r\n"))
        assert answer(connection).status == 431
    with running.connect() as connection:
        connection.sendall(request(headers="long: " + "v" * 60_000 + "\r\n", body=b"x" * 50_000))
        assert answer(connection).body == b"50000"


@pytest.mark.parametrize(
    "first",
    [b"", b"POST / HT", request()[:-10], request(headers="content-length: 10\r\n") + b"12345"],
    ids=["nothing", "a line", "headers", "a body"],
)
def test_a_client_that_falls_silent_is_closed(hasty: Running, first: bytes) -> None:
    with hasty.connect() as connection:
        connection.sendall(first)
        start = time.monotonic()
        assert closed(connection)
        assert time.monotonic() - start < 5


@pytest.mark.parametrize("first", [b"POST / HTTP/1.1\r\nx: ", request(headers="content-length: 99999\r\n")])
def test_a_client_that_drips_is_closed(hasty: Running, first: bytes) -> None:
    start = time.monotonic()
    with hasty.connect() as connection:
        connection.sendall(first)
        try:
            while time.monotonic() - start < 10:
                connection.sendall(b"x")
                time.sleep(0.05)
        except OSError:
            pass
    assert time.monotonic() - start < 5
    assert until(lambda: refused(hasty.server, "deadline") == 1)


def test_a_client_that_never_speaks_tls_is_closed() -> None:
    with serving(App().app, HASTY, TLS) as running:
        with socket.create_connection(("127.0.0.1", running.server.port), timeout=10) as connection:
            start = time.monotonic()
            assert closed(connection)
            assert time.monotonic() - start < 5
        assert until(lambda: refused(running.server, "handshake") == 1)


def test_a_client_that_does_not_read_its_answer_is_closed() -> None:
    async def large(_: Request) -> Response:
        return Response(b"x" * 50_000_000)

    with serving(Starlette(routes=[Route("/", large)]), HASTY) as running, running.connect() as connection:
        connection.sendall(request(method="GET"))
        assert until(lambda: running.server._open_connections() == 1)
        assert until(lambda: running.server._open_connections() == 0)


def test_connections_are_capped_and_freed() -> None:
    release = threading.Event()

    async def slow(_: Request) -> Response:
        while not release.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)
        return Response(b"done")

    with serving(Starlette(routes=[Route("/", slow, methods=["POST"])]), LIMITS, TLS) as running:
        kept = [running.connect() for _ in range(LIMITS.max_connections)]
        for connection in kept:
            connection.sendall(request())
        assert until(lambda: len(running.server._state.tasks) == len(kept))
        with pytest.raises((ConnectionError, ssl.SSLError)):
            one_answer(running)
        assert until(lambda: refused(running.server, "connections") == 1)
        release.set()
        assert [answer(connection).body for connection in kept] == [b"done"] * len(kept)
        kept.pop().close()
        assert until(lambda: running.server._open_connections() < LIMITS.max_connections)
        assert one_answer(running) == b"done"
        for connection in kept:
            connection.close()


@pytest.mark.parametrize("tls", [None, TLS], ids=["plain", "tls"])
def test_a_refused_client_that_sends_on_reads_why_when_it_is_through(tls: Tls | None) -> None:
    with serving(App().app, LIMITS, tls) as running, running.connect() as connection:
        start = time.monotonic()
        connection.sendall(request(headers="content-length: 8000000\r\n"))
        while time.monotonic() - start < 2.5 * LINGER:
            connection.sendall(b"x" * 1000)
            time.sleep(0.05)
        assert answer(connection).status == 413
        assert closed(connection)


def test_a_refused_client_that_never_ends_is_closed() -> None:
    with serving(App().app, HASTY) as running, running.connect() as connection:
        connection.sendall(request(headers="content-length: 8000000\r\n"))
        start = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - start < 20:
                connection.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - start < 10


def test_clients_that_never_finish_their_handshake_push_out_one_another_only() -> None:
    with serving(App().app, LIMITS, TLS) as running, contextlib.ExitStack() as stack:
        kept = stack.enter_context(running.connect())
        kept.sendall(request())
        assert answer(kept).status == 200
        address = ("127.0.0.1", running.server.port)
        many = range(3 * LIMITS.max_connections)
        silent = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in many]
        pushed = len(silent) + 1 - LIMITS.max_connections
        assert until(lambda: refused(running.server, "handshake") == pushed)
        assert all(closed(one) for one in silent[:pushed])
        assert one_answer(running) == b"0"
        assert closed(silent[pushed])
        kept.sendall(request(body=b"still here"))
        assert answer(kept).body == b"10"
        assert (refused(running.server, "idle"), refused(running.server, "connections")) == (0, 0)


@pytest.mark.parametrize("begun", [b"P", b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nx"], ids=["head", "body"])
def test_clients_that_never_finish_their_request_push_out_one_another_only(running: Running, begun: bytes) -> None:
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(running.connect())
        kept.sendall(request())
        assert answer(kept).status == 200
        slow = []
        for _ in range(2 * LIMITS.max_connections):
            slow.append(one := stack.enter_context(running.connect()))
            one.sendall(begun)
            time.sleep(0.3)  # so that the server's coarse clock tells them apart
        pushed = len(slow) + 1 - LIMITS.max_connections
        assert until(lambda: refused(running.server, "unfinished") == pushed)
        assert all(closed(one) for one in slow[:pushed])
        assert one_answer(running) == b"0"
        assert closed(slow[pushed])
        kept.sendall(request(body=b"still here"))
        assert answer(kept).body == b"10"
        assert (refused(running.server, "idle"), refused(running.server, "connections")) == (0, 0)


def test_refused_clients_that_send_on_keep_nobody_out(running: Running) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(LIMITS.max_connections):
            one = stack.enter_context(running.connect())
            one.sendall(request(headers="content-length: 8000000\r\n"))
        assert until(lambda: refused(running.server, "body") == LIMITS.max_connections)
        assert one_answer(running) == b"0"


def test_large_bodies_share_one_memory(running: Running) -> None:
    limits = Limits(body_bytes=1_000_000, held_bytes=1_500_000, request_deadline=20)
    part = request(headers="content-length: 1000000\r\n") + b"x" * 900_000
    with serving(App().app, limits, running.tls) as small, small.connect() as first, small.connect() as second:
        first.sendall(part)
        assert until(lambda: small.server._guard.held > 800_000)
        second.sendall(part)
        assert answer(first).status == 503
        second.sendall(b"x" * 100_000)
        assert answer(second).body == b"1000000"
        with small.connect() as third:
            third.sendall(part + b"x" * 100_000)
            assert answer(third).body == b"1000000"
        assert until(lambda: small.server._guard.held == 0)


def test_bodies_that_never_end_take_nobody_elses_memory(running: Running) -> None:
    limits = Limits(body_bytes=1_000_000, held_bytes=1_500_000, request_deadline=20)
    never = request(headers="content-length: 1000000\r\n") + b"x" * 700_000
    with serving(App().app, limits, running.tls) as small, contextlib.ExitStack() as stack:
        for held in (650_000, 1_350_000):
            stack.enter_context(small.connect()).sendall(never)
            assert until(lambda held=held: small.server._guard.held > held)  # type: ignore[misc]
        honest = stack.enter_context(small.connect())
        honest.sendall(request(headers="content-length: 200000\r\n") + b"x" * 150_000)
        assert until(lambda: refused(small.server, "memory") == 1)
        honest.sendall(b"x" * 50_000)
        assert answer(honest).body == b"200000"
