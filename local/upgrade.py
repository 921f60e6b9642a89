"""An upgrade of Agent Substrate by its own runbook, on a plane with ateplace: what the scene and the test play.

    install     two pools fill the serving nodes; other pools, on nodes of their own, get two new pods a second
    prepare     the second DaemonSet comes, without our label, and each pool is cloned, pinned to the new version
    flip        node by node: the version label, wait for the new atelet, delete the other version's pods there
    ...         the old pools' pods are the reserve: they stay Pending until nodes are flipped back

`Attendance` looks several times a second whether a node with ateoms of its version has, or is about to get, the atelet
of that version. What an old atelet takes to end does not count: the next one needs its host port.
"""

import contextlib
import itertools
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import yaml

from ateplace import names
from ateplace.local import kubelets, substrate
from ateplace.local.api import Api, ApiError, Object
from ateplace.local.burst import is_ready
from ateplace.local.kubeconfig import connect
from ateplace.local.plane import ControlPlane
from ateplace.local.pods import Installation

SERVING, OTHERS = "serving", "others"
"""Namespaces, and groups of nodes."""
GROUP: Final = "local.ateplace/group"
OLD, NEW = substrate.VERSION, "v2"
POOLS: Final = ("web", "jobs")
EACH: Final = 2
"""Ateoms of each pool that fill a node together with the other pool's."""
CPU: Final = "900m"
STOP, START = "3s", "1s"
"""How long an atelet takes to end, and to become Ready."""
ATELETS: Final = "/api/v1/namespaces/ate-system/pods"


@dataclass
class Flip:
    """One node, and what came of its new version."""

    node: str
    version: str
    ending: float
    """Seconds from the flip until the other version's atelet was gone,"""
    ready: float
    """and until the new one was Ready;"""
    freed: float
    """from then until the other version's ateoms were gone, which the operator deletes now;"""
    placed: float
    """and from then until as many of the new version were there."""


@dataclass
class Cost:
    """What one role did in some time."""

    cpu: float
    """Seconds."""
    requests: int
    """To the API server, watches not counted."""


