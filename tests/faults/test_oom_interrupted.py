"""`make reproduce-oom`, interrupted: it leaves no process, no cgroup, no directory and no half of a report."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.limits import PREFIX, parent
from tests.unit.sockets import until

TINY = ["--batches=2", "--nodes=4", "--pools=2", "--ateoms=40", "--others=10", "--step=2"]


def processes(mark: str) -> list[str]:
    """Command lines of processes that name a path."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in text:
            found.append(text)
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("said", "number"),
    [("limited by", signal.SIGINT), ("more nodes", signal.SIGTERM), ("40 more ateoms", signal.SIGKILL)],
    ids=["Ctrl-C while the roles start", "SIGTERM while it grows", "kill -9 after the first ateoms"],
)
def test_whatever_interrupts_it_nothing_is_left_changed(tmp_path: Path, said: str, number: signal.Signals) -> None:
    directory, report = tmp_path / "tmp", tmp_path / "report"
    directory.mkdir()
    argv = [sys.executable, "-m", "bench.oom", *TINY, f"--report={report}"]
    environment = os.environ | {"TMPDIR": str(directory)}
    place = parent()
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert any(said in line for line in running.stdout), "it ended before"
        assert processes(str(directory)), "what is not seen now cannot be missed later"
        ours = f"{PREFIX}{running.pid}-*"
        assert place is None or list(place.glob(ours))
        running.send_signal(number)
        running.wait(60)
    assert until(lambda: not processes(str(directory)), 60)
    assert until(lambda: not list(directory.iterdir()), 60)
    assert until(lambda: place is None or not list(place.glob(ours)), 60)
    assert not report.exists()
