"""`ateplace certs`: make, show and change the certificates by hand, with what the reconciler's leader uses."""

import asyncio
import contextlib
from typing import Annotated, Any

import typer
from cryptography import x509
from rich.table import Table
from rich.text import Text

from ateplace import names
from ateplace.certs import files, rotation
from ateplace.certs.authority import renewal_time
from ateplace.certs.catalogue import catalogue
from ateplace.certs.controller import Keeper
from ateplace.certs.pem import dns_names
from ateplace.certs.scheduler import SchedulerDeployment
from ateplace.certs.store import Secret, Store
from ateplace.certs.survey import Survey
from ateplace.cli.doctor import configured
from ateplace.cli.doctor.look import Look
from ateplace.cli.options import File, Output, Set, reaching
from ateplace.cli.printing import console, print_json, say, text
from ateplace.errors import CertificateError, Forbidden
from ateplace.kube import Kube
from ateplace.settings import Loaded, Settings, load

app = typer.Typer(help="Certificates: make, show and change them by hand.", no_args_is_help=True)

LOOK_AGAIN = 1.0
"""Seconds between looks of a command that waits."""
CERT_MANAGERS = "cert-manager.io/certificate-name"
"""The annotation of Secrets that cert-manager writes."""


@app.command()
def bootstrap(flags: Set = [], file: File = "", output: Output = "table") -> None:  # noqa: B006 - typer's way
    """Make whatever is missing: authority, leaves, caBundle. What is good stays as it is.

    Refused, as is `rotate-ca`, where cert-manager makes them.

    Example: `ateplace certs bootstrap --set cluster.namespace=ateplace-system`
    """

    async def main(settings: Settings, kube: Kube) -> None:
        keeper = Keeper(kube, settings)
        await keeper.bring_into_step()
        _print(await _report(keeper), output)

    _run(main, flags, file, makes=True)


@app.command()
def show(flags: Set = [], file: File = "", output: Output = "table") -> None:  # noqa: B006
    """Print every certificate, how long it is good, and what is to be done.

    Example: `ateplace certs show -o json`
    """

    async def main(settings: Settings, kube: Kube) -> None:
        _print(await _report(Keeper(kube, settings)), output)

    _run(main, flags, file)


@app.command("rotate-ca")
def rotate_ca(
    flags: Set = [],  # noqa: B006
    file: File = "",
    wait: Annotated[bool, typer.Option(help="Finish a change of the authority, as the leader would.")] = False,
    output: Output = "table",
) -> None:
    """Begin a change of authority. The reconciler's leader carries it to its end without a failed call.

    Example: `ateplace certs rotate-ca --wait`
    """

    async def main(settings: Settings, kube: Kube) -> None:
        keeper = Keeper(kube, settings)
        await keeper.change_authority("asked for by hand")
        seen = await keeper.bring_into_step()
        while wait and rotation.phase(seen.world) is not rotation.Phase.STEADY:
            await asyncio.sleep(LOOK_AGAIN)
            seen = await keeper.bring_into_step()
        _print(await _report(keeper), output)

    _run(main, flags, file, makes=True)


@app.command("scheduler-restarted")
def scheduler_restarted(flags: Set = [], file: File = "") -> None:  # noqa: B006
    """Say that a scheduler which is not ours has been restarted and trusts both authorities.

    Example: `ateplace certs scheduler-restarted`
    """

    async def main(settings: Settings, kube: Kube) -> None:
        seen, _ = await Keeper(kube, settings).look()
        if not seen.world.published:
            raise CertificateError("not every Secret holds both authorities yet: restart the scheduler later")
        scheduler = SchedulerDeployment(kube, settings.cluster.namespace, settings.certs.scheduler_deployment)
        await scheduler.acknowledge(rotation.trust_mark(seen.world.trusted))
        say("noted")

    _run(main, flags, file)


