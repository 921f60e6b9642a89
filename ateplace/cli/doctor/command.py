"""`ateplace doctor`: one check each, ok, warn or fail, with the fix."""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ateplace.cli.findings import Finding, fail, table, warn
from ateplace.cli.options import File, Output, Set, reaching
from ateplace.cli.printing import console, print_json, text
from ateplace.errors import Forbidden, KubeError
from ateplace.settings import Loaded, load

if TYPE_CHECKING:
    from ateplace.cli.doctor.look import Check, Look
    from ateplace.kube import Kube

app = typer.Typer()

FAILED = 3
"""Exit code when a check failed: told apart from 1, with which the cluster could not be read at all."""


def checks() -> "dict[str, Check]":
    """Every check by its name, in the order in which an installation would be looked at."""
    # Imported when doctor runs: `--help` needs none of it.
    from ateplace.cli.doctor import (  # noqa: PLC0415
        atelet,
        certificates,
        claims,
        configured,
        ours,
        priorities,
        rbac,
        scheduler,
        versions,
        webhook,
    )

    return {
        "versions": versions.check,
        "roles": ours.deployments,
        "settings": configured.check,
        "leader": ours.leader,
        "rbac": rbac.check,
        "priority classes": priorities.check,
        "certificates": certificates.check,
        "webhook": webhook.check,
        "scheduler": scheduler.check,
        "atelet gate": atelet.gate,
        "atelet room": atelet.room,
        "atelet taints": atelet.taints,
        "claims": claims.check,
    }


async def examine(kube: "Kube", given: Loaded, only: list[str]) -> list[Finding]:
    """Every finding of the checks asked for (all of them by default); KubeError when there is no cluster at all."""
    from ateplace.cli.doctor import configured  # noqa: PLC0415
    from ateplace.cli.doctor.look import Look  # noqa: PLC0415

    await kube.get("/version", object)
    look = Look(kube, given)
    with contextlib.suppress(KubeError):  # the check of the settings says so
        look.settings = configured.effective(await configured.environments(look), given)
    wanted = {name: check for name, check in checks().items() if not only or name in only}
    found = await asyncio.gather(*(_examine(name, check, look) for name, check in wanted.items()))
    return [finding for findings in found for finding in findings]


async def _examine(name: str, check: "Check", look: "Look") -> list[Finding]:
    try:
        findings = await check(look)
    except Forbidden as error:
        findings = [warn(f"could not check: {error}", "run doctor with the rights it needs, e.g. cluster-admin")]
    except KubeError as error:
        findings = [fail(f"could not check: {error}", "look at the API server, then run doctor again")]
    return [msgspec.structs.replace(finding, check=name) for finding in findings]


@app.command()
def doctor(
    *,
    flags: Set = [],  # noqa: B006 - typer's way
    file: File = "",
    output: Output = "table",
    only: Annotated[list[str], typer.Option("--check", "-c", help="Only this check; may be repeated.")] = [],  # noqa: B006
    strict: Annotated[bool, typer.Option(help="Warnings count as failures.")] = False,
) -> None:
    """Examine an installation: one check each, ok, warn or fail, with the fix.

    Reads only: the one thing it sends is the dry run of a pod. Judges by the settings that the installation has,
    except where it is given others.

    Example: `ateplace doctor --check webhook --check certificates`

    Exit codes: 0 nothing failed; 1 the cluster could not be read; 2 wrong usage; 3 a check failed.
    """
    known = checks()
    if unknown := [name for name in only if name not in known]:
        raise typer.BadParameter(f"no check named {unknown[0]!r}; there are: {', '.join(known)}")
    given = load(flags=flags, path=file or None)
    found = reaching(given.settings, lambda kube: examine(kube, given, only))
    bad = [one for one in found if one.level == "fail" or (strict and one.level == "warn")]
    if output == "json":
        print_json([one.as_data() for one in found])
    else:
        terminal = console()
        terminal.print(table(found))
        counts = {level: sum(one.level == level for one in found) for level in ("ok", "warn", "fail")}
        style = "red" if counts["fail"] else "yellow" if counts["warn"] else "green"
        terminal.print()
        terminal.print(text(", ".join(f"{count} {level}" for level, count in counts.items()), style))
    if bad:
        raise typer.Exit(FAILED)
