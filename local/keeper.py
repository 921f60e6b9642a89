"""Child processes that cannot outlive us.

A keeper is a small process of its own (this file, run by its path, standard library only) that starts every other
process for us, makes and holds the plane's directory, and reads our orders from a pipe. When the pipe closes, because
we stopped or because we were killed in whatever way, it kills what it started and removes the directory. As the
keeper is their parent there is no moment at which a child exists without a parent that will end it.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends us must not end the keeper before it has cleaned up."""
PATIENCE = 20.0
"""Seconds for directories that were made elsewhere to become empty."""


class Keeper:
    """Our end of the pipe. Thread-safe; every call is one order and one answer."""

    def __init__(self, prefix: str) -> None:
        """Start the keeper; `directory`, whose name begins with `prefix`, is its own."""
        self._lock = threading.Lock()
        self._orders = 0
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, prefix],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.directory = Path(self._answer(0))

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def spawn(self, name: str, argv: list[str], log: Path, env: dict[str, str] | None = None) -> int:
        """Start a process under a name that is free or whose process has ended; its output goes to `log`."""
        return int(self._order(do="spawn", name=name, argv=argv, log=str(log), env=env or dict(os.environ)))

    def make(self, directory: Path) -> None:
        """Make a directory elsewhere, a cgroup for one. It is removed with all that was started, when it is empty."""
        self._order(do="make", name=str(directory))

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal; a process that has ended already is no error."""
        self._order(do="signal", name=name, number=int(number))

    def exit_code(self, name: str) -> int | None:
        """None while it runs."""
        code = self._order(do="poll", name=name)
        return None if code is None else int(code)

    def wait(self, name: str, timeout: float) -> int | None:
        """Its exit code; None when it still runs after `timeout` seconds."""
        code = self._order(do="wait", name=name, timeout=timeout)
        return None if code is None else int(code)

    def close(self) -> None:
        """Kill everything, remove the directory; returns when that is done. May be called twice."""
        with self._lock:
            if self._process.stdin and not self._process.stdin.closed:
                self._process.stdin.close()
            self._process.wait()
            if self._process.stdout:
                self._process.stdout.close()

    def _order(self, **order: Any) -> Any:
        with self._lock:
            if self._process.stdin is None or self._process.stdout is None or self._process.stdin.closed:
                raise RuntimeError("the plane is stopped")
            self._orders += 1
            self._process.stdin.write(json.dumps({**order, "order": self._orders}) + "\n")
            self._process.stdin.flush()
            try:
                return self._answer(self._orders)
            except ValueError as error:
                raise RuntimeError(f"{order['do']} {order['name']}: {error}") from error

    def _answer(self, number: int) -> Any:
        """The answer to one order. Those to earlier ones, whose caller was interrupted, are skipped."""
        said: dict[str, Any] = {}
        while said.get("order") != number:
            line = self._process.stdout.readline() if self._process.stdout else ""
            if not line:
                raise RuntimeError("the keeper is gone")
            said = json.loads(line)
        if "error" in said:
            raise ValueError(said["error"])
        return said["value"]


def die_with_parent() -> None:
    """For `preexec_fn`, in a process with one thread: the child is killed when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _be_a_child() -> None:
    """What the keeper ignores, its children must not: ignored signals are inherited."""
    die_with_parent()
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)


def _obey(order: dict[str, Any], children: dict[str, subprocess.Popen[bytes]], made: list[Path]) -> int | None:
    name = order["name"]
    if order["do"] == "make":
        Path(name).mkdir()
        made.append(Path(name))
        return None
    if order["do"] == "spawn":
        if name in children and children[name].poll() is None:
            raise ValueError("is running already")
        with Path(order["log"]).open("ab") as log:
            children[name] = subprocess.Popen(
                order["argv"],
                env=order["env"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_be_a_child,  # noqa: PLW1509 - the keeper has one thread
            )
        return children[name].pid
    child = children[name]
    if order["do"] == "signal":
        child.send_signal(order["number"])
        return None
    if order["do"] == "wait":
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(order["timeout"])
        return None
    return child.poll()


def _keep(prefix: str) -> None:
    directory = tempfile.mkdtemp(prefix=prefix)
    children: dict[str, subprocess.Popen[bytes]] = {}
    made: list[Path] = []
    try:
        _say(0, value=directory)
        for line in sys.stdin:
            if not line.endswith("\n"):
                break  # its writer was killed meanwhile
            order = json.loads(line)
            try:
                _say(order["order"], value=_obey(order, children, made))
            except (OSError, ValueError, KeyError) as error:
                _say(order["order"], error=f"{type(error).__name__}: {error}")
    finally:
        for child in children.values():
            if child.poll() is None:  # the number of one that has ended may be another process's by now
                with contextlib.suppress(OSError):
                    os.killpg(child.pid, signal.SIGKILL)
        for child in children.values():
            child.wait()
        shutil.rmtree(directory, ignore_errors=True)
        _remove(made)


def _remove(made: list[Path]) -> None:
    """A cgroup can be removed a moment after its last process has ended, children of what was started included."""
    deadline = time.monotonic() + PATIENCE
    for directory in made:
        while directory.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                directory.rmdir()
                break
            time.sleep(0.02)


def _say(order: int, **answer: Any) -> None:
    sys.stdout.write(json.dumps({"order": order, **answer}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    for ignored in IGNORED:
        signal.signal(ignored, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        _keep(sys.argv[1])
