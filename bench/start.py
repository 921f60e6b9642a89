"""How long an ateom takes to start on a real node, in parts, against the same pod without ateplace.

    make bench-start                          figures, and docs/images/start.svg drawn from the run
    make bench-start ARGS="--runs 3 --set webhook__init_cpu=10m"
    make bench-start KUBERNETES=1.37 ARGS="--evented-pleg --no-image"

1. Warm: atelet serves on the node. Pods of both kinds are created in turns, one at a time, at random moments, because
   kubelet looks at containers once a second; the parts are medians. With ateplace, create to Running may take half a
   second more than without.
2. Cold: the node has no atelet, which takes 3 s to serve once its container has started. An ateom cannot run before
   that; what comes on top is ours.

The times of containers are those in containerd's log, all others are taken here; both are of one clock.
The last line is JSON; the exit code is 1 when the target is missed.
"""

import argparse
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.commands import REAL
from ateplace.local.pods import Installation
from ateplace.local.progress import say
from ateplace.local.realnode import RealNode, unfit
from ateplace.local.scene import OVERLAY
from bench import bars
from bench.recorder import Recorder

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "start.svg"
NAMESPACE, POOL = "bench", "web"
PODS, ATELETS = f"/api/v1/namespaces/{NAMESPACE}/pods", "/api/v1/namespaces/ate-system/pods"
ATELET_SECONDS, MOST = 3.0, 0.5
SERVES = "atelet serves"
WITHOUT, WITH = "without ateplace", "with ateplace"

ADMISSION, SCHEDULING, SANDBOX = "admission, stored", "scheduling", "pod sandbox"
INIT_STARTS, INIT_RUNS, NOTICED = "wait-for-atelet starts", "wait-for-atelet runs", "kubelet notices its end"
STARTS, REPORTED, READY = "ateom starts", "reported Running", "reported Ready"
TO_RUNNING = (ADMISSION, SCHEDULING, SANDBOX, INIT_STARTS, INIT_RUNS, NOTICED, STARTS, REPORTED)
PARTS = (*TO_RUNNING, READY)

LINE = re.compile(r'^time="(?P<at>[^"]+)" level=\w+ msg="(?P<message>.*?)"(?: id=(?P<id>\w+))?(?: |$)')
NAME = r'(?:&\w+{Name:|name:\\")([^,\\]+)'
"""As containerd 1 and 2 write it."""
SANDBOX_MADE = re.compile(rf"RunPodSandbox for {NAME}.* returns sandbox id .\"(\w+)")
REQUESTED = re.compile(rf"CreateContainer within sandbox .\"(\w+).\" for container {NAME}")
CREATED = re.compile(rf"within sandbox .\"(\w+).\" for {NAME}.* returns container id .\"(\w+)")
STARTED = re.compile(r"StartContainer for .\"(\w+).\" returns successfully")


def containers(log: str) -> dict[tuple[str, str], float]:
    """When what happened, by containerd's log: `(pod, "sandbox")`, and `(pod, "<container> requested")`, `started` and
    `ended`."""
    found: dict[tuple[str, str], float] = {}
    pods: dict[str, str] = {}
    own: dict[str, tuple[str, str]] = {}
    for line in map(LINE.match, log.splitlines()):
        if line is None:
            continue
        at, message = datetime.fromisoformat(line["at"]).timestamp(), line["message"]
        if made := SANDBOX_MADE.search(line.string):
            pods[made[2]] = made[1]
            found[made[1], "sandbox"] = at
        elif (asked := REQUESTED.search(line.string)) and asked[1] in pods:
            found[pods[asked[1]], f"{asked[2]} requested"] = at
        elif (made := CREATED.search(line.string)) and made[1] in pods:
            own[made[3]] = (pods[made[1]], made[2])
        elif (started := STARTED.search(line.string)) and started[1] in own:
            pod, container = own[started[1]]
            found[pod, f"{container} started"] = at
        elif message == "shim disconnected" and line["id"] in own:
            pod, container = own[line["id"]]
            found[pod, f"{container} ended"] = at
    return found


def is_ready(pod: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))


def to_running(parts: dict[str, float]) -> float:
    return sum(parts.get(part, 0.0) for part in TO_RUNNING)


def to_ready(parts: dict[str, float]) -> float:
    return sum(parts.values())


