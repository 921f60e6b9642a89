"""A burst of ateoms on a cluster that is full but for its headroom: the stage that the scene, tests and benchmarks use.

Four nodes of twelve slots (one slot is one ateom) are filled by ordinary pods until seven slots are left. A pool
with a headroom of five keeps five of them; two are free. What happens when seven ateoms come is recorded as counts
over time.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import httpx

from ateplace import names
from ateplace.local import substrate
from ateplace.local.api import ApiError, Object
from ateplace.local.kubeconfig import connect
from ateplace.local.plane import ControlPlane

SLOT: Final = {"cpu": "500m", "memory": "512Mi"}
NODES, SLOTS, FREE = 4, 12, 7
NODE_CPU: Final = "6100m"
"""Twelve slots, and less than one more."""
NODE_MEMORY: Final = "32Gi"
HEADROOM, BURST = 5, 7
PREFIX: Final = "auto"


@dataclass(frozen=True)
class Counts:
    """The cluster at one moment."""

    ateoms: int
    """On a node."""
    waiting: int
    """Ateoms without one."""
    placeholders: int
    """On a node."""
    pending: int
    """Placeholders without one."""
    nodes: int
    warm: int
    """Nodes with a Ready atelet."""


def count(pods: list[Object], nodes: list[Object]) -> Counts:
    """Count one moment (pure)."""
    ateoms, placeholders, ready = [0, 0], [0, 0], set()
    for pod in pods:
        labels, node = pod["metadata"].get("labels", {}), pod["spec"].get("nodeName", "")
        if names.POOL_LABEL in labels:
            ateoms[not node] += 1
        elif names.PLACEHOLDER_LABEL in labels:
            placeholders[not node] += 1
        elif labels.get("app") == "atelet" and is_ready(pod):
            ready.add(node)
    return Counts(
        ateoms=ateoms[0],
        waiting=ateoms[1],
        placeholders=placeholders[0],
        pending=placeholders[1],
        nodes=len(nodes),
        warm=len(ready & {node["metadata"]["name"] for node in nodes}),
    )


def is_ready(item: Object) -> bool:
    conditions = item.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


class Recorder:
    """Counts the cluster several times a second for the length of a `with` block; `rows` are the changes."""

    def __init__(self, plane: ControlPlane, every: float = 0.1) -> None:
        self._plane = plane
        self._every = every
        self._stopped = threading.Event()
        self.began = time.monotonic()
        self.rows: list[tuple[float, Counts]] = []
        self.marks: list[tuple[float, str]] = []

    def __enter__(self) -> "Recorder":
        self._api = connect(self._plane.kubeconfig)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._thread.join()
        self._api.close()

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def mark(self, what: str) -> None:
        """Something that we do now."""
        self.marks.append((self.now, what))

    def last(self) -> Counts | None:
        return self.rows[-1][1] if self.rows else None

    def _run(self) -> None:
        while not self._stopped.wait(self._every):
            try:
                at = self.now
                seen = count(self._api.list("/api/v1/pods"), self._api.list("/api/v1/nodes"))
            except (ApiError, httpx.HTTPError):
                continue
            if seen != self.last():
                self.rows.append((at, seen))


class Stage:
    """The cluster of the experiment on a plane with ateplace installed."""

    def __init__(self, plane: ControlPlane, namespace: str = "burst", pool: str = "web") -> None:
        self.plane = plane
        self.namespace, self.pool = namespace, pool
        self._scaler = False

    def set_up(self, *, headroom: int = HEADROOM, free: int = FREE, warm: bool = True, nodes: int = NODES) -> None:
        """Nodes with so many free slots in all, and a pool of no ateoms whose placeholders are in place."""
        self.fill(free=free, nodes=nodes)
        self.create(headroom=headroom, warm=warm)

    def fill(self, *, free: int, nodes: int) -> list[str]:
        """Nodes with so many free slots in all; their names."""
        api = self.plane.api
        self._clear_own_pods()
        api.post("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self.plane.wait(
            lambda: api.exists(f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"),
            why="a ServiceAccount",
        )
        made = self.plane.add_nodes(nodes, prefix="base", cpu=NODE_CPU, memory=NODE_MEMORY)
        for index, node in enumerate(made):
            taken = SLOTS - (free // nodes + (index < free % nodes))
            if taken:
                self.ordinary(f"ordinary-{index}", node, taken)
        return made

    def create(self, *, headroom: int, warm: bool = True) -> None:
        """The pool, without ateoms, and its placeholders in place."""
        annotations = {names.HEADROOM_ANNOTATION: str(headroom), names.HEADROOM_WARM_ANNOTATION: str(warm).lower()}
        substrate.pool(
            self.plane, self.namespace, self.pool, 0, annotations=annotations, resources={"requests": dict(SLOT)}
        )
        self.wait(lambda seen: seen.placeholders == headroom and not seen.pending, "the headroom to be there")
        if headroom and warm:
            self.wait(lambda seen: seen.warm > 0 and self.cold() == 0, "atelet where the headroom is")

    def tear_down(self) -> None:
        """Nothing of it is left: no autoscaler, no pool, no node."""
        if self._scaler:
            self.plane.stop("autoscaler", signal.SIGKILL)
            self._scaler = False
        substrate.delete(self.plane, self.namespace, self.pool)
        path = f"{substrate.POOLS.format(self.namespace)}/{self.pool}"
        self.plane.wait(lambda: not self.plane.api.exists(path), timeout=60, why="the pool to go")
        # Before their nodes, or they would wait for the pod garbage collector.
        self.plane.api.delete(f"/api/v1/namespaces/{self.namespace}/pods", {"gracePeriodSeconds": 0})
        self.plane.api.delete(f"/api/v1/namespaces/{self.namespace}")
        self.plane.remove_nodes(node["metadata"]["name"] for node in self.plane.api.list("/api/v1/nodes"))
        self.wait(lambda seen: seen == Counts(0, 0, 0, 0, 0, 0), "an empty cluster")

    def start_autoscaler(self, *, delay: float, idle: float = 3600.0, most: int = 4) -> None:
        options = {"cpu": NODE_CPU, "memory": NODE_MEMORY, "delay": delay, "idle": idle, "most": most, "prefix": PREFIX}
        argv = [sys.executable, "-m", "ateplace.local.autoscaler", str(self.plane.kubeconfig)]
        self._scaler = True
        self.plane.run("autoscaler", [*argv, *(f"--{key}={value}" for key, value in options.items())])

    def scale(self, replicas: int) -> None:
        substrate.scale(self.plane, self.namespace, self.pool, replicas)

    def scale_and_wait(self, replicas: int, timeout: float = 120.0) -> None:
        """Until every ateom is on a node."""
        self.scale(replicas)
        self.wait(lambda seen: seen.ateoms == replicas and not seen.waiting, f"{replicas} ateoms on nodes", timeout)

    def counts(self) -> Counts:
        return count(self.plane.api.list("/api/v1/pods"), self.plane.api.list("/api/v1/nodes"))

    def cold(self) -> int:
        """Claimed nodes whose atelet is not Ready."""
        ready = {
            pod["spec"].get("nodeName")
            for pod in self.plane.api.list("/api/v1/namespaces/ate-system/pods")
            if is_ready(pod)
        }
        labelled = self.plane.api.list("/api/v1/nodes", labelSelector=f"{names.NODE_LABEL}=true")
        return sum(node["metadata"]["name"] not in ready for node in labelled)

    def wait(self, check: Callable[[Counts], bool], why: str, timeout: float = 90.0) -> Counts:
        """Until the counts are as they should be."""

        def look() -> Counts:
            seen = self.counts()
            assert check(seen), seen  # noqa: S101 - `plane.wait` shows it
            return seen

        return self.plane.wait(look, timeout=timeout, why=why, every=0.1)

    def _clear_own_pods(self) -> None:
        """Our own Deployments run as processes here; the pods that KWOK pretends for them would only take room."""
        path = f"/apis/apps/v1/namespaces/{names.NAMESPACE}/deployments"
        for deployment in self.plane.api.list(path):
            self.plane.api.patch(f"{path}/{deployment['metadata']['name']}", {"spec": {"replicas": 0}})
        pods = f"/api/v1/namespaces/{names.NAMESPACE}/pods"
        self.plane.wait(lambda: not self.plane.api.list(pods), why="our pretended pods to be gone")

    def ordinary(self, name: str, node: str, slots: int) -> None:
        """An ordinary pod of so many slots, bound by hand."""
        asked = {"cpu": f"{500 * slots}m", "memory": f"{512 * slots}Mi"}
        container = {"name": "c", "image": "registry.example/c:1", "resources": {"requests": asked}}
        body = {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container]}}
        self.plane.api.post(f"/api/v1/namespaces/{self.namespace}/pods", body)
