"""promtool: from the PATH, else from our cache, else from Debian's package of Prometheus, unpacked there."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from ateplace.local import cache


def promtool() -> str:
    """Its path; skips the test, saying what to do, where it cannot be had."""
    if found := shutil.which("promtool"):
        return found
    kept = cache.root() / "tools" / "promtool"
    if not kept.exists():
        why = _unpack(kept)
        if why:
            pytest.skip(f"promtool is missing ({why}): install Prometheus, so that promtool is on the PATH")
    return str(kept)


def _unpack(target: Path) -> str:
    """Fetch and unpack Debian's package without installing it; why not, when it cannot be done."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return "this is not Debian"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        got = subprocess.run(
            ["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, text=True, timeout=120
        )
        packages = list(Path(folder).glob("prometheus_*.deb"))
        if got.returncode or not packages:
            return f"apt-get download prometheus: {got.stderr.strip().splitlines()[-1:]}"
        subprocess.run(["dpkg-deb", "-x", str(packages[0]), folder], check=True, capture_output=True, timeout=120)
        part = target.with_name(f".promtool.{os.getpid()}")
        shutil.copy(Path(folder) / "usr" / "bin" / "promtool", part)
        part.replace(target)
    return ""
