"""An installation for doctor to look at, and ways to spoil it."""

import asyncio
import base64
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ateplace import names
from ateplace.certs.authority import Use, Wanted, issue, make_authority
from ateplace.cli.doctor.command import examine
from ateplace.cli.findings import Finding
from ateplace.kube import Kube
from ateplace.local import ControlPlane, substrate
from ateplace.local.pods import Installation
from ateplace.settings import load
from tests.deploying import claimed

POOL, WORKERS = "web", 12
SECRETS = f"/api/v1/namespaces/{names.NAMESPACE}/secrets"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/ateplace"
LINGER = 5.0


LINGER_VARIABLE = "ATEPLACE_RECONCILER_LINGER"


STOPPED = 130
"""The exit code after Ctrl-C."""


@dataclass
class Running:
    plane: ControlPlane
    installed: Installation

    def doctor(self, *only: str) -> list[Finding]:
        given = load({}, [f"cluster.kubeconfig={self.plane.kubeconfig}"])

        async def main() -> list[Finding]:
            kube = await Kube.connect(given.settings.cluster)
            try:
                return await examine(kube, given, list(only))
            finally:
                await kube.close()

        return asyncio.run(main())

    def trouble(self, *only: str) -> list[str]:
        """Sentences of what is not ok; every one has a fix."""
        found = [one for one in self.doctor(*only) if one.level != "ok"]
        assert all(one.fix for one in found)
        return [f"{one.level}: {one.says}" for one in found]

    def cli(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        flag = f"--set=cluster.kubeconfig={self.plane.kubeconfig}"
        argv = [sys.executable, "-m", "ateplace.cli", *arguments, flag]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, env={"COLUMNS": "160", "PATH": ""})

    @property
    def extender(self) -> str:
        return f"--extender-url={self.installed.pods['extender'].url('')}"


def says(trouble: list[str]) -> Any:
    """For `plane.wait`: not yet, because of this."""
    raise AssertionError(trouble)


def bound(plane: ControlPlane) -> int:
    pods = plane.api.list("/api/v1/namespaces/demo/pods")
    return sum(bool(pod["spec"].get("nodeName")) and pod["status"]["phase"] == "Running" for pod in pods)


def quiet(plane: ControlPlane) -> bool:
    """Whether the nodes that are claimed are those with ateoms, and atelet is where they are."""
    holding = {pod["spec"].get("nodeName") for pod in plane.api.list("/api/v1/namespaces/demo/pods")}
    pool = plane.api.get(f"{substrate.POOLS.format('demo')}/{POOL}")
    atelets = plane.api.list("/api/v1/namespaces/ate-system/pods", labelSelector="app=atelet")
    return claimed(plane, pool).keys() == holding == {pod["spec"].get("nodeName") for pod in atelets}


@contextlib.contextmanager
def patched(plane: ControlPlane, path: str, change: Any, back: Any) -> Iterator[None]:
    plane.api.patch(path, change)
    try:
        yield
    finally:
        plane.api.patch(path, back)


def spoil(plane: ControlPlane, node: str) -> None:
    """An orphan claim on a node without room, an expired client certificate, and somebody else's caBundle."""
    claim = {"annotations": {names.claim_key("00000000-gone"): ""}, "labels": {names.NODE_LABEL: "true"}}
    plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": claim})
    past = datetime.now(UTC) - timedelta(days=3)
    other = make_authority(past, days=30)
    expired = issue(other, Wanted(Use.CLIENT, (names.EXTENDER_CLIENT,)), past, days=1)
    data = {
        "tls.crt": base64.b64encode(expired.certificate).decode(),
        "tls.key": base64.b64encode(expired.key).decode(),
    }
    plane.api.patch(f"{SECRETS}/{names.SCHEDULER_CERTIFICATE}", {"data": data})
    bundle = base64.b64encode(other.certificate).decode()
    change = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
    plane.api.patch(HOOKS, change, "json")