class Upgrade:
    def __init__(self, plane: ControlPlane, nodes: int) -> None:
        self.plane = plane
        self._count = nodes
        self.nodes: list[str] = []
        self.installed: Installation | None = None

    def install(self, overlay: Path, **settings: float) -> None:
        """Agent Substrate, ateplace, and pools that fill the nodes."""
        plane = self.plane
        plane.node_labels[substrate.VERSION_LABEL] = OLD
        self.nodes = plane.add_nodes(self._count, SERVING, cpu="4", labels={GROUP: SERVING})
        plane.add_nodes(2, OTHERS, labels={GROUP: OTHERS})
        substrate.install(plane)
        plane.api.patch(substrate.daemonset(plane), {"spec": {"template": {"metadata": {"annotations": DELAYS}}}})
        self.installed = installed = Installation(plane, overlay, **settings)
        installed.start(timeout=240)
        for namespace in (SERVING, OTHERS):
            plane.api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        for name in POOLS:
            self._pool(name, OLD)
        for name in ("first", "second"):
            substrate.pool(plane, OTHERS, name, 5, nodeSelector={GROUP: OTHERS}, resources=_room("100m"))
        wanted = dict.fromkeys(self.nodes, EACH * len(POOLS))
        plane.wait(lambda: self.placed(OLD) == wanted, timeout=240, why="the pools to fill the nodes", every=0.2)
        plane.wait(lambda: set(self.ready_atelets(OLD)) >= set(self.nodes), timeout=120, why="atelet on all of them")

    def prepare(self) -> float:
        """The second DaemonSet, ungated, and the clones; after how many seconds it was gated."""
        plane, path = self.plane, f"{substrate.DAEMONSETS}/atelet-{NEW}"
        documents = [one for one in yaml.safe_load_all(substrate.ungated(substrate.atelet(plane, NEW))) if one]
        (daemonset,) = (one for one in documents if one["kind"] == "DaemonSet")
        daemonset["spec"]["template"]["metadata"]["annotations"] = DELAYS
        began = time.monotonic()
        plane.apply(documents)

        def gated() -> bool:
            return names.NODE_LABEL in plane.api.get(path)["spec"]["template"]["spec"]["nodeSelector"]

        plane.wait(gated, timeout=120, why="the new DaemonSet to be gated")
        took = time.monotonic() - began
        for name in POOLS:
            self._pool(name, NEW)
        total = self._count * EACH * len(POOLS)
        plane.wait(lambda: len(self._ateoms(NEW)) == total, timeout=120, why="the clones' pods")
        return took

    def flip(self, node: str, version: str) -> Flip:
        """What the operator does on one node, and how long each part took."""
        plane, other = self.plane, OLD if version == NEW else NEW
        before = self.placed(other)[node]
        began = time.monotonic()
        substrate.set_version(plane, node, version)
        plane.wait(
            lambda: node not in self._bound_atelets(other), timeout=120, why=f"{other}'s atelet to end on {node}"
        )
        ended = time.monotonic()
        plane.wait(lambda: node in self.ready_atelets(version), timeout=120, why=f"{version}'s atelet on {node}")
        ready = time.monotonic()
        path, here = f"/api/v1/namespaces/{SERVING}/pods", f"spec.nodeName={node}"
        pools = f"{names.POOL_LABEL} in ({','.join(_called(name, other) for name in POOLS)})"
        plane.api.delete(path, fieldSelector=here, labelSelector=pools)
        plane.wait(
            lambda: not plane.api.list(path, fieldSelector=here, labelSelector=pools),
            timeout=120,
            why=f"the pods of {other} on {node} to be gone",
        )
        free = time.monotonic()
        plane.wait(lambda: self.placed(version).get(node, 0) == before, timeout=120, why=f"{before} ateoms on {node}")
        return Flip(node, version, ended - began, ready - began, free - ready, time.monotonic() - free)

    def placed(self, version: str) -> dict[str, int]:
        """Ateoms of a version's pools by node."""
        return dict(Counter(node for pod in self._ateoms(version) if (node := pod["spec"].get("nodeName"))))

    def waiting(self, version: str) -> int:
        """Ateoms of a version's pools without a node."""
        return sum("nodeName" not in pod["spec"] for pod in self._ateoms(version))

    def ready_atelets(self, version: str) -> list[str]:
        return [node for pod in self._atelets(version) if (node := pod["spec"].get("nodeName")) and is_ready(pod)]

    def warnings(self) -> list[str]:
        """What ateplace warned of in Events."""
        return [
            f"{one['reason']}: {one['note']}"
            for one in self.plane.api.list("/apis/events.k8s.io/v1/events")
            if one["type"] == "Warning" and one.get("reportingController") == "ateplace-reconciler"
        ]

    def errors(self) -> int:
        """Calls that the extender has answered with an error so far."""
        wanted = ("ateplace_extender_calls_total{", 'result="error"')
        return int(sum(number for line, number in self._metrics("extender") if all(one in line for one in wanted)))

    def late(self) -> int:
        """Nodes whose atelet is late, by the metric that the alert is about."""
        found = [
            number for line, number in self._metrics("reconciler") if line.startswith("ateplace_nodes_atelet_late")
        ]
        return int(sum(found))

    def cost(self, seconds: float) -> dict[str, Cost]:
        """What each role does from now on for so long. The plane must audit."""
        assert self.installed  # noqa: S101 - `install` comes first
        log, roles = self.plane.log("audit"), self.installed.pods
        pids = {role: self.plane.pid(pod.name) for role, pod in roles.items()}
        size, before = log.stat().st_size, {role: cpu_seconds(pid) for role, pid in pids.items()}
        time.sleep(seconds)
        after = {role: cpu_seconds(pid) for role, pid in pids.items()}
        with log.open("rb") as file:
            file.seek(size)
            lines = [json.loads(line) for line in file if line.endswith(b"\n")]
        asked = Counter(one["user"]["username"].rpartition(":")[2] for one in lines if one["verb"] != "watch")
        return {role: Cost(after[role] - before[role], asked[pod.name]) for role, pod in roles.items()}

    @contextlib.contextmanager
    def load(self, rate: float = 2.0) -> Iterator[None]:
        """So many new pods a second in the other pools: the oldest is deleted, and its Deployment makes another."""
        stopped = threading.Event()

        def run() -> None:
            with contextlib.closing(connect(self.plane.kubeconfig)) as api:
                for pool in itertools.cycle(("first", "second")):
                    if stopped.wait(1 / rate):
                        return
                    with contextlib.suppress(httpx.HTTPError, ApiError):
                        _replace_oldest(api, pool)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def _pool(self, name: str, version: str) -> None:
        selector = {GROUP: SERVING, substrate.VERSION_LABEL: version}
        replicas, room = self._count * EACH, _room(CPU)
        substrate.pool(self.plane, SERVING, _called(name, version), replicas, nodeSelector=selector, resources=room)

    def _ateoms(self, version: str) -> list[Object]:
        pods = self.plane.api.list(f"/api/v1/namespaces/{SERVING}/pods", labelSelector=names.POOL_LABEL)
        return [pod for pod in pods if pinned(pod) == version and "deletionTimestamp" not in pod["metadata"]]

    def _atelets(self, version: str) -> list[Object]:
        return self.plane.api.list(ATELETS, labelSelector=f"app=atelet,{substrate.VERSION_LABEL}={version}")

    def _bound_atelets(self, version: str) -> set[str]:
        return {pod["spec"].get("nodeName", "") for pod in self._atelets(version)}

    def _metrics(self, role: str) -> Iterator[tuple[str, float]]:
        assert self.installed  # noqa: S101 - as above
        text = httpx.get(self.installed.pods[role].url("/metrics"), timeout=30, trust_env=False).text
        for line in text.splitlines():
            if not line.startswith("#"):
                yield line, float(line.rpartition(" ")[2])


