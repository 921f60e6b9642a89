"""An older version of ateplace, from the project's own history, to run beside this one."""

import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ateplace.local.program import ateplace

ROOT = Path(__file__).parents[1]


def previous_release(directory: Path) -> Path:
    """The tree of the newest tag, in `directory`; before there is one, of the commit that brought the chart."""
    tags = _git("tag", "--merged", "HEAD", "--sort=-v:refname", "--list", "v*").decode().split()
    return _extract(tags[0] if tags else _brought("deploy/chart/Chart.yaml"), directory)


def unpack(directory: Path) -> Path:
    """The tree of the oldest version that this one is promised to run beside, in `directory`: the history's first that
    can be installed, which is the commit that brought the default overlay.

    To name a later one here is to drop a promise: see "Upgrade and rollback" in docs/operations.md. The test is skipped
    where no history is at hand.
    """
    return _extract(_brought("deploy/overlays/second-scheduler/kustomization.yaml"), directory)


def _brought(path: str) -> str:
    """The commit that added a file."""
    return _git("log", "--diff-filter=A", "--format=%H", "--", path).decode().split()[-1]


def _extract(commit: str, directory: Path) -> Path:
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as archive:
        archive.extractall(directory, filter="data")
    return directory


def _git(*arguments: str) -> bytes:
    if shutil.which("git") is None:
        pytest.skip("needs git, for an older version from the history")
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, timeout=60)
    if done.returncode:
        pytest.skip(f"needs the history, which an archive lacks: {done.stderr.decode().strip()}")
    return done.stdout


def command(code: Path | None, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """One run of a version's command line (`code` None: ours)."""
    argv, needed = ateplace(code)
    return _run([*argv, *arguments], needed | environment)


def script(code: Path | None, source: str, *arguments: str) -> str:
    """What a program that imports a version prints."""
    argv, needed = ateplace(code)
    done = _run([*argv[: argv.index("-m")], "-c", source, *arguments], needed)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _run(argv: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ATEPLACE_")}
    return subprocess.run(argv, env=kept | environment, cwd=ROOT, capture_output=True, text=True, timeout=120)


def answer(code: Path | None, *arguments: str, **environment: str) -> Any:
    """The JSON that a command of a version prints."""
    done = command(code, *arguments, "--output=json", **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
