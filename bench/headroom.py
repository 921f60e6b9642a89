"""What headroom is good for, in seconds, with everything real but the kubelets and the cloud.

    make bench-headroom                          figures, and docs/images/headroom.svg drawn from the run
    make bench-headroom ARGS="--runs 1"

1. The burst of seven on four full nodes with a headroom of five (`local.burst`): a table of time and counts, a picture.
2. Create to bound of seven ateoms, at once and one after another: with free room, with headroom only (a placeholder
   must go for every one), with neither and an autoscaler that takes 30 s. At once, a full cluster with headroom may
   take three times as long as free room. Beside it what preempting costs the stock scheduler: seven pods of the same
   size and priority, one after another (at once, it forgets some of them for minutes), with free room and with a
   Deployment of low-priority pods in their place, as an overprovisioner without us has it. One after another, our
   factor against free room may be 1.25 times that one: then every ateom has a failed attempt before it.
3. Bound to a Ready atelet on that node, with warm and with plain headroom; atelet takes 5 s to start. With warm
   headroom it must be 0 s, for every single one.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.burst import BURST, SLOT, SLOTS, Recorder, Stage, is_ready
from ateplace.local.headroom_scene import experiment, timeline
from ateplace.local.kubelets import START_DELAY
from ateplace.local.pods import Installation
from ateplace.local.progress import say
from ateplace.local.scene import OVERLAY
from ateplace.local.witness import Witness
from bench.chart import Line, draw
from bench.recorder import Recorder as Watched

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "headroom.svg"
MOST = 1.25
"""How many times the stock scheduler's own factor (full against free room) ours may be, one ateom after another."""
WANTED = 3.0
"""How many times as long as with free room a burst at once may take."""
AUTOSCALER, ATELET = 30.0, 5.0
"""Seconds that a new node takes, and a new atelet."""
LOW, HIGH, STOCK, VICTIM = "bench-low", "bench-high", "bench.example/stock", "bench.example/victim"
COLOURS = {
    "ateoms": "#1f77b4",
    "waiting": "#d62728",
    "placeholders": "#2ca02c",
    "pending": "#ff7f0e",
    "nodes": "#8c8c8c",
}
NAMES = {"ateoms": "ateoms bound", "waiting": "ateoms waiting", "pending": "placeholders pending"}


@dataclass(frozen=True)
class Burst:
    """Seconds of each ateom."""

    bound: list[float]
    """From its creation."""
    served: list[float]
    """From then to a Ready atelet on its node."""
    whole: float
    """From the scaling of the pool to the last one bound: what an operator who scales it sees."""


