"""`ateplace map`."""

import asyncio
import contextlib
import ipaddress
import secrets
import socket
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from ateplace.cli.options import File, Set, Urls, connected
from ateplace.cli.printing import say
from ateplace.errors import AteplaceError
from ateplace.settings import Settings

if TYPE_CHECKING:
    from ateplace.cli.map.feed import Feed
    from ateplace.cli.map.recording import Replay
    from ateplace.kube import Kube

app = typer.Typer()

LISTEN = "127.0.0.1:8390"
CLIENTS = 64
"""Connections at once."""


@app.command(name="map")
def show(
    *,
    flags: Set = [],  # noqa: B006 - typer's way
    file: File = "",
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Where to serve it; away from loopback a token is demanded. Port 0: any."
        ),
    ] = LISTEN,
    browse: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = True,
    record: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write what happens to a file.")] = None,
    replay: Annotated[Path | None, typer.Option(metavar="FILE", help="Show a recording instead of a cluster.")] = None,
    speed: Annotated[float, typer.Option(min=0.01, help="How fast to replay.")] = 1.0,
    extender_urls: Urls = [],  # noqa: B006
) -> None:
    """Show the placement as a page in the browser, live: nodes, ateoms, placeholders, and how bursts went.

    Runs here, with your own rights (those of `status`), and changes nothing in the cluster.

    Example: `ateplace map --record burst.jsonl`, later `ateplace map --replay burst.jsonl`

    Exit codes: 0 ended with Ctrl-C; 1 the cluster or the recording could not be read, or the address is taken; 2 wrong
    usage.
    """
    if record and replay:
        raise typer.BadParameter("a recording that is replayed cannot be recorded")
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(_socket(listen)) as listener:
        if replay:
            asyncio.run(_replay(replay, speed, listener, browse=browse))
            return

        async def main(settings: Settings, kube: "Kube") -> None:
            await _live(settings, kube, extender_urls, record, listener, browse=browse)

        connected(main, flags, file)


def _socket(listen: str) -> socket.socket:
    try:
        parts = urlsplit(f"//{listen}")
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise typer.BadParameter(f"{listen!r} is not HOST:PORT") from error
    if not host or port is None:
        raise typer.BadParameter(f"{listen!r} is not HOST:PORT")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise AteplaceError(
            f"cannot listen on {listen}: {error.strerror or error}; choose another with --listen"
        ) from error


async def _live(
    settings: Settings, kube: "Kube", urls: list[str], record: Path | None, listener: socket.socket, *, browse: bool
) -> None:
    from ateplace.cli.map.feed import Feed  # noqa: PLC0415 - half a second that `--help` need not wait for
    from ateplace.cli.map.recording import Recorder  # noqa: PLC0415

    await kube.get("/version", object)
    recorder = Recorder(record) if record else None
    try:
        feed = Feed(kube, settings, urls, kube.server, recorder.begin if recorder else None)
        await _serve(feed, listener, browse=browse)
    finally:
        if recorder:
            recorder.close()


async def _replay(path: Path, speed: float, listener: socket.socket, *, browse: bool) -> None:
    from ateplace.cli.map.recording import Replay  # noqa: PLC0415

    await _serve(Replay(path, speed), listener, browse=browse)


async def _serve(source: "Feed | Replay", listener: socket.socket, *, browse: bool) -> None:
    import uvicorn  # noqa: PLC0415

    from ateplace.cli.map.app import create  # noqa: PLC0415
    from ateplace.cli.map.guard import Guard  # noqa: PLC0415

    host, port = listener.getsockname()[:2]
    token = "" if ipaddress.ip_address(host).is_loopback else secrets.token_urlsafe(24)
    names = [] if token == "" else [socket.gethostname(), socket.getfqdn()]
    config = uvicorn.Config(
        Guard(create(source), names, token, port),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CLIENTS,
        timeout_graceful_shutdown=1,
    )
    url = address(host, port, token)
    say(f"the map is at {url}   (Ctrl-C ends it)")
    if browse:
        asyncio.get_running_loop().run_in_executor(None, webbrowser.open, url)

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if source.history:
                source.history.close()  # streams have no end of their own
            await super().shutdown(sockets)

    async with source.following():
        await Server(config).serve(sockets=[listener])


def address(host: str, port: int, token: str) -> str:
    """Where a browser finds it; listening everywhere is reached by this machine's name."""
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
