"""Health: whether this process lives, whether it should get work, and why not.

GET /healthz   200 while the event loop turns
GET /readyz    200 "ready", or 503 with one line per reason
GET /metrics   Prometheus
GET /…         what roles add (`Health.page`)

Any pod may ask, and everything of ours runs in the loop that answers. So metrics are written at most once a second: a
client that asks again earlier waits, and shares the next ones with all who wait. The rest has a rate; above it clients
wait for their turn. Connections are few, in all and for each address.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ateplace.process import metrics
from ateplace.process.http_server import Limits
from ateplace.process.turns import Turns

log = logging.getLogger(__name__)

Check = Callable[[], str]
"""Why the process is not ready, in a few words; empty when it is."""
Page = Callable[[Request], Response]

LIMITS: Final = Limits(body_bytes=1024, max_connections=64, per_address=16, request_deadline=5.0)
EVERY: Final = 1.0
"""Seconds from one exposition of the metrics to the next."""
PROBES: Final = 200.0
"""Answers a second to /healthz and /readyz: a kubelet asks every few seconds."""
PAGES: Final = 20.0
"""Answers a second of the pages that roles add."""
OPEN_METRICS: Final = "application/openmetrics-text"
READY: Final = metrics.gauge("ready", "Whether this process is ready to work (1) or not (0).")


class Exposition:
    """The metrics in one format, as bytes; made after they were asked for, and at most every `EVERY` seconds."""

    def __init__(self, accept: str) -> None:
        self._encode, self.content_type = choose_encoder(accept)
        self._made = -math.inf
        self._next: asyncio.Task[bytes] | None = None

    async def get(self) -> bytes:
        if self._next is None:
            self._next = asyncio.create_task(self._make(), name="metrics")
        return await asyncio.shield(self._next)

    async def _make(self) -> bytes:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._made + EVERY - clock()))
        self._next, self._made = None, clock()
        return self._encode(metrics.REGISTRY)


class Health:
    """The checks of this process; each role adds its own."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        self._pages: dict[str, Page] = {}
        READY.set_function(lambda: float(not self.reasons()))

    def add(self, name: str, check: Check) -> None:
        """Ask `check` on every look at readiness; it must be quick. A name can be added once."""
        if name in self._checks:
            raise ValueError(f"there is already a check named {name!r}")
        self._checks[name] = check

    def remove(self, name: str) -> None:
        """Forget a check; unknown names are ignored."""
        self._checks.pop(name, None)

    def page(self, name: str, page: Page) -> None:
        """Serve GET /name; a role says what it knows there to every client that reaches the port."""
        self._pages[name] = page

    def reasons(self) -> list[str]:
        """Why this process is not ready, a line each; empty when it is. A check that fails is a reason."""
        found = []
        for name, check in self._checks.items():
            try:
                reason = check()
            except Exception as error:
                log.exception("health check failed", extra={"check": name})
                reason = f"the check failed: {error}"
            if reason:
                found.append(f"{name}: {reason}")
        return found

    def app(self) -> Starlette:
        """The plain HTTP application of the health port."""
        plain, open_metrics = Exposition(""), Exposition(OPEN_METRICS)
        probes, pages = Turns(PROBES), Turns(PAGES)

        async def healthz(_: Request) -> Response:
            await probes.turn()
            return PlainTextResponse("ok\n")

        async def readyz(_: Request) -> Response:
            await probes.turn()
            reasons = self.reasons()
            if reasons:
                return PlainTextResponse("".join(f"{reason}\n" for reason in reasons), 503)
            return PlainTextResponse("ready\n")

        async def exposition(request: Request) -> Response:
            wanted = open_metrics if OPEN_METRICS in request.headers.get("accept", "") else plain
            return Response(await wanted.get(), media_type=wanted.content_type)

        async def page(request: Request) -> Response:
            await pages.turn()
            found = self._pages.get(request.path_params["name"])
            return found(request) if found else PlainTextResponse("not found\n", 404)

        paths = {"/healthz": healthz, "/readyz": readyz, "/metrics": exposition, "/{name}": page}
        return Starlette(routes=[Route(path, endpoint) for path, endpoint in paths.items()])
