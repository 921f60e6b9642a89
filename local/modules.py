"""Writes `gomod/<minor>/go.mod` and `go.sum` for the versions in `local.versions`.

Kubernetes' own go.mod replaces its staging modules by directories of its repository. Replacements of a dependency do
not count, so ours names a published version of each: v0.36.3 belongs to v1.36.3.
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ateplace.errors import LocalError
from ateplace.local import golang
from ateplace.local.progress import Say
from ateplace.local.versions import Versions

STAGING = "./staging/"


def generate(versions: Versions, go: Path, say: Say) -> None:
    """Resolve one minor version's requirements, and write them."""
    say(f"resolving the modules of Kubernetes {versions.kubernetes}")
    directory = golang.MODULE / versions.minor
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "gomod"
        shutil.copytree(golang.MODULE, root, ignore=lambda _, names: [name for name in names if name[0].isdigit()])
        published = _json(go, root, "download", "-json", f"k8s.io/kubernetes@{versions.kubernetes}")["GoMod"]
        (root / "go.mod").write_text(requirements(versions, _json(go, root, "edit", "-json", published)), "utf-8")
        _run(go, root, "tidy")
        directory.mkdir(exist_ok=True)
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(root / name, directory / name)


def requirements(versions: Versions, kubernetes: dict[str, Any]) -> str:
    """A go.mod with what we ask for ourselves; `kubernetes` is Kubernetes' own, as `go mod edit -json` prints it."""
    wanted = {
        "go.etcd.io/etcd/server/v3": versions.etcd,
        "k8s.io/kubernetes": versions.kubernetes,
        "sigs.k8s.io/kwok": versions.kwok,
    }
    replaced = kubernetes.get("Replace") or []
    staging = sorted(entry["Old"]["Path"] for entry in replaced if entry["New"]["Path"].startswith(STAGING))
    published = f"v0.{versions.kubernetes.partition('.')[2]}"
    lines = ["module ateplace.dev/controlplane", f"go {kubernetes['Go']}"]
    lines += ["require (", *(f"{path} {version}" for path, version in wanted.items()), ")"]
    lines += ["replace (", *(f"{path} => {path} {published}" for path in staging), ")"]
    return "\n".join(lines) + "\n"


def _json(go: Path, directory: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_run(go, directory, *arguments))
    return found


def _run(go: Path, directory: Path, *arguments: str) -> str:
    environment = golang.environment() | {"GOFLAGS": "-mod=mod -modcacherw"}
    done = subprocess.run([go, "mod", *arguments], cwd=directory, env=environment, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()  # `download -json` prints its error among the rest
        raise LocalError(f"`go mod {arguments[0]}` failed:\n  " + "\n  ".join(said.splitlines()[-8:]))
    return done.stdout
