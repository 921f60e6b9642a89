"""helm, as the tests call it: from our cache, with directories of its own; and what it makes of our chart."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from ateplace.errors import LocalError
from ateplace.local import ControlPlane
from ateplace.local.api import Object
from ateplace.local.replicas import ReplicatedInstallation
from release.chart import CHART
from release.tools import tool
from tests.deploying import NAMESPACE

RELEASE = "ateplace"
IN_PLACE = ("--namespace", NAMESPACE)


def helm(*arguments: str, kubeconfig: Path | None = None, timeout: float = 120) -> str:
    """What a helm command prints; a LocalError with its words when it fails."""
    with tempfile.TemporaryDirectory() as home:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HELM_", "KUBE"))}
        own = {f"HELM_{each}_HOME": home for each in ("CACHE", "CONFIG", "DATA")}
        own["KUBECONFIG"] = str(kubeconfig or "/nonexistent")
        argv = [str(tool("helm")), *arguments]
        done = subprocess.run(argv, env=kept | own, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise LocalError(f"helm {arguments[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def given(values: Mapping[str, Any]) -> list[str]:
    """Values as arguments."""
    return [argument for key, value in values.items() for argument in ("--set-json", f"{key}={json.dumps(value)}")]


def template(*arguments: str, namespace: str = NAMESPACE, kubernetes: str, **values: Any) -> list[Object]:
    """The chart's objects on a cluster of this version; `arguments` are helm's own."""
    common = ("template", RELEASE, str(CHART), "--namespace", namespace, "--kube-version", kubernetes)
    printed = helm(*common, *given(values), *arguments)
    return [document for document in yaml.safe_load_all(printed) if document]


class Release(ReplicatedInstallation):
    """As its base, put into the cluster by helm from a packaged chart; helm's values are `values`."""

    def __init__(self, plane: ControlPlane, package: Path, *, code: Path | None, values: Mapping[str, Any]) -> None:
        self._values = values
        super().__init__(plane, package, code=code)

    def helm(self, *arguments: str) -> str:
        return helm(*arguments, *IN_PLACE, kubeconfig=self.plane.kubeconfig)

    def _install(self, overlay: Path) -> str:
        self.helm("install", RELEASE, str(overlay), "--create-namespace", *given(self._values))
        return self.helm("get", "manifest", RELEASE)

    def revisions(self) -> list[tuple[int, str, str]]:
        """Number, chart and status of each revision."""
        found = json.loads(self.helm("history", RELEASE, "--output", "json"))
        return [(each["revision"], each["chart"], each["status"]) for each in found]

    def test(self) -> tuple[int, str]:
        """`helm test`, whose pod is played as a kubelet would: what its container returned and printed."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/ateplace-test"
        with _Failing(lambda: self.helm("test", RELEASE, "--timeout", "60s")) as waiting:
            pod = self.plane.wait(lambda: self._found(path), timeout=60, why="the pod of helm test")
            (container,) = pod["spec"]["containers"]
            python, *arguments = [self._reachable(each) for each in container["command"]]
            assert python == "python"
            done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)
            phase = "Failed" if done.returncode else "Succeeded"
            self.plane.api.patch(f"{path}/status", {"status": {"phase": phase}})
        assert waiting.failed == bool(done.returncode), done.stdout
        return done.returncode, done.stdout

    def _found(self, path: str) -> Object:
        return self.plane.api.get(path) if self.plane.api.exists(path) else {}

    def _reachable(self, argument: str) -> str:
        """A Service's address in place of its name: there is no cluster DNS here."""
        for service in self.plane.api.list(f"/api/v1/namespaces/{NAMESPACE}/services"):
            name = f"{service['metadata']['name']}.{NAMESPACE}.svc"
            argument = argument.replace(name, service["spec"]["clusterIP"])
        return argument


class _Failing:
    """A call under way in a thread; after the block, whether it has `failed`."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.failed = False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._call()
        except LocalError:
            self.failed = True

    def __enter__(self) -> "_Failing":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.join(90)
