"""A real busybox for tests: the machine's, or unpacked from Debian's package without installing it."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def cached() -> Path:
    """Where an unpacked one is kept."""
    base = os.environ.get("ATEPLACE_CACHE") or Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ateplace"
    )
    return Path(base) / "busybox" / "busybox"


def find() -> Path:
    """The path of a busybox that runs; the test fails with what to do when there is none."""
    for candidate in (shutil.which("busybox"), cached()):
        if candidate and _runs(Path(candidate)):
            return Path(candidate)
    trouble = _download(cached())
    if trouble:
        pytest.fail(f"this test needs busybox: install the package busybox ({trouble})")
    return cached()


def _runs(path: Path) -> bool:
    return path.is_file() and subprocess.run([path, "true"], capture_output=True, timeout=10).returncode == 0


def _download(target: Path) -> str:
    """Fetch and unpack Debian's package; what went wrong, or nothing."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return "apt-get is not here to fetch it"
    with tempfile.TemporaryDirectory() as folder:
        fetch = ["apt-get", "download", "-o", "APT::Sandbox::User=root", "busybox-static"]
        said = subprocess.run(fetch, cwd=folder, capture_output=True, text=True, timeout=120)
        if said.returncode:
            # A fresh machine has no package lists; they are kept beside, so that nothing of the machine changes.
            lists = Path(folder, "lists")
            (lists / "partial").mkdir(parents=True)
            own = ["-o", f"Dir::State::lists={lists}", "-o", "APT::Sandbox::User=root"]
            for command in (["apt-get", "update", "-qq", *own], ["apt-get", "download", *own, "busybox-static"]):
                said = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
        packages = list(Path(folder).glob("*.deb"))
        if not packages:
            return said.stderr.strip()[-300:] or "apt-get fetched nothing"
        subprocess.run(["dpkg-deb", "-x", packages[0], Path(folder, "x")], check=True, timeout=60)
        found = next((path for path in Path(folder, "x").rglob("bin/busybox") if _runs(path)), None)
        if found is None:
            return "the package holds no busybox that runs"
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_suffix(f".{os.getpid()}")
        shutil.copy2(found, staged)
        staged.replace(target)
    return ""
