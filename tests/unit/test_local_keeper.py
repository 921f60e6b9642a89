"""The keeper: every order gets its own answer, and what it made goes with us."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ateplace.local.keeper import Keeper
from tests.unit.sockets import until

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


class Interrupted(Exception):
    """What a signal's handler raises, as Ctrl-C does."""


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    with Keeper("ateplace-test-") as running:
        yield running


def interrupt(_number: int, _frame: object) -> None:
    raise Interrupted


def test_an_interrupted_order_leaves_the_next_answers_in_step(keeper: Keeper) -> None:
    log = keeper.directory / "log"
    keeper.spawn("sleeper", SLEEP, log)
    keeper.spawn("ended", [sys.executable, "-c", "raise SystemExit(7)"], log)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupted):
            keeper.wait("sleeper", 1.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert keeper.wait("ended", 30) == 7
    assert keeper.exit_code("sleeper") is None
    with pytest.raises(RuntimeError, match="spawn sleeper: ValueError: is running already"):
        keeper.spawn("sleeper", SLEEP, log)


def test_what_it_started_and_its_directory_go_with_it() -> None:
    with Keeper("ateplace-test-") as keeper:
        pid = keeper.spawn("sleeper", SLEEP, keeper.directory / "log")
        keeper.spawn("ended", [sys.executable, "-c", ""], keeper.directory / "log")
        assert keeper.wait("ended", 30) == 0
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()
    assert not keeper.directory.exists()
    with pytest.raises(RuntimeError, match="the plane is stopped"):
        keeper.exit_code("sleeper")


def test_who_is_killed_right_after_the_keepers_start_leaves_nothing(tmp_path: Path) -> None:
    code = "import os; from ateplace.local.keeper import Keeper; kept = Keeper('ateplace-'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(tmp_path)}, timeout=60)
    assert until(lambda: not list(tmp_path.iterdir()))


def test_a_directory_made_elsewhere_goes_with_a_keeper_whose_owner_is_killed(tmp_path: Path) -> None:
    place, mine = tmp_path / "tmp", tmp_path / "elsewhere"
    place.mkdir()
    code = f"""
import os
from pathlib import Path
from ateplace.local.keeper import Keeper
Keeper('ateplace-').make(Path({str(mine)!r}))
print(Path({str(mine)!r}).is_dir(), flush=True)
os.kill(os.getpid(), 9)
"""
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, env=os.environ | {"TMPDIR": str(place)}, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n"
    assert until(lambda: not mine.exists() and not list(place.iterdir()))
