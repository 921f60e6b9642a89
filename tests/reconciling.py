"""What the reconciler's tests share: reconcilers as processes, ateoms without a controller, and the naive model."""

import contextlib
import itertools
import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from ateplace import names
from ateplace.kube.objects import MIRROR_ANNOTATION
from ateplace.local import ApiError, ControlPlane, substrate
from ateplace.local.api import Object

NODES = "/api/v1/nodes"
POOLS = "/apis/ate.dev/v1alpha1/workerpools"
SHORT: Mapping[str, float] = {"linger": 1, "resync": 5, "atelet_late": 1, "deletion_slow": 1, "unbound_wait": 3}
"""Settings under which waiting is bearable."""

BASE = Path(__file__).parents[1] / "deploy" / "base"
RIGHTS = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}

ATEPLACE = (sys.executable, "-m", "ateplace.cli")

_numbers = itertools.count()


class Reconciler:
    """One process. Those that share `lease` (a namespace) elect a leader among them.

    `settings` are the reconciler's, or another group's as `group__field`; `program` runs instead of `ateplace`.
    """

    def __init__(
        self, plane: ControlPlane, lease: str, *roles: str, program: Sequence[str] = ATEPLACE, **settings: Any
    ) -> None:
        self.plane = plane
        self.name = f"reconciler-{next(_numbers)}"
        self.lease = lease
        self._program = program
        self._roles = roles or ("reconciler",)
        self._settings = {**SHORT, **settings}
        self._identity = identity(plane, lease)

    def start(self, **settings: Any) -> "Reconciler":
        """Start it (again) and wait until it is ready."""
        log = self.plane.log(self.name)
        before = log.stat().st_size if log.exists() else 0
        flags: dict[str, object] = {
            "cluster.kubeconfig": self._identity,
            "cluster.namespace": self.lease,
            "serve.host": "127.0.0.1",
            "serve.health_port": 0,
            "certs.managed": "false",
            "log.format": "json",
        }
        for key, value in (self._settings | settings).items():
            group, _, field = key.rpartition("__")
            flags["cluster.kubeconfig" if key == "kubeconfig" else f"{group or 'reconciler'}.{field}"] = value
        argv = [*self._program, *self._roles]
        self.pid = self.plane.run(self.name, [*argv, *(f"--set={key}={value}" for key, value in flags.items())])

        def port() -> int:
            for line in log.read_text()[before:].splitlines():
                with contextlib.suppress(ValueError, KeyError):
                    return int(json.loads(line)["health_port"])
            return 0

        self.port = self.plane.wait(port, why="the reconciler to start")
        self.plane.wait(self.ready, why="the reconciler to be ready")
        return self

    def beside(self) -> "Reconciler":
        """Another one that stands for the same lease, and reaches the API server by itself."""
        settings = {key: value for key, value in self._settings.items() if key != "kubeconfig"}
        return Reconciler(self.plane, self.lease, *self._roles, program=self._program, **settings)

    def ready(self) -> bool:
        return self._get("readyz").status_code == 200

    def readiness(self) -> str:
        return self._get("readyz").text

    def metrics(self) -> dict[str, float]:
        """Every sample by its name and labels, as written."""
        lines = (line for line in self._get("metrics").text.splitlines() if not line.startswith("#"))
        return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines)}

    def leads(self) -> bool:
        return self.metrics()["ateplace_leader"] == 1

    def missed(self) -> float:
        """What full comparisons found that events had not told."""
        return sum(value for key, value in self.metrics().items() if key.startswith("ateplace_missed_changes_total"))

    def _get(self, path: str) -> httpx.Response:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/{path}", timeout=5, trust_env=False)
        except httpx.HTTPError as error:
            raise AssertionError(f"{self.name}: {error}") from error

    def said(self) -> str:
        return self.plane.log(self.name).read_text()

    def stop(self) -> int:
        return self.plane.stop(self.name)

    def kill(self) -> None:
        self.plane.stop(self.name, signal.SIGKILL)

    def restart(self, **settings: Any) -> None:
        self.stop()
        self.start(**settings)


def identity(plane: ControlPlane, namespace: str) -> Path:
    """A kubeconfig for a ServiceAccount in this namespace with exactly the reconciler's shipped rights.

    The cluster-wide ones are copies under names of their own, and go with the namespace.
    """
    owner = plane.api.get(f"/api/v1/namespaces/{namespace}")["metadata"]
    reference = {"apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": owner["uid"]}
    text = "---\n".join((BASE / name).read_text("utf-8") for name in ("reconciler.yaml", "atelet-access.yaml"))
    rights = []
    for document in yaml.safe_load_all(text.replace(names.NAMESPACE, namespace)):
        if document["kind"] not in RIGHTS:
            continue
        if document["kind"].startswith("Cluster"):
            document["metadata"]["name"] += f"-{namespace}"
            document["metadata"]["ownerReferences"] = [reference]
        if document.get("roleRef", {}).get("kind") == "ClusterRole":
            document["roleRef"]["name"] += f"-{namespace}"
        rights.append(document)
    plane.apply(rights)
    return plane.kubeconfig_for(service_account=f"{namespace}/ateplace-reconciler")


