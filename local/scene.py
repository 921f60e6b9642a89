"""`ateplace up`: a control plane, Agent Substrate's stand-ins and ateplace, at work before one's eyes."""

import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
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
from local import commands, picture, substrate
from local.api import ApiError
from local.picture import Picture
from local.plane import ControlPlane
from local.pods import Installation
from local.progress import say
from local.realnode import RealNode, unfit
from local.witness import Witness

OVERLAY = Path(__file__).parents[1] / "deploy" / "overlays" / "second-scheduler"
NAMESPACE, POOL = "demo", "web"
ATEOM = {"requests": {"cpu": "500m", "memory": "512Mi"}}
REAL_ATEOM = {"requests": {"cpu": "100m", "memory": "32Mi"}}
FEW, MANY = 3, 60
LAST_LINES = 12
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


SCENARIO = scenario(FEW, MANY, 4, resources=ATEOM)
REAL_SCENARIO = scenario(2, 8, 1, resources=REAL_ATEOM, nodeSelector={commands.REAL: "true"})
"""Small enough for one real node on two cores."""


def play(nodes: int, once: bool, shape: str = "new", real_node: bool = False) -> int:
    """Bring everything up, show it, and play the scenario; the exit code.

    With `real_node`, ateoms are real processes on a node with a kubelet, beside the pretended ones, in the old shape.
    """
    if not OVERLAY.exists():
        raise LocalError("`ateplace up` needs the manifests in deploy/, which are not beside this package")
    if real_node and (reason := unfit()):
        raise LocalError(reason.reason)
    began = time.monotonic()
    steps = REAL_SCENARIO if real_node else SCENARIO
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(nodes=nodes, start_delay=0.5, real_nodes=real_node, say=say))
        if real_node:
            real = stack.enter_context(RealNode(plane))
            plane.wait(real.ready, timeout=120, why="the real node to be Ready", every=0.2)
        say(f"{nodes + real_node} nodes Ready after {time.monotonic() - began:.1f} s")
        substrate.use(plane, substrate.OLD if real_node else substrate.SHAPES[shape])
        substrate.install(plane)
        installed = Installation(plane, OVERLAY, reconciler__linger=LINGER)
        installed.start()
        plane.wait(installed.ready, timeout=120, why="ateplace to be ready")
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
    """The last words of everything, for whoever has to find out why a step went wrong."""
    for log in sorted((plane.directory / "logs").glob("ate*.log")):
        say(f"{log.stem} said last:")
        for line in log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:]:
            say(f"  {line[:400]}")


def _live(plane: ControlPlane, installed: Installation, steps: Sequence[Step]) -> None:
    """Show the cluster until Ctrl-C, and play the scenario's first steps meanwhile."""
    told: deque[str] = deque(maxlen=8)
    console = Console()
    plain = not console.is_terminal
    header = _header(plane, installed, real=steps is REAL_SCENARIO)
    console.print(header)
    last = picture.take(plane.api)
    moments = list(zip((3.0, 8.0, 16.0), steps, strict=False))
    began = time.monotonic()
    try:
        with Live(console=console, auto_refresh=False, transient=True) if not plain else ExitStack() as live:
            while True:
                fresh: list[str] = []
                if moments and time.monotonic() - began > moments[0][0]:
                    fresh += attempt(moments.pop(0)[1], plane)
                try:
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


def attempt(step: Step, plane: ControlPlane) -> list[str]:
    """Take a step and tell of it. It may be impossible by now: whoever watches has a hand in this cluster too."""
    try:
        step.act(plane)
    except (httpx.HTTPError, ApiError) as error:
        return [f"» {step.what}: not done, {error}"]
    return [f"» {step.what}"]


def _header(plane: ControlPlane, installed: Installation, *, real: bool) -> Group:
    lines = [
        "ateplace is up; Ctrl-C stops everything. In another terminal:",
        "",
        f"  export KUBECONFIG={plane.kubeconfig}",
        f"  kubectl scale workerpool/{POOL} -n {NAMESPACE} --replicas=40",
        "  kubectl get nodes -L ate.dev/atelet",
    ]
    if real:
        lines += [
            f"  kubectl logs -n {NAMESPACE} -l {names.POOL_LABEL}={POOL} --all-containers",
            f"  kubectl exec -n {NAMESPACE} -it POD -- sh",
        ]
    lines += [f"  curl {pod.url('/readyz')}   # {name}" for name, pod in installed.pods.items() if name != "scheduler"]
    if not shutil.which("kubectl"):
        lines.insert(3, f"  alias kubectl={plane.binaries['kubectl']}")
    return Group(*lines, "")
