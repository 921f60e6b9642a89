"""`ateplace up`: a control plane, Agent Substrate's stand-ins and ateplace, at work before one's eyes."""

import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ateplace import names
from ateplace.errors import LocalError
from ateplace.local import commands, picture, substrate
from ateplace.local.api import ApiError
from ateplace.local.picture import Picture
from ateplace.local.plane import ControlPlane
from ateplace.local.pods import Installation
from ateplace.local.program import ateplace
from ateplace.local.progress import say
from ateplace.local.realnode import RealNode, unfit
from ateplace.local.witness import Witness

OVERLAY = Path(__file__).parents[1] / "deploy" / "overlays" / "second-scheduler"
NAMESPACE, POOL = "demo", "web"
TEMPLATE = {"resources": {"requests": {"cpu": "500m", "memory": "512Mi"}}}
FEW, MANY = 3, 60
REAL_TEMPLATE = {"resources": {"requests": {"cpu": "100m", "memory": "32Mi"}}, "nodeSelector": {commands.REAL: "true"}}
REAL_FEW, REAL_MANY = 2, 8
"""Small enough for one real node on two cores."""
LAST_LINES = 12
CONFLICT = 409
LINGER = 3.0
"""Seconds that an unused claim stays: short here, so that one sees it go (120 s by default)."""


@dataclass
class Step:
    """One step of the scenario, and what must come of it."""

    what: str
    act: Callable[[ControlPlane], object]
    ateoms: int
    nodes: int
    """Most nodes that may have ateoms."""
    pool: bool = True

    def outcome(self, now: Picture) -> str:
        """Empty when the cluster is as it should be after this step, else what is missing."""
        bound = sum(row.ateoms.total() for row in now.nodes.values())
        ready = {name for name, row in now.nodes.items() if row.atelet == "ready"}
        if bool(now.pools) != self.pool:
            return f"the pool {'is gone' if self.pool else 'is still there'}"
        if bound != self.ateoms or now.waiting:
            return f"{bound} of {self.ateoms} ateoms on nodes, {now.waiting} waiting"
        if not now.claimed == now.with_ateoms == ready == now.with_atelet:
            return (
                f"ateoms on {len(now.with_ateoms)} nodes, claims on {len(now.claimed)}, "
                f"atelet on {len(now.with_atelet)} ({len(ready)} ready)"
            )
        if {name for name, row in now.nodes.items() if row.labelled} != now.claimed:
            return "the label and the claims do not agree"
        return f"ateoms on {len(ready)} nodes, at most {self.nodes} needed" if len(ready) > self.nodes else ""


def scenario(few: int, many: int, most_nodes: int, **template: Any) -> tuple[Step, ...]:
    """A pool comes, grows over `most_nodes`, shrinks and goes; `template` as a WorkerPool's."""
    return (
        Step(
            f"pool of {few} created",
            lambda plane: substrate.pool(plane, NAMESPACE, POOL, few, **template),
            ateoms=few,
            nodes=1,
        ),
        Step(
            f"scaled up to {many}",
            lambda plane: substrate.scale(plane, NAMESPACE, POOL, many),
            ateoms=many,
            nodes=most_nodes,
        ),
        Step(
            f"scaled down to {few}",
            lambda plane: substrate.scale(plane, NAMESPACE, POOL, few),
            ateoms=few,
            nodes=min(few, most_nodes),
        ),
        Step("pool deleted", lambda plane: substrate.delete(plane, NAMESPACE, POOL), ateoms=0, nodes=0, pool=False),
    )


SCENARIO = scenario(FEW, MANY, 4, **TEMPLATE)
REAL_SCENARIO = scenario(REAL_FEW, REAL_MANY, 1, **REAL_TEMPLATE)


