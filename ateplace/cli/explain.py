"""`ateplace explain`: why a pod is where it is, or nowhere; why a node is open; what a pool holds and waits for."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from msgspec import Struct
from rich.table import Table
from rich.text import Text

from ateplace import names
from ateplace.cli import node_checks, pool_checks
from ateplace.cli.findings import Finding, table
from ateplace.cli.options import File, Output, Set, Urls, connected
from ateplace.cli.pod_checks import Situation, findings
from ateplace.cli.printing import console, print_json, text
from ateplace.cli.replicas import ask
from ateplace.cli.snapshot import compose
from ateplace.cli.status import picks_in_flight
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import atelet_record, namespace_record, node_record, pod_record, pool_record
from ateplace.errors import AteplaceError, Forbidden, KubeError, NotFound
from ateplace.kube import paths, selectors
from ateplace.kube.objects import Bare, Node, Pod, WorkerPool
from ateplace.settings import Settings

if TYPE_CHECKING:
    from ateplace.kube import Kube

app = typer.Typer(help="Explain the state of a pod, a node or a pool.", no_args_is_help=True)

T = TypeVar("T")

EVENTS = 5
OUR_EVENTS = "reportingComponent=ateplace-reconciler"
"""Of all that is said about a node, what the reconciler says."""


Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Its namespace, unless NAME has it; else the current context's.")
]


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
    kind: Literal["pod", "node", "pool"]
    name: str
    """`namespace/name`, a node's without a namespace."""
    findings: list[Finding]
    decisions: list[Decision]
    """Of all replicas, oldest first."""
    events: list[Event]
    notes: list[str]
    """What could not be asked."""

    def as_data(self) -> dict[str, Any]:
        return {
            self.kind: self.name,
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
    return Explanation("pod", key, findings(situation, settings), decisions, events, asked.notes)


async def explain_node(kube: "Kube", settings: Settings, name: str, urls: list[str]) -> Explanation:
    """What the API shows of a node, judged; picks on their way there are the extenders'."""
    substrate = settings.substrate
    node = await _node(kube, name)
    if node is None:
        raise AteplaceError(f"there is no node {name}")

    async def ours(field: str) -> list[Pod]:
        """Ateoms and placeholders that a field selects."""
        selectors = (substrate.pool_label, names.PLACEHOLDER_LABEL)
        queries = [{"labelSelector": selector, "fieldSelector": field} for selector in selectors]
        found = await asyncio.gather(*(_all(kube, paths.PODS.everywhere, Pod, query) for query in queries))
        return list({pod.metadata.uid: pod for some in found for pod in some}.values())

    here, unbound, pools, atelets, (picks, silent), events = await asyncio.gather(
        ours(selectors.on_node(name)),
        ours(selectors.on_node("")),
        _all(kube, paths.POOLS.everywhere, WorkerPool),
        _atelets(kube, settings),
        picks_in_flight(kube, settings, urls),
        _events(kube, paths.CORE_EVENTS.everywhere, f"{selectors.events_about('Node', name)},{OUR_EVENTS}"),
    )
    picture = compose([node], [*here, *unbound], atelets, pools, pool_label=substrate.pool_label, in_flight=picks)
    records = [one for one in map(atelet_record, atelets) if one and one.node == name]
    return Explanation("node", name, node_checks.findings(node, picture, records, settings), [], events, silent)


async def explain_pool(kube: "Kube", settings: Settings, namespace: str, name: str) -> Explanation:
    """What the API shows of a pool, its pods and its claims, judged."""
    key = f"{namespace}/{name}"
    pool = await _pool(kube, namespace, name)
    if pool is None:
        raise AteplaceError(f"there is no WorkerPool {key}")
    label = settings.substrate.pool_label
    ateoms, placeholders, nodes, atelets, events = await asyncio.gather(
        _all(kube, paths.PODS.within(namespace), Pod, {"labelSelector": label}),
        _all(kube, paths.PODS.within(namespace), Pod, {"labelSelector": names.PLACEHOLDER_LABEL}),
        _all(kube, paths.NODES.everywhere, Node),
        _atelets(kube, settings),
        _events(kube, paths.CORE_EVENTS.within(namespace), f"involvedObject.uid={pool.metadata.uid}"),
    )
    pods = [*ateoms, *(pod for pod in placeholders if not pod.metadata.label(label))]
    picture = compose(nodes, pods, atelets, [pool], pool_label=label)
    ledger = Ledger()
    ledger.pool_seen(pool_record(pool), 0.0)
    own = [pod for pod in pods if (one := pod_record(pod, label)) and ledger.owners.pool_of(one) == pool.metadata.uid]
    findings = pool_checks.findings(pool, picture, own, settings)
    return Explanation("pool", key, [*findings, *await _quota(kube, namespace, nodes, pods)], [], events, [])


async def _quota(kube: "Kube", namespace: str, nodes: list[Node], pods: list[Pod]) -> list[Finding]:
    """What the Namespace allows; nothing where it may not be read."""
    try:
        said = namespace_record(await kube.get(paths.NAMESPACES.named(namespace), Bare))
    except (Forbidden, NotFound):
        return []
    if said is None:
        return []
    uids = {one.metadata.uid for one in await _all(kube, paths.POOLS.within(namespace), WorkerPool)}
    held = {one.name for one in map(node_record, nodes) if uids & one.claims.keys()}
    held |= {pod.spec.node_name for pod in pods if pod.spec.node_name}
    placeholders = sum(bool(pod.metadata.label(names.PLACEHOLDER_LABEL)) for pod in pods)
    return list(pool_checks.quota_findings(namespace, said.quota, len(held), placeholders))


async def _situation(kube: "Kube", settings: Settings, namespace: str, name: str) -> tuple[Situation, list[Event]]:
    try:
        pod = await kube.get(paths.PODS.named(name, namespace), Pod)
    except NotFound:
        return Situation(None), []
    pool_name = pod.metadata.label(names.PLACEHOLDER_LABEL) or pod.metadata.label(settings.substrate.pool_label)
    bound = bool(pod.spec.node_name)
    pool, node, atelets, events = await asyncio.gather(
        _pool(kube, namespace, pool_name),
        _node(kube, pod.spec.node_name),
        _atelets(kube, settings) if bound else _nothing(),
        _events(kube, paths.CORE_EVENTS.within(namespace), f"involvedObject.uid={pod.metadata.uid}"),
    )
    return Situation(pod, pool, node, tuple(atelets)), events


async def _events(kube: "Kube", path: str, field: str) -> list[Event]:
    """The last few, oldest first; none where they may not be read."""
    try:
        events = await _all(kube, path, Event, {"fieldSelector": field})
    except KubeError:
        return []
    events.sort(key=lambda event: event.last_timestamp or event.event_time or "")
    return events[-EVENTS:]


async def _all(kube: "Kube", path: str, type_: type[T], query: Mapping[str, str] | None = None) -> list[T]:
    return [one async for one in kube.list(path, type_, query=query)]


async def _nothing() -> list[Pod]:
    return []


async def _pool(kube: "Kube", namespace: str, name: str) -> WorkerPool | None:
    try:
        return await kube.get(paths.POOLS.named(name, namespace), WorkerPool) if name else None
    except NotFound:
        return None


async def _node(kube: "Kube", name: str) -> Node | None:
    try:
        return await kube.get(paths.NODES.named(name), Node) if name else None
    except NotFound:
        return None


async def _atelets(kube: "Kube", settings: Settings) -> list[Pod]:
    substrate = settings.substrate
    path = paths.PODS.within(substrate.atelet_namespace)
    # Not by spec.nodeName: a Pending one says only in its affinity for which node it was made.
    return await _all(kube, path, Pod, {"labelSelector": substrate.atelet_selector})


@app.command()
def pod(
    pod: Annotated[str, typer.Argument(metavar="[NAMESPACE/]NAME", help="The pod.")],
    *,
    namespace: Namespace = "",
    flags: Set = [],  # noqa: B006 - typer's way
    file: File = "",
    output: Output = "table",
    extender_urls: Urls = [],  # noqa: B006
) -> None:
    """Say why a pod is where it is, or why it is nowhere: what the API shows, and what the extenders decided.

    Example: `ateplace explain pod demo/web-deployment-5c7f9d-x2x4z`

    Exit codes: 0 explained; 1 there is no such pod and no extender remembers one, or the cluster could not be read; 2
    wrong usage.
    """
    where, name = _split(pod, namespace)
    _print(
        connected(
            lambda settings, kube: explain(kube, settings, where or kube.namespace, name, extender_urls), flags, file
        ),
        output,
    )


@app.command()
def node(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node.")],
    *,
    flags: Set = [],  # noqa: B006
    file: File = "",
    output: Output = "table",
    extender_urls: Urls = [],  # noqa: B006
) -> None:
    """Say why a node is open, for which pools and until when, or why it is not.

    Example: `ateplace explain node node-0003`

    Exit codes: 0 explained; 1 there is no such node, or the cluster could not be read; 2 wrong usage.
    """
    _print(connected(lambda settings, kube: explain_node(kube, settings, name, extender_urls), flags, file), output)


@app.command()
def pool(
    pool: Annotated[str, typer.Argument(metavar="[NAMESPACE/]NAME", help="The WorkerPool.")],
    *,
    namespace: Namespace = "",
    flags: Set = [],  # noqa: B006
    file: File = "",
    output: Output = "table",
) -> None:
    """Say what a pool holds and what it waits for.

    Example: `ateplace explain pool demo/web`

    Exit codes: 0 explained; 1 there is no such pool, or the cluster could not be read; 2 wrong usage.
    """
    where, name = _split(pool, namespace)
    _print(
        connected(lambda settings, kube: explain_pool(kube, settings, where or kube.namespace, name), flags, file),
        output,
    )


def _split(given: str, namespace: str) -> tuple[str, str]:
    """Namespace and name of an argument; the namespace is empty when neither it nor the option has one."""
    first, slash, rest = given.partition("/")
    where, name = (first, rest) if slash else (namespace, first)
    if (slash and not where) or not name:
        raise typer.BadParameter(f"{given!r} is not NAMESPACE/NAME: neither may be empty")
    return where, name


def _print(found: Explanation, output: str) -> None:
    if output == "json":
        print_json(found.as_data())
        return
    terminal = console()
    terminal.print(text(f"{found.kind} {found.name}", "bold"))
    terminal.print(table(found.findings, checks=False))
    if found.decisions:
        terminal.print(Text("\nWhat the extenders decided", style="bold"))
        terminal.print(_decisions(found.decisions))
    elif found.kind == "pod":
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
