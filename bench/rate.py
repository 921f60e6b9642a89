"""Ateoms that keep coming, against the stock scheduler on pods of the same spec, in turns.

    make bench-rate                                   every case; more than an hour on two cores
    make bench-rate ARGS="--cases gate keynote"       these only
    make bench-rate ARGS="--cases sustained --nodes 100"

The cases, each from create to bound:

    sustained   so many pods a second for 30 s: the rate at which P99 reaches a second, found by a ladder of rates.
                Between the last rate under it and the first over it, P99 is taken to grow by a constant factor
    gate        75 pods a second for 10 s over 100 nodes, the load of agent-sandbox's continuous integration
    basic       1,000 pods at once over 5,000 nodes where 1,000 are already, scheduler_perf's SchedulingBasic
    keynote     25 nodes and 64 ateoms for each, all at once
    warm        300 ateoms at once onto 20 nodes that are full of 600 warm placeholders. Stock: a Deployment of 600 pods
                of the placeholders' size and priority in their place. It may forget some of such pods for minutes: only
                those bound within two minutes count, of both, and how many those are is told, as is how many
                placeholders went. Not all of ours is a miss

The last line is JSON; the exit code is 1 when a target is missed.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ateplace import names
from ateplace.local import substrate, webhooks
from ateplace.local.burst import is_ready
from ateplace.local.program import ateplace
from bench.burst import CPU
from bench.curves import Curve, draw
from bench.headroom import bound_with, overprovision
from bench.load import NAMESPACE, SMALL, STOCK, Bench, stage
from bench.recorder import Result

IMAGES = Path(__file__).parents[1] / "docs" / "images"
KINDS = ("stock", "extender")
COLOURS = {"stock": "#8c8c8c", "extender": "#1f77b4"}
SECONDS, LIMIT = 30, 1.0
"""How long a rate is kept up, and the P99 that it must keep under."""
LADDER = 1.4
SIXTY_FOUR = {**SMALL, "cpu": "120m"}
"""So many and one fit on a node."""
FIRST = {100: 100.0, 1000: 80.0, 5000: 50.0}
"""The ladder's first rate, by nodes."""
FAITHFUL = 0.95
"""The share of a rate that must really have been created; else the machine, not the scheduler, is the limit."""
SUSTAINED = {100: 0.95, 1000: 0.9, 5000: 0.8}
"""The least of stock's rate, by nodes."""
LEVEL = 1.1
"""The most of stock's p50 and p99 at agent-sandbox's gate."""
NODES, PLACEHOLDERS, ATEOMS = 20, 600, 300
SLOT = {"cpu": "260m", "memory": "100Mi"}
"""Thirty fit on a node with atelet, and no more without."""
PATIENCE = 120.0
"""Seconds after which what is not bound yet is left out."""


@dataclass(frozen=True)
class Outcome:
    """What one case has shown."""

    figures: dict[str, object]
    missed: list[str]


def on_stage(nodes: int, settings: dict[str, Any], play: Callable[[Bench], Outcome]) -> Outcome:
    with stage(nodes, Bench, **settings) as bench:
        for kind in KINDS:
            bench.run(kind, 30, SMALL)  # connections, caches
        return play(bench)


