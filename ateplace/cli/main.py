"""The `ateplace` command (also `kubectl ateplace`).

The one place that knows every role. Whatever a command needs is imported when it runs, so that `--help` is quick and
a webhook does not carry the reconciler's memory.

Exit codes: 0 done; 1 it could not be done, with the reason on standard error; 2 wrong usage; 130 interrupted.
"""

import gc
import importlib
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from rich.table import Table

from ateplace import __version__
from ateplace.cli.options import File, Output, Set
from ateplace.cli.printing import complain, console, print_json, say
from ateplace.errors import AteplaceError, KubeError, SettingsError

if TYPE_CHECKING:
    from ateplace.settings import Loaded

app = typer.Typer(
    name="ateplace",
    help="Places Agent Substrate's worker pods where its node agent is, and the node agent only where they are.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

ROLES = ("reconciler", "webhook", "extender")
"""In the order in which `ateplace run` starts them: the reconciler makes the others' certificates."""


class Elsewhere(NamedTuple):
    """A command, or a group of commands, that another module brings."""

    module: str
    summary: str
    """For `ateplace --help`, which imports none of them; the same as the command's own."""
    group: bool = False


ELSEWHERE = {
    "status": Elsewhere(
        "ateplace.cli.status", "Show nodes × pools: atelet, claims, ateoms, placeholders, picks in flight."
    ),
    "map": Elsewhere(
        "ateplace.cli.map.command",
        "Show the placement as a page in the browser, live: nodes, ateoms, placeholders, and how bursts went.",
    ),
    "doctor": Elsewhere(
        "ateplace.cli.doctor.command", "Examine an installation: one check each, ok, warn or fail, with the fix."
    ),
    "migrate": Elsewhere(
        "ateplace.cli.installation", "Bring a running cluster under atelet's gate, without an ateom losing its atelet."
    ),
    "uninstall": Elsewhere(
        "ateplace.cli.installation",
        "Undo everything: atelet's gate, WorkerPools' finalizers, nodes' labels and claims, waiting pods.",
    ),
    "explain": Elsewhere("ateplace.cli.explain", "Explain the state of a pod, a node or a pool.", group=True),
    "certs": Elsewhere("ateplace.cli.certs", "Certificates: make, show and change them by hand.", group=True),
}


def _load(flags: list[str], file: str) -> "Loaded":
    from ateplace.settings import load  # noqa: PLC0415 - a quarter of a second that `--help` need not wait for

    return load(flags=flags, path=file or None)


def _serve(roles: tuple[str, ...], flags: list[str], file: str) -> None:
    gc.disable()  # importing makes next to no garbage; `runtime.run` enables it again
    runtime = importlib.import_module("ateplace.process.runtime")
    settings = _load(flags, file).settings
    entered = {role: importlib.import_module(f"ateplace.{role}.app").role for role in roles}
    raise typer.Exit(runtime.run(settings, entered))


@app.command()
def run(flags: Set = [], file: File = "") -> None:  # noqa: B006 - typer's way
    """Run every role in this process.

    Example: `ateplace run --set cluster.kubeconfig=$HOME/.kube/config`
    """
    _serve(ROLES, flags, file)


@app.command()
def webhook(flags: Set = [], file: File = "") -> None:  # noqa: B006
    """Run the mutating admission webhook.

    Example: `ateplace webhook --set webhook.port=9443`
    """
    _serve(("webhook",), flags, file)


@app.command()
def extender(flags: Set = [], file: File = "") -> None:  # noqa: B006
    """Run the kube-scheduler extender.

    Example: `ateplace extender --set extender.open_ahead=8`
    """
    _serve(("extender",), flags, file)


@app.command()
def reconciler(flags: Set = [], file: File = "") -> None:  # noqa: B006
    """Run the reconciler: claims, finalizers, placeholders, certificates.

    Example: `ateplace reconciler --set reconciler.linger=60`
    """
    _serve(("reconciler",), flags, file)


@app.command()
def settings(flags: Set = [], file: File = "", output: Output = "table") -> None:  # noqa: B006
    """Print the effective settings and where each came from.

    Example: `ATEPLACE_WEBHOOK_PORT=9443 ateplace settings`
    """
    from ateplace.settings import meanings  # noqa: PLC0415 - as in `_load`

    loaded, meaning = _load(flags, file), meanings()
    rows = [
        {
            "setting": f"{group}.{field}",
            "value": value,
            "source": loaded.origins.get(f"{group}.{field}", "default"),
            "meaning": meaning[f"{group}.{field}"],
        }
        for group, fields in loaded.settings.model_dump().items()
        for field, value in fields.items()
    ]
    _print(rows, output)


@app.command()
def version() -> None:
    """Print the version.

    Example: `ateplace version`
    """
    say(__version__)


@app.command()
def up(
    *,
    nodes: Annotated[int, typer.Option(min=4, help="How many nodes to simulate (journey).")] = 12,
    once: Annotated[bool, typer.Option(help="Play the scenario, check every step, exit 0 or 1.")] = False,
    scene: Annotated[
        Literal["journey", "headroom", "upgrade"],
        typer.Option(
            help="journey: a pool comes, grows, shrinks and goes; headroom: a burst on a full cluster; upgrade: Agent "
            "Substrate is upgraded node by node, and back (about six minutes)."
        ),
    ] = "journey",
    substrate: Annotated[
        Literal["new", "old"],
        typer.Option(help="Which shape of Agent Substrate is simulated: that of autumn or of June 2026."),
    ] = "new",
    real_node: Annotated[
        bool, typer.Option("--real-node", help="Ateoms are real processes on a real node (journey; Linux, as root).")
    ] = False,
    kubernetes: Annotated[
        str, typer.Option(envvar="PLANE_KUBERNETES", help="The minor version of the control plane, 1.33 for one.")
    ] = "",
) -> None:
    """Bring up a real control plane on this machine, with ateplace, and watch it work. Ctrl-C stops everything.

    Example: `ateplace up --once`
    """
    try:
        if kubernetes:
            os.environ[importlib.import_module("ateplace.local.versions").VARIABLE] = kubernetes
        if scene == "headroom":
            code = importlib.import_module("ateplace.local.headroom_scene").play(once=once, shape=substrate)
        elif scene == "upgrade":
            code = importlib.import_module("ateplace.local.upgrade_scene").play(once=once)
        else:
            play = importlib.import_module("ateplace.local.scene").play
            code = play(nodes=nodes, once=once, shape=substrate, real_node=real_node)
    except ModuleNotFoundError as error:
        raise AteplaceError(
            "this build has no local control plane; use a checkout, or `pip install .` in one"
        ) from error
    raise typer.Exit(code)


def _print(rows: list[dict[str, Any]], output: str) -> None:
    if output == "json":
        print_json(rows)
        return
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console().print(table)


def main() -> None:
    """Run a command; errors that we raise on purpose become one line."""
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if asked in ELSEWHERE:
        mount(asked)
    else:
        outline()
    try:
        app()
    except SettingsError as error:
        complain(error, lines=True)
        sys.exit(2)
    except (AteplaceError, AssertionError) as error:
        complain(error, lines=not isinstance(error, KubeError))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def mount(*asked: str) -> None:
    """Add commands that other modules bring."""
    for name in asked:
        each = ELSEWHERE[name]
        brought = importlib.import_module(each.module).app
        if each.group:
            app.add_typer(brought, name=name)
        else:
            app.registered_commands += [
                command
                for command in brought.registered_commands
                if command.callback and name == (command.name or command.callback.__name__)
            ]


def outline() -> None:
    """Add the names and summaries of commands that other modules bring, for a list of all commands."""
    for name, each in ELSEWHERE.items():
        app.command(name, help=each.summary)(lambda: None)


if __name__ == "__main__":
    main()
