"""CustomResourceDefinitions of others, from their Go modules: pinned, checked by their sums, kept in our cache."""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

from ateplace.local import golang
from ateplace.local.progress import say


class Module(NamedTuple):
    path: str
    version: str
    sum: str
    directory: str
    """Where its CustomResourceDefinitions are."""


CERT_MANAGER = Module(
    "github.com/cert-manager/cert-manager",
    "v1.21.2",
    "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=",
    "deploy/crds",
)
PROMETHEUS_OPERATOR = Module(
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    "example/prometheus-operator-crd",
)
KEDA = Module(
    "github.com/kedacore/keda/v2",
    "v2.21.0",
    "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
    "config/crd/bases",
)
KARPENTER = Module(
    "sigs.k8s.io/karpenter",
    "v1.14.0",
    "h1:+SXlqYNb9FIKRpDgPPRnphVmWbrWLw4tgzKezr372Mc=",
    "pkg/apis/crds",
)
"""It has cluster-autoscaler's CapacityBuffer too, whose own module is published without versions."""


def definitions(module: Module, *kinds: str) -> list[Path]:
    """The files that define these plurals, fetched when they are not there yet."""
    command = [str(golang.find_go(say)), "mod", "download", "-json", f"{module.path}@{module.version}"]
    environment = golang.environment() | {"GOFLAGS": "-modcacherw"}
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=240)
    answer = json.loads(done.stdout or "{}")
    assert done.returncode == 0, answer.get("Error") or done.stderr
    assert answer["Sum"] == module.sum, f"{module.path}@{module.version} is not what it was"
    directory = Path(answer["Dir"]) / module.directory
    found = [path for path in sorted(directory.glob("*.yaml")) if path.stem.rpartition("_")[2] in kinds]
    assert len(found) == len(kinds), sorted(path.name for path in directory.iterdir())
    return found
