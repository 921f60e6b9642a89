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
import asyncio
import contextlib
import copy
import json
import math
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from ateplace import names
from ateplace.cluster.records import TEMPLATE_LABEL
from ateplace.extender.claim_writer import Written
from ateplace.kube import Kube
from ateplace.local import ControlPlane, substrate, webhooks
from ateplace.local.api import Object
from ateplace.local.scheduling import Scheduling
from ateplace.settings import Cluster
from bench.recorder import Recorder, Result, api_requests, bindings, cpu_seconds, early, ended, process_with

STOCK = "stock"
NAMESPACE, REVIEWED = "burst", "burst-reviewed"
"""Pods of the second namespace pass our webhook."""
CREATORS = 32
ATELET_CPU = 100
"""What the stand-in for atelet and its sidecar request together."""
NODE_CPU = 8000
SMALL = {"cpu": "105m", "memory": "100Mi"}
LARGE = {"cpu": "5", "memory": "4Gi"}
"""Two do not fit on a node."""


NOMINATING = {"nominated": 1, "unaided": 0}
"""From how many nodes on pods are nominated; else as the setting says."""
OURS = ("extender", "zones", "before", "nominated", "unaided", "together")
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


class Bench:
    def __init__(
        self, plane: ControlPlane, rig: Scheduling, webhook: webhooks.Webhook, before: Path | None = None
    ) -> None:
        self.plane = plane
        self.before = before
        self.rig = rig
        self.number = 0
        self.zones = 0
        self.pools = {}
        for namespace in (NAMESPACE, REVIEWED):
            plane.api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
            account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
            plane.wait(lambda path=account: plane.api.exists(path), why="a ServiceAccount")  # type: ignore[misc]
            self.pools[namespace] = substrate.pool(plane, namespace, "burst")
        webhooks.select(plane, REVIEWED, webhook)

    def pod(self, kind: str, requests: dict[str, str]) -> Object:
        """What is created in such a run, but for its name."""
        template = substrate.deployment(self.pools[REVIEWED])["spec"]["template"]
        meta = {"labels": {**template["metadata"]["labels"], TEMPLATE_LABEL: "burst"}}  # as of one ReplicaSet
        made: Object = {"metadata": {**template["metadata"], **meta}, "spec": copy.deepcopy(template["spec"])}
        made["spec"]["containers"][0]["resources"] = {"requests": requests}
        made["spec"]["terminationGracePeriodSeconds"] = 0
        if kind == "together":
            return made
        made["metadata"]["name"] = "probe"
        reviewed = self.plane.api.post(f"/api/v1/namespaces/{REVIEWED}/pods", made, dryRun="All")
        labels = {**reviewed["metadata"]["labels"], names.POOL_UID_LABEL: self.pools[NAMESPACE]["metadata"]["uid"]}
        scheduler = names.SCHEDULER if kind in OURS else STOCK
        return {"metadata": {"labels": labels}, "spec": {**reviewed["spec"], "schedulerName": scheduler}}

    @staticmethod
    def settings(kind: str) -> dict[str, int]:
        """Only what differs from the defaults: another version need not know the setting."""
        return {"extender__nominate_nodes": NOMINATING[kind]} if kind in NOMINATING else {}

    def run(
        self,
        kind: str,
        count: int,
        requests: dict[str, str],
        *,
        zones: int = 0,
        rate: float = 0.0,
        keep: bool = False,
        patience: float = 0.0,
    ) -> Result:
        """One burst: so many a second, or all at once. `zones`: in how many the nodes are in a run with zones; in all
        others they are in none. `keep`: its pods are there in the next run too. `patience`: what is not bound after so
        many seconds is left out; without it, all must be."""
        self.number += 1
        self.locate(zones if kind == "zones" else 0)
        code = {0: self.before} if kind == "before" and self.before else {}
        self.rig.restart(code=code, **self.settings(kind))  # what it has read would be believed for a minute
        template, ours = self.pod(kind, requests), kind in OURS
        named = [f"r{self.number}-{n}" for n in range(count)]
        pods = [{**template, "metadata": {**template["metadata"], "name": name}} for name in named]
        process = f"scheduler-{'ateplace' if ours else STOCK}.yaml"
        scheduler = process_with("kube-scheduler", str(self.plane.directory), process)
        pids = {"extender": self.rig.pids[0], "scheduler": scheduler}
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        written = self.rig.metric("ateplace_extender_claims_total", result="written")
        failed = self.rig.metric("ateplace_extender_calls_total", result="error")
        namespace = REVIEWED if kind == "together" else NAMESPACE
        known = [(0.0, {"object": node}) for node in self.plane.api.list("/api/v1/nodes", resourceVersion="0")]
        asked = api_requests(self.plane)
        # Nodes are watched in every kind of run, so that watching costs all of them the same.
        watches = (f"/api/v1/namespaces/{namespace}/pods", "/api/v1/nodes")
        with contextlib.ExitStack() as stack:
            watched, nodes = (stack.enter_context(Recorder(self.plane, path)) for path in watches)
            label = {names.NODE_LABEL: "true"} if kind == "atelet" else {}
            patches = count if kind in {"limit", "atelet"} else 0
            sent = asyncio.run(self.create(namespace, pods, patches, label, rate))
            try:
                self.wait_bound(namespace, patience or 120 + count / 10)
            except AssertionError:
                if not patience:
                    raise
            result = Result(requests=api_requests(self.plane) - asked)
            result.cpu = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
            for recorder in (watched, nodes):
                recorder.reach_present()
            seen = watched.events()
            bound = {name: one for name, one in bindings(seen).items() if name in sent}
            result.ended = ended(seen, sent)
            result.seconds = [at - sent[name] for name, (at, *_) in bound.items()]
            result.created = count / (max(sent.values()) - min(sent.values()) or 1.0)
            result.bound = len(bound) / (max(at for at, *_ in bound.values()) - min(sent.values()))
            result.nodes = len({node for _, _, node, _ in bound.values()})
            result.patches = int(self.rig.metric("ateplace_extender_claims_total", result="written") - written)
            result.errors = int(self.rig.metric("ateplace_extender_calls_total", result="error") - failed)
            result.early = early(bound, known + nodes.events()) if ours else 0
        if not keep:
            self.clean()
        assert patience or len(result.seconds) == count, f"{len(result.seconds)} of {count} seen bound"
        return result

    def locate(self, zones: int) -> None:
        """Put the nodes into so many zones in turn, or into none."""
        if zones == self.zones:
            return
        self.zones = zones
        for number, name in enumerate(sorted(self.node_names())):
            labels = {names.ZONE_LABEL: f"zone-{number % zones}" if zones else None}
            self.plane.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})

    async def create(
        self, namespace: str, pods: list[Object], patches: int, labels: dict[str, str], rate: float
    ) -> dict[str, float]:
        """Create all at once, or so many a second; when each create was sent."""
        kube = await Kube.connect(Cluster(kubeconfig=str(self.plane.kubeconfig)))
        sent: dict[str, float] = {}
        turns = iter(enumerate(pods))
        begun = time.perf_counter()
        targets = iter(self.node_names()[:patches])

        async def creator() -> None:
            for number, pod in turns:
                if rate and (early := begun + number / rate - time.perf_counter()) > 0:
                    await asyncio.sleep(early)
                sent[pod["metadata"]["name"]] = time.perf_counter()
                await kube.create(f"/api/v1/namespaces/{namespace}/pods", pod, Written)

        async def patcher() -> None:
            for number, name in enumerate(targets):
                value = {names.claim_key("bench"): f"{self.number}-{number}"}
                body = {"metadata": {"annotations": value, "labels": labels}}
                await kube.patch(f"/api/v1/nodes/{name}", body, Written)

        await asyncio.gather(*(creator() for _ in range(CREATORS)), *(patcher() for _ in range(8)))
        await kube.close()
        return sent

    def node_names(self) -> list[str]:
        return [node["metadata"]["name"] for node in self.plane.api.list("/api/v1/nodes", resourceVersion="0")]

    def wait_bound(self, namespace: str, seconds: float) -> None:
        query = {"labelSelector": names.POOL_LABEL, "fieldSelector": "spec.nodeName=", "limit": "1"}
        path = f"/api/v1/namespaces/{namespace}/pods"
        unbound = partial(self.plane.api.list, path, resourceVersion="0", **query)
        self.plane.wait(lambda: not unbound(), timeout=seconds, why="all bound", every=0.25)

    def clean(self) -> None:
        """No pods, no claims, no atelet: the next run starts cold."""
        for node in self.plane.api.list("/api/v1/nodes", resourceVersion="0"):
            found = [key for key in node["metadata"].get("annotations", {}) if names.claimed_pool(key) is not None]
            if found:
                gone: Object = {"annotations": dict.fromkeys(found), "labels": {names.NODE_LABEL: None}}
                self.plane.api.patch(f"/api/v1/nodes/{node['metadata']['name']}", {"metadata": gone})
        self.plane.wait(self.empty, timeout=300, why="a clean plane", every=0.5)
        self.plane.wait(lambda: not self.rig.metric("ateplace_extender_picks_in_flight"), why="no pick in flight")
        time.sleep(1)

    def empty(self) -> bool:
        """Whether no pod is left. Thousands take longer than one request may: what is left is deleted once more."""
        for namespace in (NAMESPACE, REVIEWED):
            path = f"/api/v1/namespaces/{namespace}/pods"
            if self.plane.api.list(path, limit="1", resourceVersion="0"):
                with contextlib.suppress(httpx.TimeoutException):
                    self.plane.api.delete(path, gracePeriodSeconds="0")
                return False
        return not self.plane.api.list("/api/v1/namespaces/ate-system/pods", resourceVersion="0")


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
        with ControlPlane(lease_seconds=lease_seconds(nodes)) as plane:
            substrate.install(plane, controller=False)
            plane.add_nodes(nodes, cpu=str(NODE_CPU // 1000))
            webhooks.install_access(plane)
            with Scheduling(plane, **settings) as rig, webhooks.webhook(plane) as webhook:
                plane.add_scheduler(STOCK, stock(rig))
                bench = Bench(plane, rig, webhook, options.before and options.before.resolve())
                rig.wait_ready()
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


def lease_seconds(nodes: int) -> int:
    """How long the Leases of so many nodes last. On two cores, renewing 5,000 of them every ten seconds would be most
    of what is measured, whichever the scheduler."""
    return 40 if nodes <= 1000 else 400


def stock(rig: Scheduling) -> Object:
    """kube-scheduler's default profile, under another name and with the client limits that ours has."""
    return {
        "clientConnection": rig.configuration()["clientConnection"],
        "profiles": [{"schedulerName": STOCK}],
    }


if __name__ == "__main__":
    raise SystemExit(main())
