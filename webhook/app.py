"""The webhook's HTTP application and its role: decode, decide, encode."""

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any, Final, Protocol

from fastapi import FastAPI
from starlette.routing import Route

from ateplace import errors, names, settings
from ateplace.certs.catalogue import service_names
from ateplace.certs.source import CertificateSource
from ateplace.process.http_server import Server, limits
from ateplace.process.runtime import Runtime
from ateplace.webhook import metrics, mutate, protocol, review
from ateplace.webhook.pools import DefaultClasses, Pools

log = logging.getLogger(__name__)

JSON: Final = b"application/json"
OUTCOMES: Final = ("patched", "unchanged", "skipped", "denied", "errored", "malformed")


Reply = tuple[int, str, bytes]
"""An HTTP status, the outcome's name, and the body."""


class PoolSource(Protocol):
    """What `Pools` offers to the application."""

    def known(self, namespace: str, name: str) -> str | None: ...

    async def find(self, namespace: str, name: str, client: str = "") -> str | None: ...


class Mutate:
    """POST /mutate, as a bare ASGI application: the body is bytes on both sides, and nothing is between."""

    def __init__(self, rules: mutate.Rules, pools: PoolSource, default_classes: Collection[str]) -> None:
        self._rules = rules
        self._pools = pools
        self._default_classes = default_classes
        self._count = {outcome: metrics.REVIEWS.labels(outcome) for outcome in OUTCOMES}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        start = time.perf_counter()
        message = await receive()  # the server hands over whole bodies only
        if message["type"] != "http.request":
            return
        content_type = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        if content_type.partition(b";")[0].strip().lower() != JSON:
            status, outcome, answer = 415, "malformed", b"expected application/json\n"
        else:
            client = scope.get("client") or ("",)
            status, outcome, answer = await self.answer(message["body"], client[0])
        self._count[outcome].inc()
        metrics.SECONDS.observe(time.perf_counter() - start)
        media = JSON if answer.startswith(b"{") else b"text/plain; charset=utf-8"
        headers = [(b"content-type", media), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def answer(self, body: bytes, client: str = "") -> Reply:
        """The answer to whatever has been sent; total. As soon as there is a UID it is a review with that UID."""
        uid = ""
        try:
            request = protocol.decode(body)
            uid = request.uid
            return await self._decide(request, client)
        except protocol.BadReview as error:
            return malformed(str(error), error.uid)
        except errors.KubeError as error:
            log.warning("cannot look up a WorkerPool", extra={"reason": str(error)})
            why = "ateplace cannot read WorkerPools at the moment; try again"
            return 200, "errored", review.errored(uid, why, 503)
        except Exception:
            log.exception("review failed", extra={"uid": uid})
            why = "ateplace failed to handle this pod; see the webhook's log"
            return 200, "errored", review.errored(uid, why, 500)

    async def _decide(self, request: protocol.Request, client: str) -> Reply:
        uid = request.uid
        if request.kind != protocol.POD or request.operation != "CREATE" or request.sub_resource:
            return 200, "skipped", review.allowed(uid)
        pod = protocol.pod(request)
        pool = pod.labels.get(self._rules.pool_label)
        if not pool or pod.is_mirror:
            return 200, "skipped", review.allowed(uid)
        pool_uid = self._pools.known(request.namespace, pool)
        if pool_uid is None:
            pool_uid = await self._pools.find(request.namespace, pool, client)
        if pool_uid is None:
            return 200, "denied", review.denied(uid, missing(request.namespace, pool, self._rules.pool_label))
        ops, warnings = mutate.mutate(pod, pool_uid, self._rules, self._default_classes)
        return 200, "patched" if ops else "unchanged", review.patched(uid, ops, warnings)


def malformed(why: str, uid: str) -> Reply:
    """400; as a review when there is a UID to answer to."""
    return 400, "malformed", review.errored(uid, why, 400) if uid else f"{why}\n".encode()


def missing(namespace: str, pool: str, label: str) -> str:
    """Why a pod of an unknown pool is denied."""
    return f'there is no WorkerPool "{pool}" in namespace "{namespace}", which the pod\'s label {label} names'


def application(rules: mutate.Rules, pools: PoolSource, default_classes: Collection[str]) -> FastAPI:
    """The HTTP application; it has no pages of its own."""
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.router.routes.append(Route("/mutate", Mutate(rules, pools, default_classes), methods=["POST"]))
    return app


@contextlib.asynccontextmanager
async def role(runtime: Runtime) -> AsyncIterator[None]:
    """Serve admission reviews; ready once the pools and the priority classes are known."""
    options: settings.Settings = runtime.settings
    stale_after = options.cluster.stale_after
    pools = Pools(runtime.kube, stale_after)
    classes = DefaultClasses(runtime.kube, stale_after)
    source = CertificateSource(
        Path(options.webhook.tls_directory),
        client_ca=False,
        names=service_names(names.WEBHOOK_SERVICE, options.cluster.namespace)[:1],
        poll=options.certs.poll,
        name=names.WEBHOOK_SERVICE,
    )
    serving = False
    runtime.health.add("webhook", lambda: "" if serving else "waiting for a certificate")
    runtime.health.add("webhook pools", pools.unready)
    runtime.health.add("webhook priority classes", classes.unready)
    runtime.spawn(pools.watch.run(), "watch of WorkerPools")
    runtime.spawn(classes.watch.run(), "watch of PriorityClasses")
    await source.ready()
    runtime.spawn(source.run(), "webhook certificate")
    await pools.watch.synced.wait()
    await classes.watch.synced.wait()
    app = application(mutate.rules(options.webhook, options.substrate), pools, classes.names)
    server = Server(
        app,
        host=options.serve.host,
        port=options.webhook.port,
        tls=source.context,
        limits=limits(options.serve, options.webhook.body_bytes),
    )
    async with runtime.serving(server):
        serving = True
        log.info("webhook serves", extra={"port": server.port})
        yield
