"""helm, as the tests call it: from our cache, with directories of its own; and what it makes of our chart."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ateplace.errors import LocalError
from local.api import Object
from release.chart import CHART
from release.tools import tool
from tests.deploying import NAMESPACE

RELEASE = "ateplace"


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
