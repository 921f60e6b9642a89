"""The map's endpoints.

Answers are encoded by msgspec and go out as they are; FastAPI describes them (`/openapi.json`, shown at `/api`).
"""

import asyncio
from collections.abc import AsyncIterator
from importlib import resources
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Query
from fastapi.responses import Response, StreamingResponse

from ateplace import __version__
from ateplace.cli.map import wire
from ateplace.cli.map.history import History
from ateplace.cli.map.source import Kind, Source
from ateplace.errors import AteplaceError

BEAT = 5.0
"""Seconds of silence after which a stream says that it lives."""
PATIENCE = 20.0
"""Seconds that a first request waits for the first picture."""
JSON = "application/json"
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def create(source: Source) -> FastAPI:
    """The application; it is served behind `ateplace.cli.map.guard`."""
    app = FastAPI(
        title="ateplace map",
        version=__version__,
        description="The placement of ateoms, live. Every endpoint only reads.",
        docs_url=None,  # FastAPI's pages load scripts from elsewhere; /api is ours
        redoc_url=None,
    )
    files = {file.name: file.read_bytes() for file in (resources.files(__package__) / "static").iterdir()}

    async def history() -> History:
        try:
            await asyncio.wait_for(source.ready.wait(), PATIENCE)
        except TimeoutError:
            raise HTTPException(503, f"there is no data yet: {source.trouble()}") from None
        assert source.history is not None  # noqa: S101 - `ready` says so
        return source.history

    @app.get("/api/placement", tags=["map"], response_model=wire.Placement)
    async def placement() -> Response:
        """The placement as it is."""
        return Response(wire.encode((await history()).now), media_type=JSON)

    @app.get(
        "/api/changes",
        tags=["map"],
        response_class=StreamingResponse,
        responses={200: {"model": wire.Change, "content": {"text/event-stream": {}}}},
    )
    async def changes(
        after: Annotated[str, Query(description="The id of the last change that the client has.")] = "",
        last_event_id: Annotated[str, Header(description="The same, as browsers send it when they reconnect.")] = "",
    ) -> StreamingResponse:
        """Changes as server-sent events: `change` with a Change; `reset` when the placement must be read again because
        the changes since then are forgotten or too many; `beat` every few seconds in between."""
        return StreamingResponse(
            events(await history(), last_event_id or after),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    @app.get("/api/history", tags=["map"], response_model=wire.History)
    async def past() -> Response:
        """As far back as is remembered: at most an hour, less when much happened."""
        return Response((await history()).body(), media_type=JSON)

    @app.get("/api/timeline", tags=["map"], response_model=wire.Timeline)
    async def timeline() -> Response:
        """The same time in numbers, bursts and sentences."""
        return Response(wire.encode((await history()).timeline()), media_type=JSON)

    async def explained(kind: Kind, namespace: str, name: str) -> Response:
        try:
            found = await source.explain(kind, namespace, name)
        except AteplaceError as error:
            raise HTTPException(404, str(error)) from error
        return Response(wire.encode(found), media_type=JSON)

    @app.get("/api/explain/pod/{namespace}/{name}", tags=["explain"], response_model=wire.Explanation)
    async def pod(namespace: str, name: str) -> Response:
        """Why a pod is where it is, or nowhere, with the extenders' decisions."""
        return await explained("pod", namespace, name)

    @app.get("/api/explain/node/{name}", tags=["explain"], response_model=wire.Explanation)
    async def node(name: str) -> Response:
        """Why a node is open, for which pools, and until when."""
        return await explained("node", "", name)

    @app.get("/api/explain/pool/{namespace}/{name}", tags=["explain"], response_model=wire.Explanation)
    async def pool(namespace: str, name: str) -> Response:
        """What a pool holds and waits for."""
        return await explained("pool", namespace, name)

    def page(name: str) -> Response:
        return Response(files[name], media_type=TYPES[name.rpartition(".")[2]])

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return page("index.html")

    @app.get("/api", include_in_schema=False)
    async def described() -> Response:
        return page("api.html")

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return page("icon.svg")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return page(name)

    return app


async def events(history: History, id_: str) -> AsyncIterator[bytes]:
    """The stream of one client. It holds nothing but an id, so that a slow client costs nothing but its socket."""
    yield b"retry: 1000\n\n"
    while not history.closed:
        found = history.after(id_)
        if found is None:
            yield b"event: reset\ndata: {}\n\n"
            return
        if found:
            for kept in found:
                yield b"event: change\nid: %b-%d\ndata: %b\n\n" % (history.epoch.encode(), kept.number, kept.body)
            id_ = f"{history.epoch}-{found[-1].number}"
            continue
        try:
            await asyncio.wait_for(history.wait(), BEAT)
        except TimeoutError:
            yield b"event: beat\ndata: {}\n\n"
