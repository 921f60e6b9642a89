"""Who is behind a Service's address: by what pods say of themselves, and by what they are told."""

import contextlib
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from ateplace.local.balancer import PROBE_EVERY, TIMEOUTS, Balancer
from tests.unit.sockets import until

FIRST, SECOND = "127.0.0.2", "127.0.0.3"


class Pods:
    """Two pods' health ports; those in `silent` take a question and answer when it is all over."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.silent: set[str] = set()
        self.over = threading.Event()
        self.port = 0
        for address in (FIRST, SECOND):
            server = stack.enter_context(socketserver.ThreadingTCPServer((address, self.port), self._handler(address)))
            self.port = server.server_address[1]
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
        stack.callback(self.over.set)

    def _handler(self, address: str) -> type[socketserver.StreamRequestHandler]:
        pods = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while self.rfile.readline().strip():
                    pass
                if address in pods.silent:
                    pods.over.wait(60)
                with contextlib.suppress(OSError):
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")

        return Handler


@pytest.fixture
def pods() -> Iterator[Pods]:
    with contextlib.ExitStack() as stack:
        yield Pods(stack)


@pytest.fixture
def balancer(pods: Pods) -> Iterator[Balancer]:
    made = Balancer("127.0.0.1", [0], pods.port)
    made.start()
    for pod in (FIRST, SECOND):
        made.add(pod)
    assert until(lambda: set(made.ready()) == {FIRST, SECOND})
    yield made
    made.close()


def test_a_pod_that_is_told_to_end_is_out_before_it_says_so(pods: Pods, balancer: Balancer) -> None:
    pods.silent = {FIRST}
    balancer.end(FIRST)
    began = time.monotonic()
    assert until(lambda: balancer.ready() == [SECOND])
    assert time.monotonic() - began < TIMEOUTS * (1 + PROBE_EVERY)
    balancer.remove(FIRST)
    pods.silent = set()
    balancer.add(FIRST)
    assert until(lambda: set(balancer.ready()) == {FIRST, SECOND})


def test_a_pod_that_falls_silent_is_out_after_a_few_looks(pods: Pods, balancer: Balancer) -> None:
    pods.silent = {FIRST}
    assert until(lambda: balancer.ready() == [SECOND], 30)
    pods.silent = set()
    assert until(lambda: set(balancer.ready()) == {FIRST, SECOND})
