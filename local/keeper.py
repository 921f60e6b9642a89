"""Child processes that cannot outlive us.

A keeper is a small process of its own (this file, run by its path, standard library only) that starts every other
process for us, holds the plane's directory, and reads our orders from a pipe. When the pipe closes, because we
stopped or because we were killed in whatever way, it kills what it started and removes the directory. As the
keeper is their parent there is no moment at which a child exists and nobody answers for it.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends us must not end the keeper before it has cleaned up."""


class Keeper:
    """Our end of the pipe. Thread-safe; every call is one order and one answer."""

    def __init__(self, directory: Path) -> None:
        """Start the keeper; it owns `directory` from now on."""
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def spawn(self, name: str, argv: list[str], log: Path, env: dict[str, str] | None = None) -> int:
        """Start a process under a name that is free or whose process has ended; its output goes to `log`."""
        return int(self._order(do="spawn", name=name, argv=argv, log=str(log), env=env or dict(os.environ)))

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
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline() or '{"error": "the keeper is gone"}')
        if "error" in answer:
            raise RuntimeError(f"{order['do']} {order['name']}: {answer['error']}")
        return answer["value"]


def die_with_parent() -> None:
    """For `preexec_fn`, in a process with one thread: the child is killed when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _be_a_child() -> None:
    """What the keeper ignores, its children must not: ignored signals are inherited."""
    die_with_parent()
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)


def _obey(order: dict[str, Any], children: dict[str, subprocess.Popen[bytes]]) -> int | None:
    name = order["name"]
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


def _keep(directory: Path) -> None:
    children: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for line in sys.stdin:
            try:
                answer: dict[str, Any] = {"value": _obey(json.loads(line), children)}
            except (OSError, ValueError, KeyError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        for child in children.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        for child in children.values():
            child.wait()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    for ignored in IGNORED:
        signal.signal(ignored, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        _keep(Path(sys.argv[1]))
