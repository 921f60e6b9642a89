"""`ateplace status`: nodes × pools at a glance."""

import asyncio
from collections.abc import Awaitable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from ateplace import names
from ateplace.cli.options import File, Output, Set, Urls, connected
from ateplace.cli.printing import complain, console, print_json, text
from ateplace.cli.replicas import ask
from ateplace.cli.snapshot import Picture, as_data, compose
from ateplace.cli.tables import draw, draw_pools
from ateplace.errors import KubeError, NotFound
from ateplace.kube import paths
from ateplace.kube.objects import Deployment, Node, Pod, WorkerPool
from ateplace.settings import Settings

if TYPE_CHECKING:
    from ateplace.kube import Kube

app = typer.Typer()

T = TypeVar("T")

InFlight = dict[str, dict[str, int]]
"""Node to pool UID to picks that are not bound yet: what `/in-flight` of an extender says."""


class Status(Struct):
    """A picture, how our own Deployments do, and what could not be seen."""

    picture: Picture
    roles: dict[str, tuple[int, int]]
    """Deployment to available and wanted replicas."""
    notes: list[str]


async def attempt(looking: Awaitable[T]) -> T | KubeError:
    """What is seen, or why nothing is. If this task was cancelled while a request failed, the cancellation is raised:
    `gather` would raise the failure, and forget the cancellation."""
    try:
        return await looking
    except KubeError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from error
        return error


async def look(kube: "Kube", settings: Settings, urls: list[str]) -> Status:
    """Read it all at once. What may not or cannot be seen, beyond nodes, pods and pools, becomes a note."""
    (in_flight, silent), (roles, note), (nodes, pods, atelets, pools) = await asyncio.gather(
        picks_in_flight(kube, settings, urls), _roles(kube, settings), _read(kube, settings)
    )
    picture = compose(nodes, pods, atelets, pools, pool_label=settings.substrate.pool_label, in_flight=in_flight)
    return Status(picture, roles, [*note, *silent])


async def picks_in_flight(kube: "Kube", settings: Settings, urls: list[str]) -> tuple[InFlight, list[str]]:
    """What all extenders together have picked and not seen bound, and who did not answer."""
    asked = await ask(kube, settings, "extender", "in-flight", InFlight, urls=urls)
    in_flight: InFlight = {}
    for answer in asked.answers.values():
        for node, counts in answer.items():
            into = in_flight.setdefault(node, {})
            for pool, count in counts.items():
                into[pool] = into.get(pool, 0) + count
    return in_flight, asked.notes


async def _read(kube: "Kube", settings: Settings) -> tuple[list[Node], list[Pod], list[Pod], list[WorkerPool]]:
    substrate = settings.substrate

    async def pods(path: str, selector: str) -> list[Pod]:
        return [pod async for pod in kube.list(path, Pod, query={"labelSelector": selector})]

    async def nodes() -> list[Node]:
        return [node async for node in kube.list(paths.NODES.everywhere, Node)]

    async def pools() -> list[WorkerPool]:
        path = paths.POOLS.everywhere
        try:
            return [pool async for pool in kube.list(path, WorkerPool)]
        except NotFound as error:
            raise KubeError("the cluster has no WorkerPools: is Agent Substrate installed?") from error

    found, ateoms, placeholders, atelets, all_pools = await asyncio.gather(
        nodes(),
        pods(paths.PODS.everywhere, substrate.pool_label),
        pods(paths.PODS.everywhere, names.PLACEHOLDER_LABEL),
        pods(paths.PODS.within(substrate.atelet_namespace), substrate.atelet_selector),
        pools(),
    )
    return found, ateoms + placeholders, atelets, all_pools


async def _roles(kube: "Kube", settings: Settings) -> tuple[dict[str, tuple[int, int]], list[str]]:
    path = paths.DEPLOYMENTS.within(settings.cluster.namespace)
    try:
        found = [one async for one in kube.list(path, Deployment)]
    except KubeError as error:
        return {}, [f"our own Deployments cannot be seen: {error}"]
    roles = {one.metadata.name: (one.available(), one.spec.replicas) for one in found}
    return roles, [] if roles else [f"nothing of ateplace is in the namespace {settings.cluster.namespace}"]


def screen(status: Status, *, idle: bool) -> RenderableType:
    """For a terminal."""
    picture = status.picture
    roles = Text()
    for name, (available, wanted) in status.roles.items():
        style = "green" if available and available == wanted else "yellow" if available else "red"
        roles.append_text(text(f"{name.removeprefix('ateplace-')} {available}/{wanted}   ", style))
    claimed, total = len(picture.claimed), len(picture.nodes)
    ateoms = sum(row.ateoms.total() for row in picture.nodes.values())
    summary = f"{ateoms} ateoms on {claimed} claimed nodes of {total}, {picture.waiting} waiting for a node"
    parts: list[RenderableType] = [roles, text(summary, "bold"), Text(), draw_pools(picture), Text()]
    parts.append(draw(picture, idle=idle))
    parts.append(Text("● ready  ◐ starting  ○ placeholder  ◌ picked, not bound yet", style="dim"))
    parts += [text(f"! {note}", "yellow") for note in status.notes]
    return Group(*parts)


def data(status: Status) -> dict[str, Any]:
    """For machines."""
    roles = {name: {"available": available, "wanted": wanted} for name, (available, wanted) in status.roles.items()}
    return {"roles": roles, **as_data(status.picture), "notes": status.notes}


@app.command()
def status(
    *,
    flags: Set = [],  # noqa: B006 - typer's way
    file: File = "",
    output: Output = "table",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between looks with --watch.")] = 2.0,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also nodes that have nothing of ours.")] = False,
    extender_urls: Urls = [],  # noqa: B006
) -> None:
    """Show nodes × pools: atelet, claims, ateoms, placeholders, picks in flight.

    Example: `ateplace status --watch`

    Exit codes: 0 shown; 1 the cluster could not be read; 2 wrong usage.
    """

    async def main(settings: Settings, kube: "Kube") -> None:
        terminal = console()
        if output == "json":
            while watch:
                seen = await attempt(look(kube, settings, extender_urls))
                if isinstance(seen, KubeError):
                    complain(seen)
                else:
                    print_json(data(seen))
                await asyncio.sleep(interval)
            print_json(data(await look(kube, settings, extender_urls)))
            return
        if not watch:
            terminal.print(screen(await look(kube, settings, extender_urls), idle=everything))
            return
        with Live(console=terminal, auto_refresh=False, screen=True) if terminal.is_terminal else nullcontext() as live:
            while True:
                seen = await attempt(look(kube, settings, extender_urls))
                if isinstance(seen, KubeError):
                    shown: RenderableType = text(f"! {seen}", "red")
                else:
                    shown = screen(seen, idle=everything)
                # In a pipe there is nothing to draw over: one after the other.
                if live:
                    live.update(shown, refresh=True)
                else:
                    terminal.print(shown)
                await asyncio.sleep(interval)

    connected(main, flags, file)