@contextlib.contextmanager
def reconciling(plane: ControlPlane, *roles: str, count: int = 1, **settings: Any) -> Iterator[list[Reconciler]]:
    """Run reconcilers with a lease of their own; afterwards no pool is left with our finalizer."""
    lease = f"lease-{uuid.uuid4().hex[:8]}"
    plane.api.post("/api/v1/namespaces", {"metadata": {"name": lease}})
    running = [Reconciler(plane, lease, *roles, **settings) for _ in range(count)]
    try:
        for each in running:
            each.start()
        yield running
    finally:
        for each in running:
            with contextlib.suppress(Exception):
                plane.stop(each.name, signal.SIGKILL)
        plane.api.delete(f"/api/v1/namespaces/{lease}")
        for pool in plane.api.list(POOLS):
            unhold(plane, pool)


def unhold(plane: ControlPlane, pool: Object) -> None:
    """Take our finalizer off a pool, as nobody should."""
    meta = pool["metadata"]
    left = [name for name in meta.get("finalizers", ()) if name != names.FINALIZER]
    with contextlib.suppress(ApiError):
        plane.api.patch(f"{pool_path(meta['namespace'], meta['name'])}", {"metadata": {"finalizers": left}})


@contextlib.contextmanager
def agent_substrate(plane: ControlPlane, *, controller: bool = True) -> Iterator[None]:
    """WorkerPools and atelet, and the controller for as long as the block lasts."""
    substrate.install(plane, controller=controller)
    try:
        yield
    finally:
        if controller:
            plane.stop("ate-controller", signal.SIGKILL)


def wait_for_the_garbage_collector(plane: ControlPlane, namespace: str) -> None:
    """Return once it knows of WorkerPools: it looks for new kinds twice a minute, and orphans nothing until then."""
    canary = f"canary-{uuid.uuid4().hex[:8]}"
    substrate.pool(plane, namespace, canary)
    substrate.delete(plane, namespace, canary, "Orphan")
    plane.wait(
        lambda: not plane.api.exists(pool_path(namespace, canary)), timeout=90, why="garbage collection", every=0.5
    )


def pool_path(namespace: str, name: str) -> str:
    return f"/apis/ate.dev/v1alpha1/namespaces/{namespace}/workerpools/{name}"


def pool(plane: ControlPlane, namespace: str, name: str) -> str:
    """A pool without pods; its UID."""
    uid: str = substrate.pool(plane, namespace, name)["metadata"]["uid"]
    return uid


def ateom(
    plane: ControlPlane,
    namespace: str,
    pool: str,
    uid: str = "",
    node: str = "",
    *,
    finalizers: tuple[str, ...] = (),
    annotations: Mapping[str, str] | None = None,
    extra: Mapping[str, str] | None = None,
    gated: bool = False,
    grace: int = 1,
) -> Object:
    """A pod that looks like an ateom of the pool: `uid` is its pool's (none: made before us), `node` presets it."""
    labels = {names.POOL_LABEL: pool} | ({names.POOL_UID_LABEL: uid} if uid else {}) | dict(extra or {})
    meta = {
        "generateName": f"{pool}-",
        "labels": labels,
        "finalizers": list(finalizers),
        "annotations": dict(annotations or {}),
    }
    spec: Object = {
        "nodeName": node,
        "schedulerName": "nobody",
        "terminationGracePeriodSeconds": grace,
        "containers": [{"name": "ateom", "image": "registry.example/ateom:1"}],
    }
    if gated:
        spec["schedulingGates"] = [{"name": "example.com/wait"}]
    return plane.api.post(f"/api/v1/namespaces/{namespace}/pods", {"metadata": meta, "spec": spec})


def pod_path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def force_delete(plane: ControlPlane, pod: Object) -> None:
    plane.api.delete(pod_path(pod), {"gracePeriodSeconds": 0})


def wait_until_running(plane: ControlPlane, pods: Sequence[Object]) -> None:
    plane.wait(
        lambda: all(plane.api.get(pod_path(pod))["status"].get("phase") == "Running" for pod in pods),
        why="the pods to run",
    )