class Bench:
    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.number = 0
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        never = {"preemptionPolicy": "Never"}
        # As important as ours, which a policy keeps from pods that are not ours.
        plane.apply([{**kind, "metadata": {"name": LOW}, "value": -10, **never}])
        plane.apply([{**kind, "metadata": {"name": HIGH}, "value": 1000}])

    @contextmanager
    def stage(self, *, headroom: int, free: int, warm: bool = True, nodes: int = 4) -> Iterator[Stage]:
        self.number += 1
        stage = Stage(self.plane, f"bench-{self.number}")
        stage.set_up(headroom=headroom, free=free, warm=warm, nodes=nodes)
        yield stage
        stage.tear_down()

    def burst(self, stage: Stage, *, at_once: bool = True) -> Burst:
        """Seven ateoms, at once or one after another, until each has an atelet."""
        with (
            Watched(self.plane, f"/api/v1/namespaces/{stage.namespace}/pods") as pods,
            Watched(self.plane, "/api/v1/namespaces/ate-system/pods") as atelets,
        ):
            there = {
                pod["spec"]["nodeName"]: 0.0
                for pod in self.plane.api.list("/api/v1/namespaces/ate-system/pods")
                if is_ready(pod) and stage.plane.api.exists(f"/api/v1/nodes/{pod['spec']['nodeName']}")
            }
            began = time.perf_counter()
            for count in (BURST,) if at_once else range(1, BURST + 1):
                stage.scale_and_wait(count)
            stage.wait(lambda _: stage.cold() == 0, "atelet on their nodes", timeout=60)
            time.sleep(0.5)  # for the last events to arrive here
            seen, served = pods.events(), atelets.events()
        ready = dict(there)
        for at, event in served:
            node = event["object"]["spec"].get("nodeName", "")
            if is_ready(event["object"]):
                ready.setdefault(node, at)
        created, bound = lives(seen, names.POOL_LABEL)
        return Burst(
            bound=[at - created[uid] for uid, (at, _) in bound.items()],
            served=[max(0.0, ready[node] - at) for at, node in bound.values()],
            whole=max(at for at, _ in bound.values()) - began,
        )

    def stock(self, stage: Stage, *, full: bool) -> Burst:
        """As many pods of the default scheduler, one after another, for each of which one must go when all is full: of
        a Deployment of pods with our placeholders' priority, which are made anew as ours are."""
        path = f"/api/v1/namespaces/{stage.namespace}/pods"
        if full:
            free = SLOTS * len(self.plane.api.list("/api/v1/nodes")) - sum(map(slots, self.plane.api.list(path)))
            low = overprovision(self.plane, stage.namespace, free, {"priorityClassName": LOW})
        high = {"priorityClassName": HIGH}

        with Watched(self.plane, path) as pods:
            began = time.perf_counter()
            for made in range(1, BURST + 1):
                self.plane.api.post(path, one_slot(f"high-{made}", {STOCK: "high"}, high))
                self.plane.wait(lambda made=made: bound_with(self.plane, path, STOCK) == made, 60, "all bound", 0.1)  # type: ignore[misc]
            time.sleep(0.5)  # for the last events to arrive here
            created, bound = lives(pods.events(), STOCK)
        if full:
            self.plane.api.delete(low)
        return Burst(
            bound=[at - created[uid] for uid, (at, _) in bound.items()],
            served=[0.0],
            whole=max(at for at, _ in bound.values()) - began,
        )

    def delay_atelet(self, seconds: float) -> None:
        note = {"metadata": {"annotations": {START_DELAY: f"{seconds:g}s"}}}
        path = substrate.daemonset(self.plane)
        self.plane.api.patch(path, {"spec": {"template": note}})

    def picture(self) -> None:
        """The experiment, printed and drawn."""
        with self.stage(headroom=5, free=7) as stage, Recorder(self.plane) as record:
            stage.start_autoscaler(delay=10, idle=10)
            time.sleep(2)  # so that the picture shows what was before
            took = experiment(self.plane, stage, record)
            end = record.now + 3
            Console().print(timeline(record))
            for what, seconds in took.items():
                say(f"{what} after {seconds:.1f} s")
        lines = [
            Line(
                NAMES.get(name, name),
                colour,
                [(at, getattr(seen, name)) for at, seen in record.rows],
                dashed=name == "nodes",
            )
            for name, colour in COLOURS.items()
        ]
        title = "Seven ateoms arrive on a full cluster with a headroom of five"
        IMAGE.parent.mkdir(parents=True, exist_ok=True)
        IMAGE.write_text(draw(title, lines, record.marks, end), "utf-8")
        say(f"drawn: {IMAGE}")


def lives(events: list[tuple[float, Object]], label: str) -> tuple[dict[str, float], dict[str, tuple[float, str]]]:
    """Of every pod with this label: when it was created; when it was bound, and where."""
    created: dict[str, float] = {}
    bound: dict[str, tuple[float, str]] = {}
    for at, event in events:
        meta, node = event["object"]["metadata"], event["object"]["spec"].get("nodeName", "")
        if label in meta.get("labels", {}):
            created.setdefault(meta["uid"], at)
            if node:
                bound.setdefault(meta["uid"], (at, node))
    return created, bound


