"""Upgrade and rollback on a real API server: what a Deployment's revisions refer to, and what old and new both read."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ateplace import names
from ateplace.errors import LocalError
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.pods import Installation, Pod
from ateplace.settings import load
from tests.deploying import NAMESPACE, OVERLAYS, ROLES, SECOND_SCHEDULER, claimed, newer


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    with ControlPlane(nodes=4) as running:
        substrate.install(running)
        yield running


def rolled_out(cluster: ControlPlane) -> dict[str, tuple[str, str]]:
    """The image and the settings of each role, once all its pods are of the newest revision."""
    found = {}
    for role in ROLES:
        name = f"deployment/ateplace-{role}"
        cluster.kubectl("rollout", "status", "-n", NAMESPACE, name, "--timeout=60s", timeout=90)
        (container,) = json.loads(cluster.kubectl("get", "-n", NAMESPACE, name, "-o", "json"))["spec"]["template"][
            "spec"
        ]["containers"]
        found[role] = (container["image"].rpartition(":")[2], container["envFrom"][0]["configMapRef"]["name"])
    return found


def test_rollout_undo_brings_back_the_old_pods_with_the_old_settings(cluster: ControlPlane, tmp_path: Path) -> None:
    cluster.kubectl("apply", "--server-side", "-k", str(SECOND_SCHEDULER))
    old = rolled_out(cluster)
    cluster.kubectl("apply", "--server-side", "-k", str(newer(tmp_path)))
    new = rolled_out(cluster)
    assert {tag for tag, _ in new.values()} == {"v0.2.0"}
    assert all(old[role][1] != new[role][1] for role in ROLES)
    for role in ROLES:
        cluster.kubectl("rollout", "undo", "-n", NAMESPACE, f"deployment/ateplace-{role}")
    assert rolled_out(cluster) == old
    for settings in {name for _, name in old.values()} | {name for _, name in new.values()}:
        data = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{settings}")["data"]
        assert (load(data).settings.extender.open_ahead == 3) == (settings == new["extender"][1])
    with pytest.raises(LocalError, match="--force-conflicts"):  # `undo` now owns what it changed
        cluster.kubectl("apply", "--server-side", "-k", str(newer(tmp_path)))
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(newer(tmp_path)))
    assert rolled_out(cluster) == new
    cluster.kubectl("apply", "--server-side", "-k", str(SECOND_SCHEDULER))
    assert rolled_out(cluster) == old


def test_a_version_takes_over_what_another_one_left(cluster: ControlPlane) -> None:
    """Claims in #134's form and in a form to come, Secrets with keys that we do not know: kept, used, not rewritten."""
    cluster.api.post("/api/v1/namespaces", {"metadata": {"name": "agents"}})
    installed = Installation(cluster, SECOND_SCHEDULER, reconciler__linger=5)
    installed.start()
    room = {"requests": {"cpu": "50m", "memory": "32Mi"}}
    forms = {"web": "", "api": "to come: 7, since=yesterday"}
    """Pools, and what stands in their claims."""
    pools = {name: substrate.pool(cluster, "agents", name, 3, resources=room) for name in forms}

    def running() -> list[Object]:
        pods = cluster.api.list("/api/v1/namespaces/agents/pods", labelSelector="ate.dev/worker-pool")
        return [pod for pod in pods if pod["status"].get("phase") == "Running"]

    def held() -> set[str]:
        """The nodes that are claimed, by each pool the same ones."""
        first, second = (set(claimed(cluster, pool)) for pool in pools.values())
        assert first == second, (first, second)
        return first

    cluster.wait(lambda: len(running()) == 6 and len(held()) == 1, timeout=60, why="the pools, on one node")
    (node,) = held()
    secrets = [
        f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}"
        for name in (names.CA_CERTIFICATE, names.WEBHOOK_CERTIFICATE, names.SCHEDULER_CERTIFICATE)
    ]
    before = {path: cluster.api.get(path)["data"] for path in secrets}
    for role in ("reconciler", "extender", "webhook"):
        _end(installed.pods[role])
    claims = {names.claim_key(pools[name]["metadata"]["uid"]): value for name, value in forms.items()}
    cluster.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": claims}})
    for path in secrets:
        cluster.api.patch(path, {"data": {"to-come.txt": "eA=="}})
    for role in ("reconciler", "extender", "webhook"):
        installed.pods[role].run()
    cluster.wait(installed.ready, timeout=90, why="ateplace to be ready again")
    for name in pools:
        substrate.scale(cluster, "agents", name, 6)
    cluster.wait(lambda: len(running()) == 12, timeout=60, why="the pools to grow")
    assert {pod["spec"]["nodeName"] for pod in running()} == held() == {node}
    for path in secrets:
        assert cluster.api.get(path)["data"] == before[path] | {"to-come.txt": "eA=="}
    for name in pools:
        substrate.delete(cluster, "agents", name)
    left = [f"{substrate.POOLS.format('agents')}/{name}" for name in pools]
    cluster.wait(lambda: not any(map(cluster.api.exists, left)) and not held(), timeout=60, why="the end")


def _end(pod: Pod) -> None:
    assert pod.plane.stop(pod.name, timeout=60) == 0


def test_an_unknown_setting_is_refused_by_name_before_anything_is_served() -> None:
    """Why each revision has a ConfigMap of its own: an older version would not start with a newer one's settings."""
    environment = {"ATEPLACE_EXTENDER_TO_COME": "1", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "ateplace.cli", "extender"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, cwd=OVERLAYS["dev"].parents[2]
    )
    assert done.returncode == 2 and "extender.to_come" in done.stderr