def play(nodes: int, once: bool, shape: str = "new", real_node: bool = False) -> int:
    """Bring everything up, show it, and play the scenario; the exit code.

    With `real_node`, ateoms are real processes on a node with a kubelet, beside the pretended ones.
    """
    if not OVERLAY.exists():
        raise LocalError("`ateplace up` needs the manifests in deploy/, which are not beside this package")
    if real_node and (reason := unfit()):
        raise LocalError(reason)
    began = time.monotonic()
    steps = REAL_SCENARIO if real_node else SCENARIO
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(nodes=nodes, start_delay=0.5, real_nodes=real_node, say=say))
        if real_node:
            real = stack.enter_context(RealNode(plane))
            plane.wait(real.ready, timeout=120, why="the real node to be Ready", every=0.2)
        say(f"{nodes + real_node} nodes Ready after {time.monotonic() - began:.1f} s")
        substrate.use(plane, substrate.SHAPES[shape])
        substrate.install(plane)
        installed = Installation(plane, OVERLAY, reconciler__linger=LINGER)
        installed.start()
        say(f"ateplace ready after {time.monotonic() - began:.1f} s")
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        witness = stack.enter_context(Witness(plane))
        if once:
            code = _once(plane, witness, steps)
            if code:
                _show_logs(plane)
            return code
        _live(plane, installed, steps)
    return 0


def _once(plane: ControlPlane, witness: Witness, steps: Sequence[Step]) -> int:
    """Every step, its outcome checked, a line as it happens; then a summary."""
    last = picture.take(plane.api)
    rows: list[tuple[str, float, str]] = []
    for step in steps:
        say(step.what)
        began = time.monotonic()
        step.act(plane)
        trouble = "never looked"
        while trouble and time.monotonic() - began < 120:
            now = picture.take(plane.api)
            for line in picture.changes(last, now):
                say(f"  {line}")
            last, trouble = now, step.outcome(now)
            time.sleep(0.1)
        rows.append((step.what, time.monotonic() - began, trouble or "as it should be"))
        if trouble:
            break
    early = witness.violations()
    table = Table("step", "seconds", "outcome", box=None, pad_edge=False)
    for what, took, outcome in rows:
        table.add_row(what, f"{took:.1f}", outcome)
    table.add_row("bound before claimed", "", f"{len(early)} of {witness.bound} bindings")
    Console().print(table)
    return int(bool(early) or any(outcome != "as it should be" for _, _, outcome in rows))


def _show_logs(plane: ControlPlane) -> None:
    """The last words of everything, for finding out why a step went wrong."""
    for log in sorted((plane.directory / "logs").glob("ate*.log")):
        say(f"{log.stem} said last:")
        for line in log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:]:
            say(f"  {line[:400]}")


def _live(plane: ControlPlane, installed: Installation, steps: Sequence[Step]) -> None:
    """Show the cluster until Ctrl-C, and play the scenario's first steps meanwhile."""
    told: deque[str] = deque(maxlen=8)
    console = Console()
    plain = not console.is_terminal
    real = steps is REAL_SCENARIO
    header = _header(plane, installed, start_map(plane, LINGER), real=real)
    console.print(header)
    last = picture.take(plane.api)
    script = Script(REAL_FEW, REAL_MANY, REAL_TEMPLATE) if real else Script()
    began = time.monotonic()
    try:
        with Live(console=console, auto_refresh=False, transient=True) if not plain else ExitStack() as live:
            while True:
                fresh: list[str] = []
                try:
                    fresh += script.play(plane, time.monotonic() - began)
                    now = picture.take(plane.api)
                except (httpx.HTTPError, ApiError) as error:
                    fresh.append(f"! {error}")
                    now = last
                fresh += picture.changes(last, now)
                told.extend(fresh)
                last = now
                if isinstance(live, Live):
                    live.update(Group(picture.draw(now), Text(), *told), refresh=True)
                else:
                    for line in fresh:
                        say(line)
                time.sleep(0.4)
    except KeyboardInterrupt:
        say("stopping everything")


