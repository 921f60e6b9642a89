"""Bursts of ateoms with ateplace, alternating with the stock scheduler on pods of the same spec.

    make bench-burst                                     20, 100 and 1,000 nodes, 10 runs each; 3,000 pods; 5,000 nodes
    make bench-burst ARGS="--nodes 20 --runs 3"
    make bench-burst ARGS="--nodes 100 --sizes small --no-once --zones 3"    with and without zones, in turns
    make bench-burst ARGS="--before ../checkout"         also with the extender of another version, in turns

Each run starts cold: no pods, no claims, an extender that has just been started. The kinds of runs:

    stock       kube-scheduler's default profile with our client limits, on what our webhook makes of a pool's pod
    extender    the same pods with our scheduler and extender
    nominated   the same with nominations, however few nodes there are
    unaided     the same without nominations, however many there are
    zones       the same as extender, on nodes in so many zones (only with --zones)
    before      the same as extender, with the extender of another version (only with --before)
    together    a pool's pods as they are, through our webhook, then our scheduler and extender
    limit       stock, with as many bare node patches sent meanwhile (only where every pod opens a node: "large")
    atelet      the same with patches that set our label, so that as many atelets start

Times are from sending the create until the watch shows the pod bound. The last line is JSON; the exit code is 1 when a
target is missed.
"""

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.load import ATELET_CPU, LARGE, NODE_CPU, OURS, SMALL, Bench, stage
from bench.recorder import Result

JUDGED = ("extender", "together")
TARGETS = {"small": ("stock", 1.1), "large": ("atelet", 1.1)}
"""P99 against that of another kind. Where every pod opens a node, as many atelets start: that is nobody's fault."""
MANY, MANY_TARGET = 5000, 1.25
"""From so many nodes on, where looking at all of them is felt, small pods have another target."""
CPU = 1.0
"""Milliseconds of the extender for each pod."""
ZONES_TARGET = 1.1
"""P99 with zones against that without."""


