"""ateplace as the README installs it: its own image, its manifests unchanged, eight real pods.

The tests are one story and run in this order: ateoms run already, ateplace is installed, it migrates, it is looked at,
hurt, and uninstalled.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import ApiError, Object
from ateplace.local.kubeconfig import connect
from ateplace.local.realnode import RealNode, config, oci
from tests.deploying import NAMESPACE, ROLES, SECOND_SCHEDULER, render
from tests.node import building
from tests.node.observing import SMALL, atelets, claimed, containers, incarnations, running

pytestmark = pytest.mark.long
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEMO, EARLY = "demo", "early"
CREATORS = 4
"""Clients that create ateoms at the same time."""
UNNOTICED = 4.0
"""Seconds within which a killed process has no endpoint any more; docs/operations.md says so."""


class Cluster(NamedTuple):
    plane: ControlPlane
    node: RealNode


@pytest.fixture(scope="module")
def before(archive: Path) -> Iterator[Cluster]:
    """A cluster with one node, atelet on it, and ateoms of a pool; ateplace is not there."""
    with ControlPlane(real_nodes=True, services=config.SERVICES) as plane:
        images: dict[str, oci.Image | Path] = {building.NAME: archive, scheduler_image(): scheduler(plane)}
        with RealNode(plane, images=images) as node:
            plane.wait(node.ready, timeout=120, why="the real node to be Ready", every=0.2)
            substrate.install(plane, gated=False)
            plane.api.post("/api/v1/namespaces", {"metadata": {"name": DEMO}})
            substrate.pool(plane, DEMO, EARLY, 3, resources=SMALL)
            plane.wait(running(plane, DEMO, 3), timeout=60, why="three ateoms", every=0.2)
            yield Cluster(plane, node)


@pytest.fixture(scope="module")
def cluster(before: Cluster, tell: Callable[[str], None]) -> Cluster:
    """With ateplace, as soon as its eight pods are ready."""
    before.plane.kubectl("apply", "--server-side", "-k", str(SECOND_SCHEDULER))
    began = time.monotonic()
    before.plane.wait(lambda: rolled_out(before.plane), timeout=120, why="eight pods to be ready", every=0.1)
    tell(f"eight pods are ready {time.monotonic() - began:.1f} s after `kubectl apply`")
    return before


def scheduler_image() -> str:
    """The name of kube-scheduler's image in our manifests."""
    (name,) = {
        container["image"]
        for each in render(SECOND_SCHEDULER)
        if each["kind"] == "Deployment" and each["metadata"]["name"] == "ateplace-scheduler"
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    return str(name)


def scheduler(plane: ControlPlane) -> oci.Image:
    """The plane's own kube-scheduler, where the published image has it."""
    files = {place: oci.Entry() for place in ("usr", "usr/local", "usr/local/bin")}
    files["usr/local/bin/kube-scheduler"] = oci.Entry(plane.binaries["kube-scheduler"].read_bytes())
    return oci.image(files, path="/usr/local/bin")


def rolled_out(plane: ControlPlane) -> bool:
    found = plane.api.list(DEPLOYMENTS)
    behind = {each["metadata"]["name"]: each.get("status", {}) for each in found if not settled(each)}
    assert len(found) == 4 and not behind, behind
    return True


def settled(deployment: Object) -> bool:
    status, wanted = deployment.get("status", {}), deployment["spec"]["replicas"]
    counts = [status.get(f"{kind}eplicas", 0) for kind in ("r", "updatedR", "readyR", "availableR")]
    return counts == [wanted] * 4 and status.get("observedGeneration") == deployment["metadata"]["generation"]


def ateplace(plane: ControlPlane, *arguments: str) -> str:
    """What the command prints; it must succeed."""
    argv = [sys.executable, "-m", "ateplace.cli", *arguments, "--set", f"cluster.kubeconfig={plane.kubeconfig}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_pod(plane: ControlPlane, deployment: str, *command: str) -> str:
    return plane.kubectl("exec", "-n", NAMESPACE, f"deploy/ateplace-{deployment}", "--", *command)


def test_the_doctor_finds_nothing_broken_right_after_the_installation(cluster: Cluster) -> None:
    """atelet is not gated before `migrate`, and doctor says so; all else is as it should be."""
    checks = ("roles", "settings", "leader", "rbac", "certificates", "webhook", "scheduler", "claims")
    said = ateplace(cluster.plane, "doctor", *(word for check in checks for word in ("--check", check)))
    assert " 0 warn, 0 fail" in said


def test_the_installation_starts_each_scheduler_once(cluster: Cluster) -> None:
    """Its pods wait for a Secret; what is changed in their template is changed before there is one."""
    found = cluster.plane.api.list(f"/api/v1/namespaces/{NAMESPACE}/events", fieldSelector="reason=Started")
    started = {each["involvedObject"]["name"]: each.get("count", 1) for each in found}
    schedulers = {name: count for name, count in started.items() if name.startswith("ateplace-scheduler-")}
    assert list(schedulers.values()) == [1, 1], schedulers


def test_its_pods_run_as_the_manifests_say(cluster: Cluster) -> None:
    pods = [pod for pod in cluster.plane.api.list(PODS) if not pod["metadata"].get("deletionTimestamp")]
    assert len(pods) == 8
    assert {each["restartCount"] for pod in pods for each in pod["status"]["containerStatuses"]} == {0}
    user = in_pod(cluster.plane, "webhook", "python", "-c", "import os; print(os.getuid(), os.getgid())")
    assert user == "65532 65532\n"
    script = "import os, sys; print([p for p in ('/', '/tmp', '/opt/ateplace', '/etc') if os.access(p, os.W_OK)])"
    assert in_pod(cluster.plane, "webhook", "python", "-c", script) == "[]\n"
    missing = "import importlib.util as u; print(u.find_spec('pip'), u.find_spec('ensurepip'), u.find_spec('local'))"
    assert in_pod(cluster.plane, "webhook", "python", "-c", missing) == "None None None\n"


def test_its_command_starts_quickly_where_nothing_can_be_written(cluster: Cluster, tell: Callable[[str], None]) -> None:
    """By the clock it depends on what else the machine does; by the processor's time it does not."""
    script = (
        "import os, subprocess, time\n"
        "took = []\n"
        "for _ in range(5):\n"
        "    began, used = time.perf_counter(), sum(os.times()[2:4])\n"
        "    said = subprocess.run(['ateplace', '--help'], capture_output=True, check=True, text=True).stdout\n"
        "    took.append((sum(os.times()[2:4]) - used, time.perf_counter() - began))\n"
        "print(*min(took), said)"
    )
    used, seconds, said = in_pod(cluster.plane, "reconciler", "python", "-c", script).split(" ", 2)
    tell(f"ateplace --help in the image: {float(seconds) * 1000:.0f} ms, {float(used) * 1000:.0f} ms of a processor")
    assert "usage: ateplace" in said.lower()
    assert float(used) < 0.5


def test_every_module_of_ours_can_be_imported_in_the_image(cluster: Cluster) -> None:
    script = (
        "import importlib, pkgutil, ateplace\n"
        "names = [each.name for each in pkgutil.walk_packages(ateplace.__path__, 'ateplace.')]\n"
        "names = [name for name in names if not name.endswith('__main__')]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(*names)"
    )
    found = in_pod(cluster.plane, "reconciler", "python", "-c", script).split()
    assert {name.split(".")[1] for name in found} >= {"cli", "cluster", "kube", "process", "certs", *ROLES}


class Callers:
    """Connects to atelet on its node, from inside it, all the time."""

    def __init__(self, node: RealNode) -> None:
        self._network = node.network()
        self._address = (node.address, 8085)
        self._stop = threading.Event()
        self.connected = 0
        self.failed: list[str] = []

    def __enter__(self) -> "Callers":
        self._threads = ThreadPoolExecutor(4)
        self._done = [self._threads.submit(self._network.run, self._call) for _ in range(4)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._threads.shutdown()
        self._network.close()

    def _call(self) -> None:
        while not self._stop.wait(0.005):
            try:
                with socket.create_connection(self._address, 5):
                    self.connected += 1
            except OSError as error:
                self.failed.append(str(error))


def test_migrating_costs_no_connection_to_atelet(cluster: Cluster, tell: Callable[[str], None]) -> None:
    plane, node = cluster
    (atelet,) = atelets(plane)
    before = incarnations(plane, DEMO)
    ateplace(plane, "migrate", "--dry-run")
    with Callers(node) as callers:
        ateplace(plane, "migrate")
        plane.wait(lambda: callers.connected >= 1000, timeout=60, why="a thousand connections", every=0.1)
    tell(f"migrate: {callers.connected} connections to atelet, {len(callers.failed)} failed")
    assert callers.failed == []
    assert claimed(plane, node)
    assert [pod["metadata"]["uid"] for pod in atelets(plane)] == [atelet["metadata"]["uid"]]
    assert incarnations(plane, DEMO) == before
    assert " 0 fail" in ateplace(plane, "doctor")


def test_a_pool_comes_and_goes(cluster: Cluster) -> None:
    come_and_go(cluster.plane, "web")


def come_and_go(plane: ControlPlane, name: str) -> None:
    """Three ateoms that pass every part of ateplace."""
    substrate.pool(plane, DEMO, name, 3, resources=SMALL)
    label = f"{names.POOL_LABEL}={name}"
    path = f"/api/v1/namespaces/{DEMO}/pods"

    def look() -> bool:
        found = plane.api.list(path, labelSelector=label)
        assert [pod["status"]["phase"] for pod in found] == ["Running"] * 3, [pod["status"] for pod in found]
        return all(names.POOL_UID_LABEL in pod["metadata"]["labels"] for pod in found)

    plane.wait(look, timeout=60, why="three ateoms", every=0.2)
    substrate.delete(plane, DEMO, name)
    pool = f"{substrate.POOLS.format(DEMO)}/{name}"
    plane.wait(
        lambda: not plane.api.exists(pool) and not plane.api.list(path, labelSelector=label),
        timeout=60,
        why="their end",
        every=0.2,
    )


class Reviews:
    """Creates ateoms, without storing them, all the time."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._stop = threading.Event()
        self.answered = 0
        self.failed: list[tuple[float, str]] = []
        """When, and why."""
        pod = plane.api.list(f"/api/v1/namespaces/{DEMO}/pods")[0]
        (owner,) = pod["metadata"]["ownerReferences"]
        made_by = plane.api.get(f"/apis/apps/v1/namespaces/{DEMO}/replicasets/{owner['name']}")
        kept = ("generateName", "labels", "ownerReferences")
        self._pod: Object = {
            "metadata": {key: pod["metadata"][key] for key in kept},
            "spec": made_by["spec"]["template"]["spec"],
        }

    def __enter__(self) -> "Reviews":
        self._threads = [threading.Thread(target=self._ask) for _ in range(CREATORS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        api = connect(self._plane.kubeconfig)
        while not self._stop.wait(0.02):
            try:
                api.post(f"/api/v1/namespaces/{DEMO}/pods", self._pod, dryRun="All")
                self.answered += 1
            except ApiError as error:
                self.failed.append((time.monotonic(), str(error)))
        api.close()


def roll_webhook(cluster: Cluster) -> None:
    cluster.plane.kubectl("rollout", "restart", "-n", NAMESPACE, "deployment/ateplace-webhook")


def delete_webhook_pod(cluster: Cluster) -> None:
    """Until it is gone: before that, its Deployment may not know yet that it lacks one."""
    path = f"{PODS}/{pods_of(cluster.plane, 'webhook')[0]['metadata']['name']}"
    cluster.plane.api.delete(path)
    cluster.plane.wait(lambda: not cluster.plane.api.exists(path), timeout=60, why="the pod's end", every=0.2)


def pods_of(plane: ControlPlane, role: str) -> list[Object]:
    found = plane.api.list(PODS, labelSelector=f"app.kubernetes.io/component={role}")
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


def kill_container(cluster: Cluster, pod: Object) -> None:
    """SIGKILL for its process."""
    uid = pod["metadata"]["uid"]
    for pid in cluster.node.processes("ateplace"):
        if uid in Path(f"/proc/{pid}/cgroup").read_text():
            os.kill(pid, signal.SIGKILL)
            return
    raise AssertionError(f"no process of {pod['metadata']['name']}")


def kill_webhook(cluster: Cluster) -> None:
    """Its kubelet starts it again."""
    pod = pods_of(cluster.plane, "webhook")[0]
    kill_container(cluster, pod)
    path = f"{PODS}/{pod['metadata']['name']}"

    def restarted() -> bool:
        return bool(containers(cluster.plane.api.get(path))[0]["restartCount"])

    cluster.plane.wait(restarted, timeout=60, why="the webhook to be started again", every=0.2)


@pytest.mark.parametrize("hurt", [roll_webhook, delete_webhook_pod])
def test_no_review_fails_while_the_webhook_is_replaced(
    cluster: Cluster, hurt: Callable[[Cluster], None], tell: Callable[[str], None]
) -> None:
    """Through a real Service: what kube-proxy knows of its pods lags behind."""
    reviews = reviews_during(cluster, hurt, tell)
    assert reviews.failed == []


def test_reviews_fail_for_a_moment_only_when_a_webhook_is_killed(cluster: Cluster, tell: Callable[[str], None]) -> None:
    """Those under way on it, and those sent to it until its endpoint is gone: the API server tries none again."""
    before = time.monotonic()
    reviews = reviews_during(cluster, kill_webhook, tell)
    assert len(reviews.failed) <= 2 * CREATORS
    assert [at - before for at, _ in reviews.failed if at - before > UNNOTICED] == []
    assert [said for _, said in reviews.failed if names.WEBHOOK_SERVICE not in said] == []


def reviews_during(cluster: Cluster, hurt: Callable[[Cluster], None], tell: Callable[[str], None]) -> Reviews:
    with Reviews(cluster.plane) as reviews:
        hurt(cluster)
        cluster.plane.wait(lambda: rolled_out(cluster.plane), timeout=120, why="the new pods", every=0.2)
        enough = reviews.answered + 100
        cluster.plane.wait(lambda: reviews.answered > enough, timeout=60, why="more reviews")
    tell(f"{hurt.__name__}: {reviews.answered} reviews, {len(reviews.failed)} failed")
    return reviews


@pytest.mark.parametrize("how", ["deleted", "killed"])
def test_another_reconciler_leads_when_the_leader_goes(cluster: Cluster, how: str, tell: Callable[[str], None]) -> None:
    plane = cluster.plane
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/ateplace-reconciler"
    first = plane.api.get(lease)["spec"]["holderIdentity"]
    (pod,) = (each for each in pods_of(plane, "reconciler") if each["metadata"]["name"] in first)
    if how == "deleted":
        plane.api.delete(f"{PODS}/{pod['metadata']['name']}")
    else:
        kill_container(cluster, pod)
    began = time.monotonic()
    plane.wait(
        lambda: plane.api.get(lease)["spec"].get("holderIdentity") not in {first, "", None},
        timeout=60,
        why="another leader",
    )
    tell(f"another leader {time.monotonic() - began:.1f} s after the first was {how}")
    plane.wait(lambda: rolled_out(plane), timeout=120, why="all pods", every=0.2)
    come_and_go(plane, f"after-{how}")


def test_uninstalling_gives_everything_back(cluster: Cluster) -> None:
    plane, node = cluster
    before = incarnations(plane, DEMO)
    ateplace(plane, "uninstall")
    plane.kubectl("delete", "-k", str(SECOND_SCHEDULER), "--ignore-not-found", timeout=120)
    assert not claimed(plane, node)
    assert len(atelets(plane)) == 1
    assert incarnations(plane, DEMO) == before
    with contextlib.suppress(ApiError):
        plane.wait(
            lambda: not plane.api.exists(f"/api/v1/namespaces/{NAMESPACE}"), timeout=60, why="the namespace's end"
        )