def _run(main: Any, flags: list[str], file: str, *, makes: bool = False) -> None:
    """`makes`: the command makes certificates, so it is refused where another program does."""
    given = load(flags=flags, path=file or None)

    async def run(kube: Kube) -> None:
        if makes and (why := await _not_ours(kube, given)):
            look = f"kubectl describe certificate -n {given.settings.cluster.namespace}"
            raise CertificateError(f"these certificates are managed elsewhere ({why}): see {look}")
        await main(given.settings, kube)

    reaching(given.settings, run)


async def _not_ours(kube: Kube, given: Loaded) -> str:
    """Why ateplace makes no certificates here; empty when the leader does. What we wrote over another's would
    be written over again, and fail calls until then.

    The installation's settings say so. Where they cannot be read, the writer of the Secrets counts.
    """
    installed: dict[str, configured.Environment] = {}
    with contextlib.suppress(Forbidden):
        installed = await configured.environments(Look(kube, given))
    if not configured.effective(installed, given).certs.managed:
        return "certs.managed is off"
    if installed or "certs.managed" in given.origins:
        return ""
    store = Store(kube, given.settings.cluster.namespace)
    for name in (names.CA_CERTIFICATE, *(entry.secret for entry in catalogue(given.settings))):
        secret = await store.read(name)
        if secret and secret.metadata.annotation(CERT_MANAGERS):
            return f"the Secret {name} is cert-manager's"
    return ""


async def _report(keeper: Keeper) -> dict[str, Any]:
    seen, steps = await keeper.look()
    rows = [_row(names.CA_CERTIFICATE, seen.authority, seen.world.flaw or seen.world.due)]
    rows += [_row(name, secret, _judgement(seen, name)) for name, secret in seen.leaves.items()]
    return {
        "phase": rotation.phase(seen.world).value,
        "steps": [f"{type(step).__name__} {getattr(step, 'leaf', '')}".strip() + f": {step.why}" for step in steps],
        "webhookConfiguration": _injected(seen),
        "scheduler": _scheduler(seen.world),
        "certificates": rows,
    }


def _judgement(seen: Survey, name: str) -> str:
    leaf = seen.world.leaves[name]
    if leaf.needs_renewal:
        return leaf.needs_renewal
    return "" if leaf.issuer == seen.world.current else "it is signed by the previous authority"


def _injected(seen: Survey) -> str:
    if seen.configuration is None and seen.world.injected:
        return "there is none"
    return "in step" if seen.world.injected and seen.world.current else "not in step"


def _scheduler(world: rotation.World) -> str:
    if world.scheduler.trusts == rotation.trust_mark(world.trusted):
        return "in step" if world.scheduler.running else "restarting"
    return "not in step" if world.scheduler.restartable else "not ours to restart"


def _row(name: str, secret: Secret | None, reason: str) -> dict[str, Any]:
    certificates = secret.certificates(files.CERTIFICATE) if secret else []
    row: dict[str, Any] = {"secret": name, "state": reason or "good"}
    return row | (_details(certificates[0]) if certificates else {})


def _details(certificate: x509.Certificate) -> dict[str, Any]:
    return {
        "names": dns_names(certificate) or [certificate.subject.rfc4514_string()],
        "issuer": certificate.issuer.rfc4514_string(),
        "serial": f"{certificate.serial_number:x}",
        "notBefore": f"{certificate.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}",
        "notAfter": f"{certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}",
        "renewedAt": f"{renewal_time(certificate):%Y-%m-%dT%H:%M:%SZ}",
    }


def _print(report: dict[str, Any], output: str) -> None:
    if output == "json":
        print_json(report)
        return
    columns = {"secret": "Secret", "names": "Names", "notAfter": "Expires", "renewedAt": "Renewed", "state": "State"}
    table = Table(*columns.values(), box=None, pad_edge=False)
    for row in report["certificates"]:
        cells = [value if isinstance(value := row.get(key, "-"), list) else [value] for key in columns]
        table.add_row(*(Text("\n").join(map(text, cell)) for cell in cells))
    terminal = console()
    terminal.print(table)
    terminal.print()
    terminal.print(
        f"Phase {report['phase']}; caBundle: {report['webhookConfiguration']}; scheduler: {report['scheduler']}"
    )
    for step in report["steps"]:
        terminal.print(f"- {step}")
