"""`make reproduce-oom`, interrupted: it leaves no process, no cgroup, no directory and no changed file."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.limits import PREFIX, parent
from tests.unit.sockets import until

ROOT = Path(__file__).parents[2]
TINY = ["--batches=2", "--nodes=4", "--pools=2", "--ateoms=40", "--others=10", "--step=2"]


def processes(mark: str) -> set[str]:
    """Processes that name a path among their arguments or in their environment: what they run, or their PID."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            argv, environment = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in argv + environment:
            found.add(argv.replace(b"\0", b" ").decode(errors="replace") or place.name)
    return found


def content(tree: Path) -> dict[str, str]:
    """Every file below a directory, and a digest of what is in it; directories have none."""
    return {
        str(path.relative_to(tree)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in tree.rglob("*")
    }


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What it reads and writes of the repository, as a copy: it may write its report where it does by default."""
    for name in ("bench", "deploy", "docs"):
        shutil.copytree(ROOT / name, tmp_path / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "tree"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize(
    "said",
    ["limited by", "batch 1: 4 more nodes", "batch 2: 40 more ateoms"],
    ids=["while the roles start", "while it grows", "before the report"],
)
def test_whatever_interrupts_it_nothing_is_left_changed(
    tmp_path: Path, tree: Path, said: str, number: signal.Signals
) -> None:
    directory = tmp_path / "tmp"
    directory.mkdir()
    before, place = content(tree), parent()
    environment = os.environ | {"TMPDIR": str(directory), "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-m", "bench.oom", *TINY]
    with subprocess.Popen(argv, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert any(line.startswith(said) for line in running.stdout), "it ended before"
        seen = " ".join(processes(str(directory)))
        for program in ("keeper.py", "etcd", "kube-apiserver", "kwok", "bench.oom"):
            assert program in seen, "what is not seen now cannot be missed later"
        ours = f"{PREFIX}{running.pid}-*"
        assert place is None or len(list(place.glob(ours))) == 3
        assert list(directory.iterdir())
        running.send_signal(number)
        status = running.wait(60)
    assert status != 0
    assert until(lambda: not processes(str(directory)), 60), processes(str(directory))
    assert until(lambda: not list(directory.iterdir()), 60)
    assert until(lambda: place is None or not list(place.glob(ours)), 60)
    assert content(tree) == before