def overprovision(
    plane: ControlPlane, namespace: str, count: int, spec: Object, requests: Mapping[str, str] = SLOT
) -> str:
    """A Deployment of so many pods that give way, all on nodes, as an overprovisioner without us has it; its path."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    labels = {VICTIM: "low"}
    template = one_slot("", labels, spec, requests)
    wanted = {"replicas": count, "selector": {"matchLabels": labels}, "template": template}
    plane.api.post(path, {"metadata": {"name": "low"}, "spec": wanted})
    pods = f"/api/v1/namespaces/{namespace}/pods"
    plane.wait(lambda: bound_with(plane, pods, VICTIM) == count, timeout=60 + count / 10, why="a full cluster")
    return f"{path}/low"


def bound_with(plane: ControlPlane, pods: str, label: str) -> int:
    """How many pods with this label are on nodes."""
    return len(plane.api.list(pods, labelSelector=label, fieldSelector="spec.nodeName!="))


def one_slot(name: str, labels: dict[str, str], spec: Object, requests: Mapping[str, str] = SLOT) -> Object:
    container = {"name": "c", "image": "registry.example/c:1", "resources": {"requests": dict(requests)}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def slots(pod: Object) -> int:
    """How many slots a pod of ours takes."""
    cpu: str = pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    return (int(cpu.removesuffix("m")) if cpu.endswith("m") else 1000 * int(cpu)) // 500


def summary(what: str, bursts: list[Burst], table: Table) -> tuple[float, float]:
    """One row; the median ateom's time, and the median burst's."""
    slowest = statistics.median(max(one.bound) for one in bursts)
    middle = statistics.median(second for one in bursts for second in one.bound)
    late = [second for one in bursts for second in one.served]
    cells = (f"{middle:.2f}", f"{slowest:.2f}", f"{statistics.median(late):.2f}", f"{max(late):.2f}")
    whole = statistics.median(one.whole for one in bursts)
    table.add_row(what, str(len(bursts)), *cells[:2], f"{whole:.2f}", *cells[2:])
    return middle, whole


def ratios(free: tuple[float, float], full: tuple[float, float]) -> tuple[float, float]:
    """How many times as long it takes where everything is full."""
    return full[0] / free[0], full[1] / free[1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.headroom", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="bursts of each kind (one without headroom)")
    runs = parser.parse_args().runs
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(start_delay=0.3, say=say))
        substrate.install(plane)
        installed = Installation(plane, OVERLAY)
        installed.start()
        witness = stack.enter_context(Witness(plane))
        bench = Bench(plane)
        bench.picture()
        bench.delay_atelet(ATELET)
        free, full, plain, bare = [], [], [], []
        free_one, full_one = [], []
        stock_free, stock_full = [], []
        for _ in range(runs):
            with bench.stage(headroom=0, free=14) as stage:
                free.append(bench.burst(stage))
            with bench.stage(headroom=7, free=7) as stage:
                full.append(bench.burst(stage))
            with bench.stage(headroom=0, free=14) as stage:
                free_one.append(bench.burst(stage, at_once=False))
            with bench.stage(headroom=7, free=7) as stage:
                full_one.append(bench.burst(stage, at_once=False))
            with bench.stage(headroom=7, free=7, warm=False) as stage:
                plain.append(bench.burst(stage))
            with bench.stage(headroom=0, free=14) as stage:
                stock_free.append(bench.stock(stage, full=False))
            with bench.stage(headroom=0, free=7) as stage:
                stock_full.append(bench.stock(stage, full=True))
        with bench.stage(headroom=0, free=0) as stage:
            stage.start_autoscaler(delay=AUTOSCALER)
            bare.append(bench.burst(stage))
        table = Table(
            f"{BURST} ateoms",
            "runs",
            "create to bound, median (s)",
            "slowest",
            "scaled to all bound (s)",
            "bound to atelet Ready, median (s)",
            "slowest",
        )
        pairs = {
            "at once": (
                summary("at once, free room, no headroom", free, table),
                summary("at once, full, warm headroom of 7", full, table),
            ),
            "one after another": (
                summary("one after another, free room, no headroom", free_one, table),
                summary("one after another, full, warm headroom of 7", full_one, table),
            ),
        }
        summary("at once, full, plain headroom of 7", plain, table)
        without = summary(f"at once, full, no headroom, a node takes {AUTOSCALER:.0f} s", bare, table)
        limit, _ = ratios(
            summary("one after another, stock scheduler, free room", stock_free, table),
            summary("one after another, stock scheduler, full of low-priority pods", stock_full, table),
        )
        Console(width=150).print(table)
        figures: dict[str, object] = {}
        for how, pair in pairs.items():
            one, whole = ratios(*pair)
            say(f"{how}: {one:.1f} × the time with free room from create to bound, {whole:.1f} × in all")
            figures[how] = {"create to bound": round(one, 2), "in all": round(whole, 2)}
        early = [complaint for complaint in witness.violations() if "-headroom-" not in complaint]
        against = ratios(*pairs["one after another"])[0] / limit
        say(f"the stock scheduler, one after another: {limit:.1f} × the time with free room")
        factor, saved = ratios(*pairs["at once"])[0], ratios(pairs["at once"][1], without)[0]
        say(f"at once, create to bound: without headroom {saved:.0f} × the time with it")
        cold = max(second for one in (*full, *full_one) for second in one.served)
        figures |= {
            "at once, against free room": round(factor, 2),
            "at once, target": WANTED,
            "without headroom, against with": round(saved, 1),
            "warm, bound to atelet Ready, slowest": round(cold, 3),
            "stock, one after another": round(limit, 2),
            "one after another, against stock": round(against, 2),
            "one after another, target": MOST,
            "bindings": witness.bound,
            "bound before claimed": len(early),
        }
        good = factor <= WANTED and against <= MOST and not early and cold == 0
        print(json.dumps({"bench": "headroom", **figures, "ok": good}, ensure_ascii=False))
        raise SystemExit(not good)


if __name__ == "__main__":
    main()
