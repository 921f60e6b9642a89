"""`ateplace migrate` and `ateplace uninstall`: the way in and the way out, for a whole cluster."""

from typing import TYPE_CHECKING, Annotated

import typer

from ateplace.cli.options import File, Set, connected
from ateplace.cli.printing import say
from ateplace.settings import Settings

if TYPE_CHECKING:
    from ateplace.kube import Kube

app = typer.Typer()

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and write nothing.")]


@app.command()
def migrate(dry_run: DryRun = False, flags: Set = [], file: File = "") -> None:  # noqa: B006 - typer's way
    """Bring a running cluster under atelet's gate, without an ateom losing its atelet.

    Labels and claims every node with ateoms, then adds our label to the atelet DaemonSet's nodeSelector without
    restarting an atelet that stays. Takes it back when a node with ateoms loses its atelet. Safe to run again.

    Example: `ateplace migrate --dry-run`
    """
    from ateplace.cli.migrate import Migration  # noqa: PLC0415 - `--help` need not wait for it

    async def main(settings: Settings, kube: "Kube") -> None:
        await Migration(kube, settings, say).run(dry_run=dry_run)

    connected(main, flags, file)


@app.command()
def uninstall(dry_run: DryRun = False, flags: Set = [], file: File = "") -> None:  # noqa: B006
    """Undo everything: atelet's gate, WorkerPools' finalizers, nodes' labels and claims, waiting pods.

    Works whatever is half gone, and can be run again. Afterwards `kubectl delete -k` removes what is left.

    Example: `ateplace uninstall --dry-run`
    """
    from ateplace.cli.uninstall import Removal  # noqa: PLC0415

    async def main(settings: Settings, kube: "Kube") -> None:
        await Removal(kube, settings, say, dry_run=dry_run).run()

    connected(main, flags, file)
