"""The server's limits, over real sockets."""

import asyncio
import socket
import ssl
import time
import tracemalloc

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ateplace.process.http_server import Limits, Server
from tests.unit.serving import HASTY, LIMITS, TLS, App, one_answer, plain_and_tls, refused
from tests.unit.sockets import Running, Tls, answer, closed, loop_thread, request, serving, until

running = plain_and_tls(LIMITS)
hasty = plain_and_tls(HASTY)


def test_a_connection_is_kept_and_answers_have_a_length(running: Running) -> None:
    with running.connect() as connection:
        for size in (0, 10, 100_000, 10):
            connection.sendall(request(body=b"x" * size))
            assert answer(connection).body == str(size).encode()


def test_a_body_in_chunks_is_taken(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(request(headers="transfer-encoding: chunked\r\n"))
        for _ in range(3):
            connection.sendall(b"5\r\nhello\r\n")
        connection.sendall(b"0\r\ntrailer: kept out\r\n\r\n")
        assert answer(connection).body == b"15"
        connection.sendall(request(body=b"again"))
        assert answer(connection).body == b"5"


def test_idle_connections_keep_nobody_out_and_the_longest_idle_one_goes(running: Running) -> None:
    kept = []
    for _ in range(LIMITS.max_connections):
        kept.append(connection := running.connect())
        connection.sendall(request())
        assert answer(connection).status == 200
        time.sleep(0.3)  # so that the server's coarse clock tells them apart
    assert one_answer(running) == b"0"
    assert closed(kept[0])
    assert until(lambda: refused(running.server, "idle") == 1)
    for connection in kept[1:]:
        connection.sendall(request())
        assert answer(connection).status == 200
    for connection in kept:
        connection.close()


def test_an_idle_connection_outlives_the_request_deadline(hasty: Running) -> None:
    assert Limits(body_bytes=1).keep_alive > 90
    with hasty.connect() as connection:
        connection.sendall(request())
        answer(connection)
        time.sleep(2 * HASTY.request_deadline)
        connection.sendall(request(body=b"still here"))
        assert answer(connection).body == b"10"


def test_an_idle_connection_is_closed_after_the_keep_alive_time() -> None:
    limits = Limits(body_bytes=100, keep_alive=0.3)
    with serving(App().app, limits, TLS) as running, running.connect() as connection:
        connection.sendall(request())
        answer(connection)
        assert closed(connection)


def test_expect_continue_is_answered_before_the_body(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(request(headers="expect: 100-continue\r\ncontent-length: 5\r\n"))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"hello")
        assert answer(connection).body == b"5"


@pytest.mark.parametrize(
    "bad",
    [b"\x16\x03\x01 not http\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n"],
)
def test_what_is_not_http_is_answered_400(running: Running, bad: bytes) -> None:
    with running.connect() as connection:
        connection.sendall(bad)
        assert answer(connection).status == 400
        assert closed(connection)


def test_a_pipelined_request_makes_the_first_answer_the_last(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(request(body=b"1") + request(body=b"22"))
        first = answer(connection)
        assert (first.body, first.headers["connection"]) == (b"1", "close")
        assert closed(connection)


@pytest.mark.parametrize("tls", [None, TLS], ids=["plain", "tls"])
def test_what_follows_a_request_that_is_being_answered_is_thrown_away(tls: Tls | None) -> None:
    app = App()
    with serving(app.app, LIMITS, tls) as running, running.connect() as connection:
        connection.sendall(request("/slow"))
        assert app.entered.wait(5)
        part = b"x" * 1024 * 1024
        tracemalloc.start()
        try:
            connection.sendall(b"POST / HTTP/1.1\r\nlong: ")
            for _ in range(32):
                connection.sendall(part)
            assert tracemalloc.get_traced_memory()[1] < 8 * len(part)
        finally:
            tracemalloc.stop()
        running.loop.call_soon_threadsafe(app.release.set)
        last = answer(connection)
        assert (last.body, last.headers["connection"]) == (b"slow", "close")
        assert closed(connection)


def test_a_request_under_way_is_finished_on_stop_and_an_idle_connection_closed() -> None:
    app = App()
    with serving(app.app, LIMITS, TLS) as running, running.connect() as busy, running.connect() as idle:
        idle.sendall(request())
        answer(idle)
        busy.sendall(request("/slow"))
        assert app.entered.wait(5)
        stopping = asyncio.run_coroutine_threadsafe(running.server.stop(10), running.loop)
        assert closed(idle)
        with pytest.raises(OSError, match=r"refused|reset"):
            running.connect()
        running.loop.call_soon_threadsafe(app.release.set)
        last = answer(busy)
        assert (last.body, last.headers["connection"]) == (b"slow", "close")
        stopping.result(5)


def test_what_is_not_finished_within_grace_is_dropped() -> None:
    app = App()
    with serving(app.app, LIMITS, TLS) as running, running.connect() as busy:
        busy.sendall(request("/slow"))
        assert app.entered.wait(5)
        start = time.monotonic()
        running.call(lambda: running.server.stop(0.3))
        assert time.monotonic() - start < 3
        assert closed(busy)


def test_a_quiescing_server_answers_and_lets_go(running: Running) -> None:
    async def quiesce() -> None:
        running.server.quiesce()

    with running.connect() as connection:
        connection.sendall(request())
        assert "connection" not in answer(connection).headers
        running.call(quiesce)
        connection.sendall(request())
        assert answer(connection).headers["connection"] == "close"
        assert closed(connection)
    with running.connect() as connection:
        connection.sendall(request())
        assert answer(connection).headers["connection"] == "close"


def test_an_exception_in_the_application_is_a_500_and_the_server_goes_on() -> None:
    async def broken(_: Request) -> Response:
        raise RuntimeError("broken on purpose")

    with serving(Starlette(routes=[Route("/", broken)]), LIMITS) as running:
        for _ in range(2):
            with running.connect() as connection:
                connection.sendall(request(method="GET"))
                assert answer(connection).status == 500


def test_a_taken_port_is_an_error() -> None:
    with serving(App().app, LIMITS) as running, loop_thread():
        second = Server(App().app, host="127.0.0.1", port=running.server.port, tls=None, limits=LIMITS)
        with pytest.raises(OSError, match="in use"):
            running.call(second.start)


def test_the_unspecified_address_takes_both_families() -> None:
    with loop_thread() as loop:
        server = Server(App().app, host="::", port=0, tls=None, limits=LIMITS)
        running = Running(server, loop, None)
        running.call(server.start)
        for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            with socket.create_connection((host, server.port), timeout=5) as connection:
                connection.sendall(request())
                assert answer(connection).status == 200
        running.call(lambda: server.stop(1))


def test_a_client_that_is_not_accepted_is_dropped_before_it_is_heard() -> None:
    heard = []

    async def listening(_: Request) -> Response:
        heard.append(1)
        return Response("")

    def accepts(connection: ssl.SSLObject) -> str:
        return f"its cipher is {connection.cipher()}"

    app = Starlette(routes=[Route("/", listening, methods=["POST"])])
    with loop_thread() as loop:
        server = Server(app, host="127.0.0.1", port=0, tls=TLS.server, limits=LIMITS, accepts=accepts)
        running = Running(server, loop, TLS)
        running.call(server.start)
        with running.connect() as connection:
            connection.sendall(request())
            assert closed(connection)
        running.call(lambda: server.stop(1))
        assert until(lambda: refused(server, "client") == 1)
    assert heard == []
