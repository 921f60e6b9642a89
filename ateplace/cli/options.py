"""What every command that talks to a cluster has in common: its options, and a client for the time it runs."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

if TYPE_CHECKING:
    from ateplace.kube import Kube
    from ateplace.settings import Settings

T = TypeVar("T")

Set = Annotated[
    list[str],
    typer.Option("--set", "-s", metavar="GROUP.FIELD=VALUE", help="Override one setting; may be repeated."),
]
File = Annotated[str, typer.Option("--settings", metavar="FILE", help="YAML file with settings.")]
Output = Annotated[Literal["table", "json"], typer.Option("--output", "-o", help="How to print.")]
Urls = Annotated[
    list[str],
    typer.Option(
        "--extender-url",
        metavar="URL",
        help="Health address of an extender, asked directly instead of through the API server; may be repeated.",
    ),
]


def connected(main: Callable[["Settings", "Kube"], Awaitable[T]], flags: list[str], file: str) -> T:
    """Run `main` with the effective settings and a client that is closed afterwards."""
    from ateplace.settings import load  # noqa: PLC0415 - a quarter of a second that `--help` need not wait for

    settings = load(flags=flags, path=file or None).settings
    return reaching(settings, lambda kube: main(settings, kube))


def reaching(settings: "Settings", main: Callable[["Kube"], Awaitable[T]]) -> T:
    """Run `main` with a client that is closed afterwards."""
    import asyncio  # noqa: PLC0415 - as above

    async def run() -> T:
        from ateplace.kube import Kube  # noqa: PLC0415 - as above

        kube = await Kube.connect(settings.cluster, user_agent="ateplace-cli")
        try:
            return await main(kube)
        finally:
            await kube.close()

    return asyncio.run(run())
