"""The extender's role: the three verbs put together, and the HTTP application that decodes, asks them, and encodes.

Plain ASGI: the scheduler calls three paths over one kept-alive connection, once per pod, and waits for each answer.
Every answer has a Content-Length, and any status but 200 is an error to the scheduler.
"""

import contextlib
import gc
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ateplace import errors, names
from ateplace.certs.catalogue import service_names
from ateplace.certs.source import CertificateSource
from ateplace.cluster.feed import View
from ateplace.cluster.state import State
from ateplace.extender import decision_log, metrics, protocol
from ateplace.extender.claim_writer import ClaimWriter
from ateplace.extender.context import Context, TryAgain
from ateplace.extender.filter.handler import Filter
from ateplace.extender.preempt.evict import Evictions
from ateplace.extender.preempt.handler import Preempt
from ateplace.extender.prioritize import Prioritize
from ateplace.extender.victims import Victims
from ateplace.kube import Kube
from ateplace.process.http_server import Server, limits
from ateplace.process.runtime import Runtime
from ateplace.settings import Settings

log = logging.getLogger(__name__)

JSON: Final = (b"content-type", b"application/json")
CLOSE: Final = (b"connection", b"close")
Answer = Callable[[bytes], Awaitable[bytes]]


class Verbs:
    """The scheduler's three verbs, and what they share."""

    def __init__(self, kube: Kube, view: View, settings: Settings) -> None:
        ledger = view.ledger
        self.decisions = decision_log.Ring(settings.extender.decisions)
        self.claims = ClaimWriter(kube, ledger, settings.substrate, deadline=settings.extender.deadline)
        victims = Victims()
        context = Context(kube, view, settings, victims)
        evictions = Evictions(kube, view, victims)
        shared: Any = {"claims": self.claims, "victims": victims, "decisions": self.decisions}
        self.filter_verb = Filter(kube, context, ledger, settings, **shared)
        self.filter = self.filter_verb.filter
        self.prioritize = Prioritize(context, ledger, settings).prioritize
        self.preempt = Preempt(context, ledger, settings, evictions=evictions, **shared).preempt
        self.is_blind = context.is_blind

    async def close(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        self.filter_verb.close()
        await self.claims.close()


class Application:
    """POST /filter, /prioritize and /preempt."""

    def __init__(self, verbs: Verbs) -> None:
        async def filter_(body: bytes) -> bytes:
            return protocol.encode(await verbs.filter(protocol.extender_args(body)))

        async def prioritize(body: bytes) -> bytes:
            return protocol.encode(await verbs.prioritize(protocol.extender_args(body)))

        async def preempt(body: bytes) -> bytes:
            return protocol.encode(await verbs.preempt(protocol.preemption_args(body)))

        self._verbs: dict[str, Answer] = {"/filter": filter_, "/prioritize": prioritize, "/preempt": preempt}
        self._seconds = {path: metrics.SECONDS_SPENT.labels(path[1:]) for path in self._verbs}
        self._is_blind = verbs.is_blind

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        verb = self._verbs.get(path)
        if verb is None or scope["method"] != "POST":
            await _send(send, 404 if verb is None else 405, b'"no such verb"')
            return
        begun = time.perf_counter()
        message = await receive()  # the server hands over whole bodies only
        status, answer = await self._answer(verb, path[1:], message.get("body", b""))
        # A scheduler keeps its one connection for as long as we do: so it would never meet a replica that sees.
        await _send(send, status, answer, last=self._is_blind())
        self._seconds[path].observe(time.perf_counter() - begun)

    async def _answer(self, verb: Answer, name: str, body: bytes) -> tuple[int, bytes]:
        try:
            return 200, await verb(body)
        except protocol.BadCall as error:
            metrics.CALLS.labels(name, "bad").inc()
            return 400, protocol.encode(str(error))
        except (TryAgain, errors.KubeError, TimeoutError) as error:
            metrics.CALLS.labels(name, "error").inc()
            log.warning("call failed", extra={"verb": name, "reason": str(error)})
            return 503, protocol.encode(str(error))
        except Exception:
            metrics.CALLS.labels(name, "error").inc()
            log.exception("call failed", extra={"verb": name})
            return 500, b'"internal error"'


async def _send(send: Any, status: int, body: bytes, *, last: bool = False) -> None:
    headers = [JSON, (b"content-length", b"%d" % len(body)), *((CLOSE,) if last else ())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def role(runtime: Runtime) -> AsyncIterator[None]:
    """Serve the scheduler's calls; ready once the view has synced, and only while it is not stale."""
    settings = runtime.settings
    source = CertificateSource(
        Path(settings.extender.tls_directory),
        client_ca=True,
        names=service_names(names.EXTENDER_SERVICE, settings.cluster.namespace)[:1],
        client_name=settings.extender.client_name,
        poll=settings.certs.poll,
        name=names.EXTENDER_SERVICE,
    )
    serving = False
    runtime.health.add("extender", lambda: "" if serving else "waiting for a certificate")
    view = View.of(runtime)
    verbs = Verbs(runtime.kube, view, settings)
    runtime.health.page("explain", lambda request: _explain(verbs, request))
    runtime.health.page("in-flight", lambda _: _in_flight(view))
    _observe(view)
    await source.ready()
    runtime.spawn(source.run(), "extender certificate")
    await view.synced()
    # What the watches filled in stays: the collector need not walk through it while the scheduler waits for an answer.
    gc.collect()
    gc.freeze()
    server = Server(
        Application(verbs),
        host=settings.serve.host,
        port=settings.extender.port,
        tls=source.context,
        limits=limits(settings.serve, settings.extender.body_bytes),
        accepts=source.accepts,
    )
    async with answering(runtime, server, verbs):
        serving = True
        log.info("extender serves", extra={"port": server.port})
        yield


@contextlib.asynccontextmanager
async def answering(runtime: Runtime, server: Server, verbs: Verbs) -> AsyncIterator[None]:
    """Serve while inside; what the verbs have under way is waited for, however that ends."""
    try:
        async with runtime.serving(server):
            yield
    finally:
        await verbs.close()


def _explain(verbs: Verbs, request: Request) -> Response:
    """GET /explain?pod=NAMESPACE/NAME on the health port."""
    pod = request.query_params.get("pod", "")
    return Response(protocol.encode(verbs.decisions.of(pod)), media_type="application/json")


def _in_flight(view: View) -> Response:
    """GET /in-flight on the health port: node to pool UID to picks that are not bound yet."""
    counts: dict[str, dict[str, int]] = {}
    for attempt in view.ledger.picks.attempts.values():
        if attempt.node:
            pools = counts.setdefault(attempt.node, {})
            pools[attempt.pool] = pools.get(attempt.pool, 0) + 1
    return Response(protocol.encode(counts), media_type="application/json")


def _observe(view: View) -> None:
    ledger = view.ledger

    counted: Counter[State] = Counter()

    def count(state: State) -> float:
        if state is State.FRESH:  # the first that is asked for: one walk for all three, once for each exposition
            found = (
                ledger.claims.state(name, pool) for name, node in ledger.claims.nodes.items() for pool in node.pools
            )
            counted.clear()
            counted.update(found)
        return counted[state]

    for state in (State.FRESH, State.HELD, State.LINGERING):
        metrics.STATES.labels(state.value).set_function(lambda state=state: count(state))  # type: ignore[misc]
    metrics.IN_FLIGHT.set_function(ledger.picks.in_flight)
    for watch in view.watches:
        metrics.LAG.labels(watch.name).set_function(watch.staleness)
