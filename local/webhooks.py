"""Webhooks as processes, registered for namespaces of their own: for tests and benchmarks."""

import base64
import contextlib
import copy
import itertools
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import yaml

from ateplace import names
from ateplace.certs import authority
from ateplace.certs.catalogue import service_names
from ateplace.local.api import Object
from ateplace.local.plane import ControlPlane

BASE = Path(__file__).parent.parent / "deploy" / "base"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
SELECTED = "test.ateplace.ate.dev/webhook"
"""Label of the namespaces whose pods a test's webhook sees; its value is the webhook's name."""

_numbers = itertools.count()


def manifests(name: str) -> list[Object]:
    """The objects of one of the shipped files."""
    return [document for document in yaml.safe_load_all((BASE / name).read_text()) if document]


def install_access(plane: ControlPlane) -> None:
    """The shipped namespace, ServiceAccount, role and priority classes."""
    wanted = [each for each in manifests("namespace.yaml") if each["kind"] == "Namespace"]
    wanted += manifests("priority-classes.yaml")
    kinds = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
    wanted += [each for each in manifests("webhook.yaml") if each["kind"] in kinds]
    plane.apply(wanted)


class Webhook:
    """A process that serves reviews, with a certificate made on the spot and the rights that we ship."""

    def __init__(self, plane: ControlPlane, **settings: Any) -> None:
        self.plane = plane
        self.name = f"webhook-{next(_numbers)}"
        self.directory = Path(tempfile.mkdtemp(prefix="certs-", dir=plane.directory))
        self.port = self.health_port = 0
        self._settings = settings
        self._ca = authority.make_authority(datetime.now(UTC), days=1)

    def write_certificate(self) -> None:
        dns = (*service_names(names.WEBHOOK_SERVICE, names.NAMESPACE), "localhost")
        wanted = authority.Wanted(authority.Use.SERVER, dns=dns, addresses=("127.0.0.1",))
        pair = authority.issue(self._ca, wanted, datetime.now(UTC), days=1)
        for file, content in (("ca.crt", self._ca.certificate), ("tls.key", pair.key), ("tls.crt", pair.certificate)):
            (self.directory / file).write_bytes(content)

    @property
    def ca(self) -> bytes:
        return self._ca.certificate

    def launch(self) -> None:
        """Start the process, and wait only until it can be asked how it is."""
        flags = {
            "cluster.kubeconfig": self.plane.kubeconfig_for(service_account="ateplace-system/ateplace-webhook"),
            "serve.host": "127.0.0.1",
            "serve.health_port": 0,
            "webhook.port": 0,
            "webhook.tls_directory": self.directory,
            "certs.poll": 0.1,
            "log.format": "json",
        }
        flags |= self._settings
        argv = [sys.executable, "-m", "ateplace.cli", "webhook"]
        self.pid = self.plane.run(self.name, [*argv, *(f"--set={key}={value}" for key, value in flags.items())])
        self.health_port = self.plane.wait(lambda: self._said("started", "health_port"), why="the process to start")

    def start(self) -> "Webhook":
        """Start the process and wait until it is ready."""
        self.write_certificate()
        self.launch()
        self.plane.wait(self.ready, why="the webhook to be ready")
        self.port = self.plane.wait(lambda: self._said("webhook serves", "port"), why="the webhook's port")
        return self

    def stop(self) -> int:
        return self.plane.stop(self.name)

    def signal(self, number: signal.Signals) -> None:
        self.plane.keeper.signal(self.name, number)

    def ready(self) -> bool:
        said = self.readyz()
        assert said.status_code == 200, said.text  # noqa: S101 - `plane.wait` shows it
        return True

    def readyz(self) -> httpx.Response:
        return self._get("readyz")

    def reviews(self) -> dict[str, float]:
        """How many reviews there have been, by outcome."""
        found = {}
        for line in self._get("metrics").text.splitlines():
            if line.startswith('ateplace_webhook_reviews_total{outcome="'):
                key, _, value = line.rpartition(" ")
                found[key.split('"')[1]] = float(value)
        return found

    def _get(self, path: str) -> httpx.Response:
        try:
            return httpx.get(f"http://127.0.0.1:{self.health_port}/{path}", timeout=30, trust_env=False)
        except httpx.HTTPError as error:
            raise AssertionError(f"{self.name}: {error!r}") from error

    def log(self) -> str:
        return self.plane.log(self.name).read_text()

    def _said(self, message: str, field: str) -> int:
        for line in self.log().splitlines():
            with contextlib.suppress(ValueError, KeyError):
                said = json.loads(line)
                if said["message"] == message:
                    return int(said[field])
        return 0


@contextlib.contextmanager
def registered(webhook: Webhook) -> Iterator[None]:
    """Register it as shipped, but by URL and for namespaces that carry its name only."""
    configuration = copy.deepcopy(manifests("webhook-configuration.yaml")[0])
    configuration["metadata"]["name"] = f"test-{webhook.name}"
    (entry,) = configuration["webhooks"]
    entry["clientConfig"] = {
        "url": f"https://127.0.0.1:{webhook.port}/mutate",
        "caBundle": base64.b64encode(webhook.ca).decode(),
    }
    entry["namespaceSelector"].setdefault("matchLabels", {})[SELECTED] = webhook.name
    plane = webhook.plane
    plane.api.post(CONFIGURATIONS, configuration)
    try:
        yield
    finally:
        plane.api.delete(f"{CONFIGURATIONS}/{configuration['metadata']['name']}")


@contextlib.contextmanager
def webhook(plane: ControlPlane, **settings: Any) -> Iterator[Webhook]:
    """A registered webhook with these settings (`webhook__priority_policy="Always"`)."""
    running = Webhook(plane, **{key.replace("__", "."): value for key, value in settings.items()}).start()
    try:
        with registered(running):
            yield running
    finally:
        running.stop()


def select(plane: ControlPlane, namespace: str, running: Webhook) -> None:
    """Let the webhook see the pods of this namespace, and wait until API servers do so."""
    plane.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {SELECTED: running.name}}})
    probe: Object = {
        "metadata": {"name": "probe", "labels": {"ate.dev/worker-pool": "probe-for-the-webhook"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }

    def sees() -> bool:
        before = running.reviews().get("denied", 0)
        with contextlib.suppress(Exception):
            plane.api.post(f"/api/v1/namespaces/{namespace}/pods", probe, dryRun="All")
        return running.reviews().get("denied", 0) > before

    plane.wait(sees, why="the API server to call the webhook")