def sustained(bench: Bench, *, nodes: int, runs: int) -> Outcome:
    """The rate at which P99 reaches the limit, of both."""
    found: dict[str, dict[float, Result]] = {kind: {} for kind in KINDS}
    rate, open_ = FIRST.get(nodes, 50.0), set(KINDS)
    while open_:
        for kind in KINDS:
            if kind in open_:
                tries = [bench.run(kind, int(rate * SECONDS), SMALL, rate=rate) for _ in range(runs)]
                one = sorted(tries, key=lambda each: each.percentile(0.99))[len(tries) // 2]
                found[kind][rate] = one
                told = f"P50 {1000 * one.percentile(0.5):.0f} ms, P99 {1000 * one.percentile(0.99):.0f} ms"
                print(f"{nodes} nodes, {rate:.0f}/s {kind:8}: {told}, created {one.created:.0f}/s", flush=True)
                if one.percentile(0.99) > LIMIT or one.created < FAITHFUL * rate:
                    open_.remove(kind)
        rate *= LADDER
    most = {kind: reached(found[kind]) for kind in KINDS}
    ratio = most["extender"] / most["stock"]
    lines = [
        Curve(kind, COLOURS[kind], [(rate, one.percentile(0.99)) for rate, one in found[kind].items()])
        for kind in KINDS
    ]
    title = f"P99 from create to bound, seconds, by pods a second ({nodes:,} nodes)"
    (IMAGES / f"rate-{nodes}.svg").write_text(draw(title, lines, "/s", limit=LIMIT))
    cpu = [1000 * one.cpu["extender"] / len(one.seconds) for one in found["extender"].values()]
    figures: dict[str, object] = {
        **{f"{kind} pods/s": round(value, 1) for kind, value in most.items()},
        "ratio": round(ratio, 2),
        "extender CPU ms a pod": round(statistics.median(cpu), 2),
    }
    missed = [f"sustained, {nodes} nodes: {ratio:.2f} × of stock's rate"] if ratio < SUSTAINED.get(nodes, 0.0) else []
    return judged(f"sustained, {nodes} nodes", figures, list(found["extender"].values()), missed)


def reached(found: dict[float, Result]) -> float:
    """The rate at which P99 reaches the limit; the highest tried when it never did."""
    rates = sorted(found)
    slow = {rate: found[rate].percentile(0.99) for rate in rates}
    over = next((rate for rate in rates if slow[rate] > LIMIT), None)
    if over is None or over == rates[0]:
        return rates[-1] if over is None else rates[0] * LIMIT / slow[rates[0]]
    under = rates[rates.index(over) - 1]
    share = math.log(LIMIT / slow[under]) / math.log(slow[over] / slow[under])
    return under + (over - under) * share


def compared(bench: Bench, *, name: str, runs: int, count: int, requests: dict[str, str], rate: float = 0.0) -> Outcome:
    """The same load for both, in turns."""
    found: dict[str, list[Result]] = {kind: [] for kind in KINDS}
    for _ in range(runs):
        for kind in KINDS:
            found[kind].append(bench.run(kind, count, requests, rate=rate))
    return report(name, found)


def report(name: str, found: dict[str, list[Result]]) -> Outcome:
    figures: dict[str, object] = {}
    middle: dict[str, dict[str, float]] = {}
    for kind, results in found.items():
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        middle[kind] = {
            key: statistics.median(one.percentile(share) for one in results) for key, share in shares.items()
        }
        speed = statistics.median(one.bound for one in results)
        figures[kind] = {key: round(1000 * value) for key, value in middle[kind].items()} | {"pods/s": round(speed)}
        print(f"{name}, {kind}: {figures[kind]} (ms; medians of {len(results)} runs)", flush=True)
    ratios = {f"{key} ×": round(value / middle["stock"][key], 2) for key, value in middle["extender"].items()}
    print(f"{name}, against stock: {ratios}", flush=True)
    figures |= ratios
    ours = found["extender"]
    cpu = statistics.median(1000 * one.cpu["extender"] / len(one.seconds) for one in ours)
    figures |= {"nodes": statistics.median(one.nodes for one in ours), "extender CPU ms a pod": round(cpu, 2)}
    curves = [
        Curve(kind, COLOURS[kind], [(share, statistics.median(one.percentile(share / 100) for one in results))
                                    for share in range(0, 101, 2)])
        for kind, results in found.items()
    ]  # fmt: skip
    title = f"Seconds from create to bound, by share of the pods ({name})"
    (IMAGES / f"rate-{name}.svg").write_text(draw(title, curves, " %"))
    missed = [f"{name}: {key} {figures[f'{key} ×']} × stock" for key in ("p50", "p99")
              if name == "gate" and middle["extender"][key] > LEVEL * middle["stock"][key]]  # fmt: skip
    return judged(name, figures, ours, missed)


def judged(name: str, figures: dict[str, object], ours: list[Result], missed: list[str]) -> Outcome:
    figures |= {"bound before claimed": sum(one.early for one in ours), "errors": sum(one.errors for one in ours)}
    missed += [f"{name}: {figures[what]} {what}" for what in ("bound before claimed", "errors") if figures[what]]
    cpu = figures["extender CPU ms a pod"]
    # Where it also ends a placeholder for each pod, it may take more.
    if name != "warm" and isinstance(cpu, float) and cpu > CPU:
        missed.append(f"{name}: the extender takes {cpu} ms of CPU for each pod")
    return Outcome(figures, missed)


def basic(bench: Bench, *, runs: int) -> Outcome:
    found: dict[str, list[Result]] = {kind: [] for kind in KINDS}
    for _ in range(runs):
        for kind in KINDS:
            bench.run(kind, 1000, SMALL, keep=True)
            found[kind].append(bench.run(kind, 1000, SMALL))
    return report("basic", found)


def warm(bench: Bench, *, runs: int) -> Outcome:
    substrate.start_controller(bench.plane)
    bench.plane.apply(webhooks.BASE / "headroom-policy.yaml")
    found: dict[str, list[Result]] = {kind: [] for kind in KINDS}
    for _ in range(runs):
        for kind in KINDS:
            with (overprovisioned if kind == "stock" else headroom)(bench):
                found[kind].append(bench.run(kind, ATEOMS, SLOT, keep=True, patience=PATIENCE))
            bench.clean()
    outcome = report("warm", found)
    told = {
        "bound": {kind: [len(one.seconds) for one in results] for kind, results in found.items()},
        "placeholders ended": {kind: [one.ended for one in results] for kind, results in found.items()},
    }
    print(f"warm, of {ATEOMS} in each run: {told}", flush=True)
    few = min(told["bound"]["extender"])
    missed = [f"warm: {few} of {ATEOMS} bound within {PATIENCE:.0f} s"] if few < ATEOMS else []
    return Outcome({**outcome.figures, **told}, outcome.missed + missed)


@contextmanager
def overprovisioned(bench: Bench) -> Iterator[None]:
    """Every slot taken by a pod of the placeholders' priority, which is stock's."""
    spec = {"priorityClassName": names.PLACEHOLDER_PRIORITY_CLASS, "schedulerName": STOCK}
    low = overprovision(bench.plane, NAMESPACE, PLACEHOLDERS, spec, SLOT)
    yield
    bench.plane.api.delete(low)


@contextmanager
def headroom(bench: Bench) -> Iterator[None]:
    """Every slot taken by a placeholder of ours, and atelet everywhere; the reconciler runs for so long only."""
    plane, api = bench.plane, bench.plane.api
    pool = f"{substrate.POOLS.format(NAMESPACE)}/{bench.pools[NAMESPACE]['metadata']['name']}"
    pods, atelets = f"/api/v1/namespaces/{NAMESPACE}/pods", "/api/v1/namespaces/ate-system/pods"
    program, environment = ateplace()
    given = {"cluster.kubeconfig": plane.kubeconfig, "serve.host": "127.0.0.1", "serve.health_port": 0}
    flags = [f"--set={key}={value}" for key, value in {**given, "certs.managed": "false"}.items()]
    plane.run("reconciler", [*program, "reconciler", *flags], environment)
    noted = {"metadata": {"annotations": {names.HEADROOM_ANNOTATION: str(PLACEHOLDERS)}}}
    api.patch(pool, {**noted, "spec": {"template": {"resources": {"requests": SLOT}}}})
    held = partial(bound_with, plane, pods, names.PLACEHOLDER_LABEL)
    plane.wait(lambda: held() == PLACEHOLDERS, timeout=180, why="the headroom", every=0.5)
    plane.wait(lambda: sum(map(is_ready, api.list(atelets))) == NODES, why="atelet on every node", every=0.5)
    yield
    api.patch(pool, {"metadata": {"annotations": {names.HEADROOM_ANNOTATION: None}}})
    left = partial(api.list, pods, labelSelector=names.PLACEHOLDER_LABEL)
    plane.wait(lambda: not left(), timeout=120, why="the placeholders to go", every=0.5)  # or they claim nodes anew
    bench.rig.restart()  # one that was gone when its scheduler asked has a pick for a minute
    plane.stop("reconciler")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["gate", "keynote", "warm", "sustained", "basic"])
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 5000], help="of the case sustained")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tries", type=int, default=1, help="runs of each rate of the ladder")
    parser.add_argument("--set", action="append", default=[], metavar="GROUP__FIELD=VALUE", help="a setting")
    options = parser.parse_args()
    settings = dict(item.split("=", 1) for item in options.set)
    plays: dict[str, tuple[int, Callable[[Bench], Outcome]]] = {
        "gate": (100, partial(compared, name="gate", runs=options.runs, count=750, requests=SMALL, rate=75.0)),
        "keynote": (25, partial(compared, name="keynote", runs=options.runs, count=25 * 64, requests=SIXTY_FOUR)),
        "warm": (NODES, partial(warm, runs=options.runs)),
        **{
            f"sustained {nodes}": (nodes, partial(sustained, nodes=nodes, runs=options.tries))
            for nodes in options.nodes
        },
        "basic": (5000, partial(basic, runs=options.runs)),
    }
    outcomes = {
        name: on_stage(nodes, settings, play)
        for name, (nodes, play) in plays.items()
        if name.partition(" ")[0] in options.cases
    }
    missed = [line for outcome in outcomes.values() for line in outcome.missed]
    for line in missed:
        print(f"missed: {line}")
    figures = {name: outcome.figures for name, outcome in outcomes.items()}
    print(json.dumps({"bench": "rate", **figures, "missed": missed, "ok": not missed}, ensure_ascii=False))
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
