"""Go programs that a release and its tests need: built once from the module beside this file, kept in our cache."""

import fcntl
import hashlib
import subprocess
from pathlib import Path

from ateplace.local import cache, golang
from ateplace.local.progress import say

MODULE = Path(__file__).parent / "gomod"
PACKAGES = {
    "helm": "helm.sh/helm/v4/cmd/helm",
    "actionlint": "github.com/rhysd/actionlint/cmd/actionlint",
}


def tool(name: str) -> Path:
    """The path of one of them. go.sum says what it is built from, so whatever is on the PATH is not asked."""
    key = hashlib.sha256((MODULE / "go.mod").read_bytes() + (MODULE / "go.sum").read_bytes()).hexdigest()[:16]
    directory = cache.root() / "tools" / key
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be building it
        if not (directory / name).exists():
            _build(name, directory / name)
    return directory / name


def _build(name: str, target: Path) -> None:
    say(f"building {name} from source (minutes, once)")
    part = target.with_name(f".{name}.part")
    command = [str(golang.find_go(say)), "build", "-trimpath", "-ldflags", "-s -w", "-o", str(part), PACKAGES[name]]
    subprocess.run(command, cwd=MODULE, env=golang.environment(), check=True)
    part.replace(target)
