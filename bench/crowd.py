"""The population of a large cluster, for `bench.scale` and `bench.oom`: nodes that report, pools, ateoms, others."""

import asyncio
import itertools
import math
import threading
import time
import uuid
from collections.abc import Awaitable, Iterable
from datetime import UTC, datetime

from ateplace import errors, names
from ateplace.kube import Kube
from ateplace.kube.objects import Bare
from ateplace.local import ControlPlane
from ateplace.local.api import Object
from ateplace.local.kubeconfig import connect

WORKERS = 16
"""Patches under way at once, ours and the reference's."""
CREATORS = 32
REPORT = 300.0
"""Seconds between two reports of a node: a kubelet's nodeStatusReportFrequency."""
NOBODY_RUNS_IT = {"local.ateplace/hold": "nobody"}


def pod(namespace: str, node: str, labels: dict[str, str]) -> Object:
    """A bound pod of a usual size."""
    name = uuid.uuid4().hex
    env = [{"name": f"SETTING_{number}", "value": "x" * 40} for number in range(12)]
    container = {
        "name": "ateom",
        "image": "registry.example/ateom:1",
        "args": ["--pod-uid=$(POD_UID)"],
        "env": env,
        "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}},
    }
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": NOBODY_RUNS_IT},
        "spec": {"nodeName": node, "containers": [container], "automountServiceAccountToken": False},
    }


class Crowd:
    """Pools, each in a namespace of its own, and pods that are bound and that no kubelet runs."""

    def __init__(self, plane: ControlPlane, nodes: list[str], pools: int) -> None:
        self.plane = plane
        self.nodes = nodes
        self.namespaces: list[str] = []
        self.pools: dict[str, str] = {}
        """UIDs by namespace."""
        self.ateoms = 0
        self.others = 0
        self._wanted = pools

    async def prepare(self, kube: Kube) -> None:
        """As many pools as were asked for."""
        await self.add_namespaces(kube, self._wanted)
        await self.add_pools(kube, self._wanted)

    async def add_namespaces(self, kube: Kube, count: int) -> None:
        async def make(namespace: str) -> None:
            await kube.create("/api/v1/namespaces", {"metadata": {"name": namespace}}, Bare)
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
            while not await there(kube, path):  # noqa: ASYNC110 - the controller manager sends no event for it
                await asyncio.sleep(0.1)
            self.namespaces.append(namespace)

        first = len(self.namespaces)
        await at_once((make(f"team-{number}") for number in range(first, first + count)), CREATORS)

    async def add_pools(self, kube: Kube, count: int) -> None:
        """In namespaces that have none yet."""

        async def make(namespace: str) -> None:
            body = {
                "apiVersion": "ate.dev/v1alpha1",
                "kind": "WorkerPool",
                "metadata": {"name": "pool"},
                "spec": {
                    "replicas": 0,
                    "workerImage": "registry.example/ateom:1",
                    "sandboxClasses": [{"name": "gvisor"}],
                },
            }
            path = f"/apis/ate.dev/v1alpha1/namespaces/{namespace}/workerpools"
            self.pools[namespace] = (await kube.create(path, body, Bare)).metadata.uid

        without = [namespace for namespace in self.namespaces if namespace not in self.pools]
        await at_once((make(namespace) for namespace in without[:count]), CREATORS)

    async def fill(self, kube: Kube, ateoms: int, others: int) -> None:
        """More pods. Each pool has so many nodes of its own that together they have all, and fills them evenly."""
        pools = list(self.pools)
        each = math.ceil(len(self.nodes) / len(pools))

        async def make(number: int, *, ateom: bool) -> None:
            pool, turn = number % len(pools), number // len(pools) % each
            namespace, node = pools[pool], self.nodes[(pool * each + turn) % len(self.nodes)]
            ours = {names.POOL_LABEL: "pool", names.POOL_UID_LABEL: self.pools[namespace]}
            body = pod(namespace, node, ours if ateom else {"app": "other"})
            await kube.create(f"/api/v1/namespaces/{namespace}/pods", body, Bare)
            self.ateoms += ateom
            self.others += not ateom

        have = range(self.ateoms, self.ateoms + ateoms)
        await at_once((make(number, ateom=True) for number in have), CREATORS)
        have = range(self.others, self.others + others)
        await at_once((make(number, ateom=False) for number in have), CREATORS)

    async def reference(self, kube: Kube) -> float:
        """Seconds for one bare patch to each node."""

        async def patch(node: str) -> None:
            key = f"bench.example/claim.{uuid.uuid4()}"
            body = {"metadata": {"annotations": {key: "2026-11-16T00:00:00.000000+00:00"}, "labels": {"bench": "true"}}}
            await kube.patch(f"/api/v1/nodes/{node}", body, Bare)

        began = time.monotonic()
        await at_once((patch(node) for node in self.nodes), WORKERS)
        return time.monotonic() - began

    async def unclaim(self, kube: Kube) -> None:
        """No claim, and no label, on any node."""

        async def clean(node: str) -> None:
            path = f"/api/v1/nodes/{node}"
            found = (await kube.get(path, Bare)).metadata.annotations or {}
            gone = {key: None for key in found if names.claimed_pool(key) is not None}
            await kube.patch(path, {"metadata": {"annotations": gone, "labels": {names.NODE_LABEL: None}}}, Bare)

        await at_once((clean(node) for node in self.nodes), WORKERS)


async def there(kube: Kube, path: str) -> bool:
    try:
        await kube.get(path, Bare)
    except errors.NotFound:
        return False
    return True


async def at_once(work: Iterable[Awaitable[None]], limit: int) -> None:
    """Await all of it, so many at a time, made as they are needed."""
    turns = iter(work)

    async def worker() -> None:
        for each in turns:
            await each

    async with asyncio.TaskGroup() as group:
        for _ in range(limit):
            group.create_task(worker())


class Reports:
    """Within it every node's status is written once in `REPORT` seconds, evenly spread."""

    def __init__(self, plane: ControlPlane, nodes: list[str]) -> None:
        self._plane = plane
        self._nodes = nodes
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._report)
        self.count = 0

    def __enter__(self) -> "Reports":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _report(self) -> None:
        api = connect(self._plane.kubeconfig)
        for node in itertools.cycle(self._nodes):
            if self._stopped.wait(REPORT / len(self._nodes)):
                break
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
            api.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [ready]}})
            self.count += 1
        api.close()