@dataclass
class Attendance:
    """Looks whether nodes with ateoms of their version have its atelet, from the start of a `with` block on."""

    plane: ControlPlane
    looks: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    """Looks by node at which it had ateoms of its version, no atelet of it, and no other one that was ending."""
    unlabelled: Counter[str] = field(default_factory=Counter)
    """Looks at which it had ateoms, and not our label."""
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Attendance":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(connect(self.plane.kubeconfig)) as api:
            while not self._stopped.wait(0.25):
                with contextlib.suppress(httpx.HTTPError, ApiError):
                    self._look(api)

    def _look(self, api: Api) -> None:
        # Atelets last: what comes in between is an atelet more, and not an ateom more.
        nodes = api.list("/api/v1/nodes", labelSelector=f"{GROUP}={SERVING}")
        ateoms = api.list(f"/api/v1/namespaces/{SERVING}/pods", labelSelector=names.POOL_LABEL)
        atelets = api.list(ATELETS, labelSelector="app=atelet")
        self.looks += 1
        for node in nodes:
            name, labels = node["metadata"]["name"], node["metadata"]["labels"]
            versions = {pinned(pod) for pod in ateoms if pod["spec"].get("nodeName") == name}
            here = [pod for pod in atelets if meant_for(pod) == name]
            version = labels[substrate.VERSION_LABEL]
            attended = any(pod["metadata"]["labels"][substrate.VERSION_LABEL] == version for pod in here)
            ending = any("deletionTimestamp" in pod["metadata"] for pod in here)
            self.missing[name] += version in versions and not (attended or ending)
            self.unlabelled[name] += bool(versions) and names.NODE_LABEL not in labels


DELAYS: Final = {kubelets.STOP_DELAY: STOP, kubelets.START_DELAY: START}


def pinned(pod: Object) -> str:
    """The version that a pod's nodeSelector names."""
    found: str = pod["spec"].get("nodeSelector", {}).get(substrate.VERSION_LABEL, "")
    return found


def meant_for(pod: Object) -> str:
    """The node that a DaemonSet's pod is on, or was made for."""
    if node := pod["spec"].get("nodeName"):
        return str(node)
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def trouble(flips: Sequence[Flip], attendance: Attendance, within: float) -> list[str]:
    """What did not go as it should."""
    found = [
        f"{one.node}: ateoms of {one.version} {one.placed:.1f} s after there was room"
        for one in flips
        if one.placed > within
    ]
    found += [f"{node}: {count} looks without its atelet" for node, count in attendance.missing.items() if count]
    found += [f"{node}: {count} looks without our label" for node, count in attendance.unlabelled.items() if count]
    return found


def _replace_oldest(api: Api, pool: str) -> None:
    path = f"/api/v1/namespaces/{OTHERS}/pods"
    pods = api.list(path, labelSelector=f"{names.POOL_LABEL}={pool}")
    oldest = min(pods, key=lambda pod: pod["metadata"]["creationTimestamp"], default=None)
    if oldest:
        api.delete(f"{path}/{oldest['metadata']['name']}")


def _called(pool: str, version: str) -> str:
    return pool if version == OLD else f"{pool}-{version}"


def _room(cpu: str) -> Object:
    return {"requests": {"cpu": cpu, "memory": "64Mi"}}