class Bench:
    """A plane with one real node and ateplace as processes."""

    def __init__(self, plane: ControlPlane, node: RealNode) -> None:
        self.plane, self.node = plane, node
        self.log = plane.log(f"{node.name}-containerd")
        self.number = 0

    def start(self, *, pool: str = "") -> tuple[str, dict[str, float]]:
        """One pod, of a pool or of none, until it is Ready; its name, and how long each part took."""
        self.number += 1
        name = f"start-{self.number}"
        labels = {names.POOL_LABEL: pool} if pool else {}
        body: Object = {"metadata": {"name": name, "labels": labels}, "spec": self.spec}
        with Recorder(self.plane, PODS) as pods:
            offset = time.time() - time.perf_counter()
            sent = time.time()
            self.plane.api.post(PODS, body)
            stored = time.time()
            path = f"{PODS}/{name}"
            self.plane.wait(lambda: is_ready(self.plane.api.get(path)), timeout=60, every=0.1)
            pods.reach_present()
            events = [(at + offset, event["object"]) for at, event in pods.events()]
        mine = [(at, pod) for at, pod in events if pod["metadata"]["name"] == name]
        bound = next(at for at, pod in mine if pod["spec"].get("nodeName"))
        running = next(at for at, pod in mine if pod["status"]["phase"] == "Running")
        ready = next(at for at, pod in mine if is_ready(pod))
        made = containers(self.log.read_text())
        moments = [(ADMISSION, stored), (SCHEDULING, bound), (SANDBOX, made[name, "sandbox"])]
        if pool:
            moments += [
                (INIT_STARTS, made[name, f"{names.INIT_CONTAINER} started"]),
                (INIT_RUNS, made[name, f"{names.INIT_CONTAINER} ended"]),
                (NOTICED, made[name, "ateom requested"]),
            ]
        moments += [(STARTS, made[name, "ateom started"]), (REPORTED, running), (READY, ready)]
        parts, before = {}, sent
        for part, at in moments:
            parts[part], before = max(0.0, at - before), max(at, before)
        return name, parts

    def end(self, name: str) -> None:
        self.plane.api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 1})
        self.plane.wait(lambda: not self.plane.api.exists(f"{PODS}/{name}"), timeout=60, why="its end", every=0.1)

    def prepare(self) -> None:
        """A pool whose one ateom keeps atelet on the node; its pods are what is measured."""
        substrate.pool(self.plane, NAMESPACE, POOL, 1, nodeSelector={REAL: "true"})
        self.plane.wait(lambda: self._running(PODS) == 1, timeout=120, why="the first ateom", every=0.1)
        (replicaset,) = self.plane.api.list(f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets")
        self.spec: Object = replicaset["spec"]["template"]["spec"]

    def warm(self, runs: int) -> dict[str, list[dict[str, float]]]:
        """Both kinds in turns."""
        found: dict[str, list[dict[str, float]]] = {WITHOUT: [], WITH: []}
        for _ in range(runs):
            for kind, pool in ((WITHOUT, ""), (WITH, POOL)):
                time.sleep(random.random())  # noqa: S311 - no secret
                name, parts = self.start(pool=pool)
                found[kind].append(parts)
                self.end(name)
        return found

    def cold(self, runs: int) -> list[dict[str, float]]:
        """Create to Running and to Ready on a node without atelet, and how much of each came after atelet served."""
        env = [{"name": "DELAY", "value": f"{ATELET_SECONDS:g}"}]
        container = {"spec": {"template": {"spec": {"containers": [{"name": "atelet", "env": env}]}}}}
        self.plane.api.patch(substrate.daemonset(self.plane), container, "strategic")
        substrate.scale(self.plane, NAMESPACE, POOL, 0)
        found = []
        for _ in range(runs):
            self.plane.wait(
                lambda: not self.plane.api.list(PODS) and not self.plane.api.list(ATELETS),
                timeout=120,
                why="a cold node",
                every=0.2,
            )
            began = time.time()
            name, parts = self.start(pool=POOL)
            made = containers(self.log.read_text())
            served = max(at for (_, what), at in made.items() if what == "atelet started") + ATELET_SECONDS
            whole = {"Running": to_running(parts), "Ready": to_ready(parts), SERVES: served - began}
            found.append(whole)
            self.end(name)
        return found

    def _running(self, path: str) -> int:
        return sum(pod["status"]["phase"] == "Running" for pod in self.plane.api.list(path))


def report(warm: dict[str, list[dict[str, float]]], cold: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Print medians, and the least and the most; the medians of the warm node, by kind."""
    found = {kind: {part: [run.get(part, 0.0) for run in runs] for part in PARTS} for kind, runs in warm.items()}
    table = Table("warm node, seconds: median (least to most)", *found, box=None, pad_edge=False)
    for part in PARTS:
        table.add_row(part, *(_range(parts[part]) for parts in found.values()))
    for name, measure in (("Running", to_running), ("Ready", to_ready)):
        whole = {kind: [measure(run) for run in runs] for kind, runs in warm.items()}
        table.add_row(f"create to {name}", *map(_range, whole.values()))
        more = statistics.median(whole[WITH]) - statistics.median(whole[WITHOUT])
        target = f" (the target is {MOST:g})" if measure is to_running else ""
        table.add_row(f"  more than without{target}", "", f"{more:.3f}")
    if cold:
        table.add_row()
        served = f"cold node: atelet serves, {ATELET_SECONDS:g} s after its start"
        table.add_row(served, "", _range(x[SERVES] for x in cold))
        for name in ("Running", "Ready"):
            table.add_row(f"create to {name}", "", _range(x[name] for x in cold))
            table.add_row("  of that after atelet serves", "", _range(x[name] - x[SERVES] for x in cold))
    Console(width=100).print(table)
    return {kind: {part: statistics.median(each) for part, each in parts.items()} for kind, parts in found.items()}


def figures(warm: dict[str, list[dict[str, float]]], cold: list[dict[str, float]]) -> dict[str, object]:
    """Medians, in seconds, and whether the target is met."""
    running, ready = _against(warm, to_running), _against(warm, to_ready)
    served = {key: round(statistics.median(run[key] for run in cold), 3) for key in cold[0]} if cold else {}
    return {"create to Running": running, "create to Ready": ready, "cold": served, "ok": running["more"] <= MOST}


def _against(warm: dict[str, list[dict[str, float]]], measure: Callable[[dict[str, float]], float]) -> dict[str, float]:
    without, ours = (statistics.median(map(measure, warm[kind])) for kind in (WITHOUT, WITH))
    told = {WITHOUT: without, WITH: ours, "more": ours - without, "ratio": ours / without}
    return {key: round(value, 3) for key, value in told.items()}


def _range(seconds: Iterable[float]) -> str:
    """The median, the least and the most; nothing for a part that a kind does not have."""
    each = sorted(seconds)
    return f"{statistics.median(each):.3f} ({each[0]:.2f} to {each[-1]:.2f})" if each[-1] else ""


def main() -> int:
    """0 when the target is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="pods of each kind on the warm node")
    parser.add_argument("--cold", type=int, default=3, help="cold starts")
    parser.add_argument(
        "--set", action="append", default=[], metavar="GROUP__FIELD=VALUE", help="a setting of ateplace"
    )
    parser.add_argument(
        "--evented-pleg",
        action="store_true",
        help="containerd 2, which tells kubelet of ended containers (alpha, off by default; from Kubernetes 1.37 on)",
    )
    parser.add_argument("--no-image", action="store_true", help="leave the picture as it is")
    given = parser.parse_args()
    if reason := unfit():
        sys.exit(reason)
    settings = dict(each.split("=", 1) for each in given.set)
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(real_nodes=True, say=say))
        plane.add_nodes(1, prefix="pretended")
        substrate.install(plane)
        installed = Installation(plane, OVERLAY, reconciler__linger=2.0, **settings)
        installed.start()
        plane.wait(installed.ready, timeout=120, why="ateplace to be ready")
        gates = {"EventedPLEG": given.evented_pleg}
        node = stack.enter_context(RealNode(plane, containerd_2=given.evented_pleg, featureGates=gates))
        plane.wait(node.ready, timeout=120, why="the node to be Ready", every=0.2)
        say("the node is Ready")
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        bench = Bench(plane, node)
        bench.prepare()
        warm = bench.warm(given.runs)
        cold = bench.cold(given.cold)
    rows = report(warm, cold)
    if not given.no_image:
        title = f"From creating an ateom to Ready, on a node where atelet serves (medians of {given.runs} pods)"
        IMAGE.write_text(bars.draw(title, PARTS, rows))
    told = figures(warm, cold)
    print(json.dumps({"bench": "start", **told}))
    return int(not told["ok"])


if __name__ == "__main__":
    sys.exit(main())
