"""What the tests of a change of authority share: the extender's certificate, and a change that waits for callers."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from ateplace import names
from ateplace.certs.catalogue import service_names
from ateplace.certs.controller import Keeper
from ateplace.certs.rotation import Phase, phase
from ateplace.certs.source import CertificateSource
from ateplace.settings import Settings


def extender_name(settings: Settings) -> str:
    """The name under which a scheduler calls the extender."""
    return service_names(names.EXTENDER_SERVICE, settings.cluster.namespace)[0]


def extender_source(root: Path, settings: Settings) -> CertificateSource:
    """The extender's certificate, from its Secret's directory under `root`."""
    return CertificateSource(
        root / names.EXTENDER_CERTIFICATE,
        client_ca=True,
        client_name=settings.extender.client_name,
        poll=0.1,
        names=[extender_name(settings)],
        name=f"extender in {settings.cluster.namespace}",
    )


async def pause() -> None:
    """For a change during which nobody calls."""
    await asyncio.sleep(0.2)


async def steady(keeper: Keeper, meanwhile: Callable[[], Awaitable[None]] = pause) -> list[Phase]:
    """Take every step there is; the phases that were seen on the way, the last one being STEADY.

    After each look the next step waits for `meanwhile`, so a test that counts calls there knows that there were so
    many in every phase, however slow the machine is.
    """
    seen = []
    async with asyncio.timeout(150):
        while True:
            await keeper.bring_into_step()
            look, steps = await keeper.look()
            seen.append(phase(look.world))
            await meanwhile()
            if seen[-1] is Phase.STEADY and not steps:
                return seen


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.05)
