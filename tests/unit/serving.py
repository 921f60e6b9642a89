"""A server with an application that can be made to wait, and limits for it."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ateplace.process import metrics
from ateplace.process.http_server import Limits, Server
from tests.unit.sockets import Running, Tls, answer, request, serving

LIMITS = Limits(body_bytes=100_000, request_deadline=20, max_connections=8)


HASTY = Limits(body_bytes=100_000, request_deadline=1.0, max_connections=8)
"""For tests of the deadline only: on a busy machine it ends a client's own handshake too."""


TLS = Tls()


class App:
    """Answers with the size of the body; /slow waits until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = asyncio.Event()
        self.app = Starlette(
            routes=[
                Route("/", self.size, methods=["GET", "POST"]),
                Route("/slow", self.slow, methods=["POST"]),
            ]
        )

    async def size(self, request: Request) -> Response:
        return Response(f"{len(await request.body())}")

    async def slow(self, _: Request) -> Response:
        self.entered.set()
        await self.release.wait()
        return Response("slow")


def plain_and_tls(limits: Limits) -> Any:
    """A fixture: a server with these limits, once without and once with TLS."""

    @pytest.fixture(params=["plain", "tls"])
    def running(request: pytest.FixtureRequest) -> Iterator[Running]:
        with serving(App().app, limits, TLS if request.param == "tls" else None) as server:
            yield server

    return running


def refused(server: Server, limit: str) -> float:
    labels = {"port": str(server.port), "limit": limit}
    return metrics.REGISTRY.get_sample_value("ateplace_http_refused_total", labels) or 0.0


def one_answer(running: Running) -> bytes:
    with running.connect() as connection:
        connection.sendall(request())
        return answer(connection).body