@dataclass(frozen=True)
class Case:
    """One of the things that are measured."""

    nodes: int
    pods: int
    size: str
    runs: int
    judged: bool = True
    """Whether its P99 has a target; a single run is only shown."""
    zones: int = 0
    """In how many zones the nodes are in runs with zones; 0 for no such runs."""
    before: bool = False
    """Whether there are runs of another version."""

    def __str__(self) -> str:
        return f"{self.pods} {self.size} pods over {self.nodes} nodes"

    @property
    def requests(self) -> dict[str, str]:
        return SMALL if self.size == "small" else LARGE

    @property
    def kinds(self) -> list[str]:
        ours = [kind for kind in OURS if {"zones": bool(self.zones), "before": self.before}.get(kind, True)]
        return ["stock", *ours, *(["limit", "atelet"] if self.size == "large" else [])]

    @property
    def optimum(self) -> int:
        """How many nodes it takes."""
        cpu = self.requests["cpu"]
        each = int(cpu.removesuffix("m")) * (1 if cpu.endswith("m") else 1000)
        return math.ceil(self.pods / ((NODE_CPU - ATELET_CPU) // each))


def report(case: Case, kinds: dict[str, list[Result]]) -> tuple[dict[str, object], list[str]]:
    """Print the medians; the figures, and what missed its target."""
    print(f"\n{case} (medians of {case.runs} runs; optimum {case.optimum} nodes)", flush=True)
    print(f"{'':8} {'P50':>8} {'P90':>8} {'P99':>8} nodes patches requests  CPU extender scheduler")
    slow: dict[str, float] = {}
    burnt: dict[str, float] = {}
    for kind, results in kinds.items():
        middle = [statistics.median(one.percentile(share) for one in results) for share in (0.5, 0.9, 0.99)]
        slow[kind] = middle[2]
        times = " ".join(f"{1000 * value:>5.0f} ms" for value in middle)
        counts = [statistics.median(getattr(one, name) for one in results) for name in ("nodes", "patches", "requests")]
        cpu = [1000 * statistics.median(one.cpu[name] for one in results) for name in ("extender", "scheduler")]
        burnt[kind] = cpu[0] / case.pods
        numbers = f"{counts[0]:>5.0f} {counts[1]:>7.0f} {counts[2]:>8.0f} {cpu[0]:>10.0f} ms {cpu[1]:>6.0f} ms"
        print(f"{kind:8} {times} {numbers}")
    ours = [one for kind in OURS for one in kinds.get(kind, ())]
    figures: dict[str, object] = {f"{kind} P99 ×": ratio for kind, ratio in ratios(slow, "stock").items()}
    for one, other in (("zones", "extender"), ("extender", "before"), ("extender", "atelet"), ("together", "atelet")):
        if one in slow and other in slow:
            figures[f"{one} P99 × {other}"] = ratios(slow, other)[one]
    figures |= {
        "nodes": statistics.median(one.nodes for one in ours),
        "optimum": case.optimum,
        "stock nodes": statistics.median(one.nodes for one in kinds["stock"]),
        "patches a node": round(statistics.median(one.patches / one.nodes for one in ours), 2),
        "extender CPU ms a pod": {kind: round(value, 2) for kind, value in burnt.items() if kind in OURS},
        "bound before claimed": sum(one.early for one in ours),
        "errors": sum(one.errors for one in ours),
    }
    print(json.dumps(figures, ensure_ascii=False), flush=True)
    return figures, missed(case, slow, burnt, figures)


def ratios(slow: dict[str, float], against: str) -> dict[str, float]:
    return {kind: round(seconds / slow[against], 2) for kind, seconds in slow.items() if kind != against}


def missed(case: Case, slow: dict[str, float], burnt: dict[str, float], figures: dict[str, Any]) -> list[str]:
    """What did not reach its target; a single run is judged by its counts only."""
    found = []
    against, target = TARGETS[case.size]
    target = MANY_TARGET if case.size == "small" and case.nodes >= MANY else target
    for kind in JUDGED if case.judged else ():
        if kind in slow and against in slow and (ratio := ratios(slow, against)[kind]) > target:
            found.append(f"{case}: {kind} P99 {ratio} × {against}, not {target}")
        if burnt.get(kind, 0.0) > CPU:
            found.append(f"{case}: {kind} takes {burnt[kind]:.2f} ms of the extender's CPU a pod, not {CPU}")
    if case.judged and (over := figures.get("zones P99 × extender", 0.0)) > ZONES_TARGET:
        found.append(f"{case}: with zones P99 {over} × of that without, not {ZONES_TARGET}")
    if figures["nodes"] > 1.1 * case.optimum:
        found.append(f"{case}: {figures['nodes']} nodes, not {case.optimum}")
    if figures["patches a node"] > 1.25:
        found.append(f"{case}: too many patches")
    return found + [f"{case}: {figures[what]} {what}" for what in ("bound before claimed", "errors") if figures[what]]


def cases(options: argparse.Namespace) -> list[Case]:
    wanted = []
    for nodes in options.nodes:
        wanted.append(
            Case(nodes, options.pods, "small", options.runs, zones=options.zones, before=bool(options.before))
        )
        if nodes >= options.pods and nodes == max(options.nodes):
            wanted.append(
                Case(nodes, options.pods, "large", options.runs, zones=options.zones, before=bool(options.before))
            )
    if options.once:
        wanted += [Case(1000, 3000, "small", 1, judged=False), Case(5000, 300, "small", 1, judged=False)]
    return [case for case in wanted if case.size in options.sizes]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[20, 100, 1000])
    parser.add_argument("--pods", type=int, default=300)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--sizes", nargs="+", default=["small", "large"], help="large: one pod a node")
    kinds = ["stock", "extender", "zones", "before", "together", "limit", "atelet"]
    parser.add_argument("--kinds", nargs="+", default=kinds, help="stock, and at least one of ours")
    parser.add_argument("--zones", type=int, default=0, metavar="N", help="also runs on nodes in N zones")
    parser.add_argument("--before", type=Path, metavar="TREE", help="also runs with the extender of this checkout")
    parser.add_argument(
        "--once", action=argparse.BooleanOptionalAction, default=True, help="3,000 pods and 5,000 nodes, once each"
    )
    parser.add_argument("--set", action="append", default=[], metavar="GROUP__FIELD=VALUE", help="a setting")
    options = parser.parse_args()
    settings = dict(item.split("=", 1) for item in options.set)
    wanted = cases(options)
    misses: list[str] = []
    figures: dict[str, object] = {}
    for nodes in dict.fromkeys(case.nodes for case in wanted):
        with stage(nodes, Bench, before=options.before and options.before.resolve(), **settings) as bench:
            for case in (each for each in wanted if each.nodes == nodes):
                results: dict[str, list[Result]] = {kind: [] for kind in case.kinds if kind in options.kinds}
                for kind in results:
                    bench.run(kind, min(30, case.pods), case.requests)  # connections, caches
                for _ in range(case.runs):
                    for kind, found in results.items():
                        found.append(bench.run(kind, case.pods, case.requests, zones=case.zones))
                figures[str(case)], more = report(case, results)
                misses += more
    for line in misses:
        print(f"missed: {line}")
    print(json.dumps({"bench": "burst", **figures, "missed": misses, "ok": not misses}, ensure_ascii=False))
    return int(bool(misses))


if __name__ == "__main__":
    raise SystemExit(main())