class Script:
    """What a live scene does by itself: it creates a pool, scales it up and down again, and hands the cluster over.

    The user has a hand in this cluster from the start. A pool that is not as the scene left it is the user's: the scene
    changes nothing any more and hands over at once.
    """

    def __init__(self, few: int = FEW, many: int = MANY, template: Mapping[str, Any] = TEMPLATE) -> None:
        self._few = few
        self._template = template
        self._moments: tuple[tuple[float, int | None, int], ...] = (
            (3.0, None, few),
            (8.0, few, many),
            (16.0, many, few),
        )
        """Seconds after the start, the replicas that the scene left behind (None: no pool), and those that it sets."""
        self._next = 0
        self._over = False

    def play(self, plane: ControlPlane, seconds: float) -> list[str]:
        """Do what is due, in words. An error of the API leaves it due."""
        if self._over:
            return []
        if self._next == len(self._moments):
            return self._hand_over(f"the pool keeps its {self._few} ateoms")
        due, left, wanted = self._moments[self._next]
        if seconds < due:
            return []
        if not _change(plane, left, wanted, self._template):
            return self._hand_over("you have changed the pool")
        self._next += 1
        how = "created with" if left is None else "scaled up to" if wanted > left else "scaled down to"
        return [f"» pool {how} {wanted} ateoms"]

    def _hand_over(self, why: str) -> list[str]:
        self._over = True
        return [
            f"» {why}: the scene is over; it is yours now:",
            f"    kubectl scale workerpool/{POOL} -n {NAMESPACE} --replicas=40",
        ]


def _change(plane: ControlPlane, left: int | None, wanted: int, template: Mapping[str, Any]) -> bool:
    """Create the pool (`left` None) or scale it, if it is as the scene left it; whether it was."""
    path = f"{substrate.POOLS.format(NAMESPACE)}/{POOL}"
    if left is None:
        if plane.api.exists(path):
            return False
        substrate.pool(plane, NAMESPACE, POOL, wanted, **template)
        return True
    while plane.api.exists(path):
        pool = plane.api.get(path)
        if pool["spec"]["replicas"] != left or pool["metadata"].get("deletionTimestamp"):
            return False
        version = {"resourceVersion": pool["metadata"]["resourceVersion"]}
        try:
            plane.api.patch(path, {"metadata": version, "spec": {"replicas": wanted}})
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            continue  # written meanwhile, perhaps only its status
        return True
    return False


def start_map(plane: ControlPlane, linger: float, *options: str, name: str = "map", listen: str = "127.0.0.1:0") -> str:
    """Serve the map of this plane for as long as it is up, as a process of that name; its address."""
    program, needed = ateplace(None)
    own = {"KUBECONFIG": str(plane.kubeconfig), "ATEPLACE_RECONCILER_LINGER": str(linger)}
    plane.run(name, [*program, "map", "--no-open", "--listen", listen, *options], needed | own)

    def address() -> str:
        found = re.search(r"http://[0-9.:]+/", plane.log(name).read_text("utf-8"))
        return found[0] if found else ""

    return plane.wait(address, timeout=60, why="the map to be served", every=0.1)


def hand_over(plane: ControlPlane, linger: float) -> None:
    """Leave the cluster to the user until Ctrl-C."""
    say("the scene is over; it is yours now, until Ctrl-C:")
    say(f"  export KUBECONFIG={plane.kubeconfig} ATEPLACE_RECONCILER_LINGER={linger:g}")
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        say("stopping everything")


def _header(plane: ControlPlane, installed: Installation, map_url: str, *, real: bool) -> Group:
    lines = [
        f"ateplace is up; Ctrl-C stops everything. The map: {map_url}",
        "In another terminal:",
        "",
        f"  export KUBECONFIG={plane.kubeconfig} ATEPLACE_RECONCILER_LINGER={LINGER:g}",
        f"  kubectl scale workerpool/{POOL} -n {NAMESPACE} --replicas=40",
        "  kubectl get nodes -L ate.dev/atelet",
        "  ateplace status --watch",
        f"  ateplace explain pool {NAMESPACE}/{POOL}",
    ]
    if real:
        lines += [
            f"  kubectl logs -n {NAMESPACE} -l {names.POOL_LABEL}={POOL} --all-containers",
            f"  kubectl exec -n {NAMESPACE} -it POD -- sh",
        ]
    lines += [f"  curl {pod.url('/readyz')}   # {name}" for name, pod in installed.pods.items() if name != "scheduler"]
    if not shutil.which("kubectl"):
        lines.insert(4, f"  alias kubectl={plane.binaries['kubectl']}")
    if not shutil.which("ateplace"):
        lines.insert(4, f"  alias ateplace={Path(sys.argv[0]).absolute()}")
    return Group(*lines, "")
