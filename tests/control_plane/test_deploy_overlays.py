"""The whole journey from the other overlays' manifests: development, cert-manager's certificates, the cluster's own
scheduler."""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from ateplace import names
from ateplace.certs.authority import Use, Wanted, issue, make_authority
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.plane import STOCK
from ateplace.local.pods import Installation
from ateplace.local.witness import Witness
from tests import third_party
from tests.deploying import DEPLOY, NAMESPACE, OVERLAYS, ROLES, assert_no_difference, claimed, of_kind, render

CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/ateplace"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """Without a scheduler: one of the overlays is about the default one. Its parameter is Agent Substrate's shape."""
    with ControlPlane(nodes=3, scheduler=False) as running:
        substrate.use(running, substrate.SHAPES[getattr(request, "param", "new")])
        substrate.install(running)
        running.api.post("/api/v1/namespaces", {"metadata": {"name": "agents"}})
        yield running


def journey(plane: ControlPlane, scheduler: str) -> list[Object]:
    """A pool comes, is placed on one claimed node beside a Ready atelet, shrinks to nothing, and goes without a trace;
    its pods."""
    with Witness(plane, scheduler=scheduler) as witness:
        room = {"requests": {"cpu": "100m", "memory": "64Mi"}}
        pool = substrate.pool(plane, "agents", "web", 4, resources=room)

        def running() -> list[Object]:
            found = plane.api.list("/api/v1/namespaces/agents/pods", labelSelector="ate.dev/worker-pool=web")
            return found if sum(pod["status"].get("phase") == "Running" for pod in found) == 4 else []

        placed = plane.wait(running, timeout=60, why="the pool to run")
        (node,) = {pod["spec"]["nodeName"] for pod in placed}
        assert (witness.violations(), witness.bound) == ([], 4)
    plane.wait(lambda: atelets(plane) == {node}, timeout=60, why="atelet to be Ready there, and nowhere else")
    substrate.scale(plane, "agents", "web", 0)
    plane.wait(lambda: not claimed(plane, pool), timeout=60, why="the claims of a pool without pods to go")
    assert not plane.api.list("/api/v1/nodes", labelSelector=names.NODE_LABEL)
    plane.wait(lambda: not atelets(plane), timeout=60, why="atelet to go with the label")
    substrate.delete(plane, "agents", "web")
    path = f"{substrate.POOLS.format('agents')}/web"
    plane.wait(lambda: not plane.api.exists(path), timeout=60, why="the pool to go")
    return placed


def atelets(plane: ControlPlane) -> set[str]:
    """The nodes on which atelet is Ready."""
    return {
        pod["spec"]["nodeName"]
        for pod in plane.api.list(f"/api/v1/namespaces/{names.ATELET_NAMESPACE}/pods", labelSelector="app=atelet")
        if any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))
    }


@pytest.mark.parametrize("cluster", ["new", "old"], indirect=True)
def test_on_ones_own_machine(cluster: ControlPlane) -> None:
    overlay = OVERLAYS["dev"]
    cluster.add_scheduler(STOCK)
    installed = Installation(cluster, overlay, reconciler__linger=3)
    installed.start()
    journey(cluster, "ateplace-scheduler")
    for role in ROLES:
        said = cluster.log(f"ateplace-{role}").read_text()
        assert " DEBUG " in said and not any(line.startswith("{") for line in said.splitlines())
        (container,) = installed.deployments[role]["spec"]["template"]["spec"]["containers"]
        assert (installed.deployments[role]["spec"]["replicas"], container["image"]) == (1, "ateplace:dev")
    ours = cluster.api.list(f"/api/v1/namespaces/{NAMESPACE}/pods")
    assert len(ours) == 4
    assert_no_difference(cluster, overlay)


class CertManager:
    """What cert-manager and its injector do with our manifests, once."""

    def __init__(self, plane: ControlPlane, objects: list[Object]) -> None:
        self._plane = plane
        self._certificates = of_kind(objects, "Certificate")
        self._configuration = of_kind(objects, "MutatingWebhookConfiguration")["ateplace"]

    def work(self) -> None:
        now = datetime.now(UTC)
        authority = make_authority(now, 3650)
        for certificate in self._certificates.values():
            spec = certificate["spec"]
            if spec.get("isCA"):
                pair = authority
            else:
                use = Use.CLIENT if "client auth" in spec["usages"] else Use.SERVER
                pair = issue(authority, Wanted(use, tuple(spec["dnsNames"])), now, 30)
            files = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
            data = {name: base64.b64encode(content).decode() for name, content in files.items()}
            body = {"metadata": {"name": spec["secretName"]}, "type": "kubernetes.io/tls", "data": data}
            self._plane.api.post(SECRETS, body)
        source = self._configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"].partition("/")[2]
        secret = self._plane.api.get(f"{SECRETS}/{self._certificates[source]['spec']['secretName']}")
        change = {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": secret["data"]["ca.crt"]}
        self._plane.api.patch(CONFIGURATION, [change], kind="json")


def test_with_certificates_from_cert_manager(cluster: ControlPlane) -> None:
    overlay = OVERLAYS["cert-manager"]
    cluster.add_scheduler(STOCK)
    for path in third_party.definitions(third_party.CERT_MANAGER, "certificates", "issuers"):
        cluster.define(path)
    installed = Installation(cluster, overlay, reconciler__linger=3)
    CertManager(cluster, render(overlay)).work()
    before = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in cluster.api.list(SECRETS)}
    installed.start()
    journey(cluster, "ateplace-scheduler")
    after = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in cluster.api.list(SECRETS)}
    assert after == before
    assert_no_difference(cluster, overlay)


def own_scheduler(plane: ControlPlane, directory: Path) -> dict[str, Any]:
    """The shipped configuration, with what an operator does by hand: files in place, an address instead of a name."""
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "scheduler" / "default-scheduler.yaml").read_text("utf-8"))
    secret = plane.wait(lambda: _read(plane, "ateplace-scheduler-client"), timeout=60, why="the client certificate")
    for name, text in secret["data"].items():
        (directory / name).write_bytes(base64.b64decode(text))
    (extender,) = document["extenders"]
    address = plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/services/ateplace-extender")["spec"]["clusterIP"]
    extender["urlPrefix"] = extender["urlPrefix"].replace("ateplace-extender.ateplace-system.svc", address)
    tls = extender["tlsConfig"]
    tls |= {key: str(directory / Path(tls[key]).name) for key in ("caFile", "certFile", "keyFile")}
    del document["leaderElection"]
    return document


def _read(plane: ControlPlane, name: str) -> Object:
    return plane.api.get(f"{SECRETS}/{name}") if plane.api.exists(f"{SECRETS}/{name}") else {}


def test_with_the_clusters_own_scheduler(cluster: ControlPlane, tmp_path: Path) -> None:
    overlay = OVERLAYS["kube-scheduler-config"]
    installed = Installation(cluster, overlay, reconciler__linger=3)
    installed.start()
    cluster.add_scheduler(STOCK, own_scheduler(cluster, tmp_path))
    placed = journey(cluster, STOCK)
    for pod in placed:
        (init,) = [each for each in pod["spec"]["initContainers"] if each["name"] == "wait-for-atelet"]
        assert init["resources"]["requests"]["ateplace.ate.dev/gate"] == "1"
    ours = cluster.api.list(f"/api/v1/namespaces/{NAMESPACE}/pods")
    assert len(ours) == 6 and all(pod["status"].get("phase") == "Running" for pod in ours)
    assert_no_difference(cluster, overlay)
