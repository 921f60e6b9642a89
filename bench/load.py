"""Load on a local control plane: ateoms created at once or at a rate, placed by our scheduler or by the stock one.

A run begins cold and ends with a clean plane. `bench.burst` lists the kinds of runs.
"""

import asyncio
import contextlib
import copy
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

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


class Bench:
    """A plane with two schedulers, ours and the stock one, and runs of load on it."""

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


B = TypeVar("B", bound=Bench)


@contextlib.contextmanager
def stage(nodes: int, kind: type[B], *, before: Path | None = None, profiled: int = 0, **settings: Any) -> Iterator[B]:
    """A plane with so many nodes, both schedulers and the webhook. `before`: another version's checkout. `profiled`:
    the port on which the stock scheduler shows its profiles. `settings` of the extender: `group__field=value`."""
    with ControlPlane(lease_seconds=lease_seconds(nodes)) as plane:
        substrate.install(plane, controller=False)
        plane.add_nodes(nodes, cpu=str(NODE_CPU // 1000))
        webhooks.install_access(plane)
        with Scheduling(plane, **settings) as rig, webhooks.webhook(plane) as webhook:
            plane.add_scheduler(STOCK, stock(rig), profiled=profiled)
            yield kind(plane, rig, webhook, before)


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
