"""`ateplace explain`: why a pod is where it is, or why it is nowhere."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct
from rich.table import Table
from rich.text import Text

from ateplace import names
from ateplace.cli.findings import Finding, table
from ateplace.cli.options import File, Output, Set, Urls, connected
from ateplace.cli.pod_checks import Situation, findings
from ateplace.cli.printing import console, print_json, text
from ateplace.cli.replicas import ask
from ateplace.errors import AteplaceError, KubeError, NotFound
from ateplace.kube import paths
from ateplace.kube.objects import Node, Pod, WorkerPool
from ateplace.settings import Settings

if TYPE_CHECKING:
    from ateplace.kube import Kube

app = typer.Typer(help="Say why a pod is where it is, or why it is nowhere.", no_args_is_help=True)

EVENTS = 5


class Decision(Struct):
    """One answer of an extender about the pod."""

    at: str
    verb: str
    outcome: str
    notes: list[str] = []
    replica: str = ""


class Event(Struct, rename="camel"):
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    last_timestamp: str | None = None
    event_time: str | None = None


class Explanation(Struct):
    pod: str
    findings: list[Finding]
    decisions: list[Decision]
    """Of all replicas, oldest first."""
    events: list[Event]
    notes: list[str]
    """What could not be asked."""

    def as_data(self) -> dict[str, Any]:
        return {
            "pod": self.pod,
            "findings": [
                {key: value for key, value in one.as_data().items() if key != "check"} for one in self.findings
            ],
            "decisions": [
                {"at": one.at, "replica": one.replica, "verb": one.verb, "outcome": one.outcome, "notes": one.notes}
                for one in self.decisions
            ],
            "events": [{"type": one.type, "reason": one.reason, "message": one.message} for one in self.events],
            "notes": self.notes,
        }


async def explain(kube: "Kube", settings: Settings, namespace: str, name: str, urls: list[str]) -> Explanation:
    """What the API shows of the pod, judged, and what every extender remembers of it."""
    key = f"{namespace}/{name}"
    asked, (situation, events) = await asyncio.gather(
        ask(kube, settings, "extender", "explain", list[Decision], query={"pod": key}, urls=urls),
        _situation(kube, settings, namespace, name),
    )
    decisions = []
    for replica, answer in asked.answers.items():
        for decision in answer:
            decision.replica = replica
            decisions.append(decision)
    decisions.sort(key=lambda one: one.at)
    if situation.pod is None and not decisions:
        raise AteplaceError(f"there is no pod {key}, and no extender that answered remembers one")
    return Explanation(key, findings(situation, settings), decisions, events, asked.notes)


async def _situation(kube: "Kube", settings: Settings, namespace: str, name: str) -> tuple[Situation, list[Event]]:
    try:
        pod = await kube.get(paths.PODS.named(name, namespace), Pod)
    except NotFound:
        return Situation(None), []
    pool_name = pod.metadata.label(names.PLACEHOLDER_LABEL) or pod.metadata.label(settings.substrate.pool_label)
    pool, node, atelets = await asyncio.gather(
        _pool(kube, namespace, pool_name), _node(kube, pod), _atelets(kube, settings, pod)
    )
    query = {"fieldSelector": f"involvedObject.uid={pod.metadata.uid}"}
    try:
        events = [event async for event in kube.list(paths.CORE_EVENTS.within(namespace), Event, query=query)]
    except KubeError:
        events = []
    events.sort(key=lambda event: event.last_timestamp or event.event_time or "")
    return Situation(pod, pool, node, atelets), events[-EVENTS:]


async def _pool(kube: "Kube", namespace: str, name: str) -> WorkerPool | None:
    try:
        return await kube.get(paths.POOLS.named(name, namespace), WorkerPool) if name else None
    except NotFound:
        return None


async def _node(kube: "Kube", pod: Pod) -> Node | None:
    try:
        return await kube.get(paths.NODES.named(pod.spec.node_name), Node) if pod.spec.node_name else None
    except NotFound:
        return None


async def _atelets(kube: "Kube", settings: Settings, pod: Pod) -> tuple[Pod, ...]:
    if not pod.spec.node_name:
        return ()
    substrate = settings.substrate
    path = paths.PODS.within(substrate.atelet_namespace)
    # Not by spec.nodeName: a Pending one says only in its affinity for which node it was made.
    return tuple([one async for one in kube.list(path, Pod, query={"labelSelector": substrate.atelet_selector})])


@app.command()
def pod(
    pod: Annotated[str, typer.Argument(metavar="[NAMESPACE/]NAME", help="The pod.")],
    *,
    namespace: Annotated[
        str,
        typer.Option("--namespace", "-n", help="Its namespace, unless NAME has it; else the current context's."),
    ] = "",
    flags: Set = [],  # noqa: B006 - typer's way
    file: File = "",
    output: Output = "table",
    extender_urls: Urls = [],  # noqa: B006
) -> None:
    """Say why a pod is where it is, or why it is nowhere: what the API shows, and what the extenders decided.

    Example: `ateplace explain pod demo/web-deployment-5c7f9d-x2x4z`

    Exit codes: 0 explained; 1 there is no such pod and nobody remembers one, or the cluster could not be read; 2 wrong
    usage.
    """
    given, slash, name = pod.partition("/")
    where, name = (given, name) if slash else (namespace, given)
    if (slash and not where) or not name:
        raise typer.BadParameter(f"{pod!r} is no NAMESPACE/NAME: neither may be empty")
    found = connected(
        lambda settings, kube: explain(kube, settings, where or kube.namespace, name, extender_urls), flags, file
    )
    if output == "json":
        print_json(found.as_data())
        return
    terminal = console()
    terminal.print(text(f"pod {found.pod}", "bold"))
    terminal.print(table(found.findings, checks=False))
    if found.decisions:
        terminal.print(Text("\nWhat the extenders decided", style="bold"))
        terminal.print(_decisions(found.decisions))
    else:
        terminal.print(Text("\nNo extender remembers a decision about it."))
    if found.events:
        terminal.print(Text("\nEvents", style="bold"))
        for event in found.events:
            times = f" (× {event.count})" if event.count and event.count > 1 else ""
            terminal.print(text(f"{event.reason}{times}: {event.message}"))
    for note in found.notes:
        terminal.print(text(f"! {note}", "yellow"))


def _decisions(decisions: list[Decision]) -> Table:
    grid = Table(box=None, pad_edge=False, show_header=False)
    for one in decisions:
        said = text(one.outcome)
        for note in one.notes:
            said.append("\n  ").append_text(text(note, "dim"))
        grid.add_row(one.at[11:23], one.verb, said, text(one.replica, "dim"))
    return grid
