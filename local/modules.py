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
from local import golang
from local.progress import Say
from local.versions import Versions

STAGING = "./staging/"


def generate(versions: Versions, go: Path, say: Say) -> None:
    """Resolve one minor version's requirements, and write them."""
    say(f"resolving the modules of Kubernetes {versions.kubernetes}")
    directory = golang.MODULE / versions.minor
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "gomod"
        shutil.copytree(golang.MODULE, root, ignore=lambda _, names: [name for name in names if name[0].isdigit()])
        published = _json(go, root, "download", "-json", f"k8s.io/kubernetes@{versions.kubernetes}")["GoMod"]
        staging = staging_modules(_json(go, root, "edit", "-json", published))
        edits = [
            *(f"-require={path}@{version}" for path, version in required(versions).items()),
            *(f"-replace={path}={path}@v0{versions.kubernetes.removeprefix('v1')}" for path in staging),
        ]
        _run(go, root, "edit", *edits)
        _run(go, root, "tidy")
        written = [line for line in (root / "go.mod").read_text("utf-8").splitlines() if not line.startswith("//")]
        directory.mkdir(exist_ok=True)
        (directory / "go.mod").write_text("\n".join(written) + "\n", "utf-8")
        shutil.copyfile(root / "go.sum", directory / "go.sum")


def required(versions: Versions) -> dict[str, str]:
    """What we ask for ourselves; everything else follows from it."""
    return {
        "go.etcd.io/etcd/server/v3": versions.etcd,
        "k8s.io/kubernetes": versions.kubernetes,
        "sigs.k8s.io/kwok": versions.kwok,
    }


def staging_modules(module: dict[str, Any]) -> list[str]:
    """The modules that a go.mod (as `go mod edit -json` prints it) takes from Kubernetes' own repository."""
    replaced = module.get("Replace") or []
    return sorted(entry["Old"]["Path"] for entry in replaced if entry["New"]["Path"].startswith(STAGING))


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