def claims(plane: ControlPlane, node: str) -> tuple[set[str], bool]:
    """The pools that have a claim on the node, and whether it is labelled; nothing when there is no such Node."""
    try:
        return node_claims(plane.api.get(f"{NODES}/{node}"))
    except ApiError as error:
        if error.status == 404:
            return set(), False
        raise


def node_claims(node: Object) -> tuple[set[str], bool]:
    meta = node["metadata"]
    pools = {uid for key in meta.get("annotations", {}) if (uid := names.claimed_pool(key)) is not None}
    return pools, meta.get("labels", {}).get(names.NODE_LABEL) == "true"


class Model:
    """The naive model: what the API server has now, and so what claims there should be. No linger, no history."""

    def __init__(self, plane: ControlPlane) -> None:
        pools = plane.api.list(POOLS)
        self.living = {pool["metadata"]["uid"] for pool in pools}
        named = {(pool["metadata"]["namespace"], pool["metadata"]["name"]): pool["metadata"]["uid"] for pool in pools}
        nodes = plane.api.list(NODES)
        self.found = {node["metadata"]["name"]: node_claims(node) for node in nodes}
        self.wanted: dict[str, set[str]] = {name: set() for name in self.found}
        self.orphaned: dict[str, set[str]] = {name: set() for name in self.found}
        """Pools that are gone and have pods on a node: claims of theirs that were there stay, others are not added."""
        self.homeless: set[str] = set()
        """Nodes with ateoms of which nobody can say whose they are."""
        for pod in plane.api.list("/api/v1/pods", labelSelector=names.POOL_LABEL):
            meta = pod["metadata"]
            node = pod["spec"].get("nodeName", "")
            if MIRROR_ANNOTATION in meta.get("annotations", {}):
                continue
            if node not in self.found or pod["status"].get("phase") in {"Succeeded", "Failed"}:
                continue
            labels = meta["labels"]
            uid = labels.get(names.POOL_UID_LABEL) or named.get((meta["namespace"], labels[names.POOL_LABEL]))
            if uid:
                (self.wanted if uid in self.living else self.orphaned)[node].add(uid)
            else:
                self.homeless.add(node)

    def wrong(self) -> dict[str, str]:
        """Nodes that are not as they should be, and in what."""
        return {name: what for name in self.found if (what := self._wrong(name))}

    def _wrong(self, name: str) -> str:
        (found, labelled), wanted = self.found[name], self.wanted[name]
        if name in self.homeless:
            # They keep the claims, and the label, of pools that are gone: nothing says that they are not those pools'.
            found = found & (self.living | wanted | self.orphaned[name])
            labelled = labelled and bool(found)
        if found - self.orphaned[name] != wanted:
            return f"lacks {wanted - found}, leaks {found - wanted}"
        return "" if labelled == bool(found) else f"label {labelled} with claims {found}"


def settled(plane: ControlPlane) -> bool:
    """Whether the cluster is what the model says; an AssertionError names the nodes that are not."""
    wrong = Model(plane).wrong()
    assert not wrong, f"{len(wrong)} nodes are wrong: {dict(list(wrong.items())[:5])}"
    return True


def spread(plane: ControlPlane, namespace: str, nodes: list[str], replicas: int) -> str:
    """A pool whose pods are on all of these nodes and nowhere else; its UID."""
    where = {"test": namespace}
    for node in nodes:
        plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": where}})
    uid: str = substrate.pool(plane, namespace, "web", replicas, nodeSelector=where)["metadata"]["uid"]
    plane.wait(
        lambda: all(claims(plane, node) == ({uid}, True) for node in nodes),
        why=f"{uid} to be claimed for on every node",
    )
    plane.wait(lambda: bound(plane, namespace) == replicas, why="all pods to be bound")
    return uid


def bound(plane: ControlPlane, namespace: str) -> int:
    """How many ateoms there have a node."""
    pods = plane.api.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=names.POOL_LABEL)
    return sum(bool(pod["spec"].get("nodeName")) for pod in pods)


def held(plane: ControlPlane, namespace: str) -> bool:
    """Whether every pool there carries our finalizer."""
    return all(
        names.FINALIZER in pool["metadata"].get("finalizers", ())
        for pool in plane.api.list(POOLS)
        if pool["metadata"]["namespace"] == namespace
    )


def ateplace(plane: ControlPlane, *arguments: str, fails: bool = False) -> str:
    """What a command says, as the plane's admin."""
    flag = f"--set=cluster.kubeconfig={plane.kubeconfig}"
    argv = [*ATEPLACE, *arguments, flag]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=180)
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stdout + done.stderr
