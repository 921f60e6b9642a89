"""Health: whether this process lives, whether it should get work, and why not.

GET /healthz   200 while the event loop turns
GET /readyz    200 "ready", or 503 with one line per reason
GET /metrics   Prometheus
GET /…         what roles add (`Health.page`)
"""

import logging
from collections.abc import Callable
from typing import Final

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ateplace.process import metrics
from ateplace.process.http_server import Limits

log = logging.getLogger(__name__)

Check = Callable[[], str | None]
"""None: ready. Otherwise why not, in a few words."""
Page = Callable[[Request], Response]

LIMITS: Final = Limits(body_bytes=1024, max_connections=64, request_deadline=5.0)
READY: Final = metrics.gauge("ready", "Whether this process is ready to work (1) or not (0).")


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
        """Serve GET /name; a role says what it knows there, to whoever can reach the port."""
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
            if reason is not None:
                found.append(f"{name}: {reason}")
        return found

    def app(self) -> Starlette:
        """The plain HTTP application of the health port."""

        async def healthz(_: Request) -> Response:
            return PlainTextResponse("ok\n")

        async def readyz(_: Request) -> Response:
            reasons = self.reasons()
            if reasons:
                return PlainTextResponse("".join(f"{reason}\n" for reason in reasons), 503)
            return PlainTextResponse("ready\n")

        async def exposition(request: Request) -> Response:
            encode, content_type = choose_encoder(request.headers.get("accept", ""))
            return Response(encode(metrics.REGISTRY), media_type=content_type)

        async def page(request: Request) -> Response:
            found = self._pages.get(request.path_params["name"])
            return found(request) if found else PlainTextResponse("not found\n", 404)

        paths = {"/healthz": healthz, "/readyz": readyz, "/metrics": exposition, "/{name}": page}
        return Starlette(routes=[Route(path, endpoint) for path, endpoint in paths.items()])
