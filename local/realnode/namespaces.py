"""Sockets in another network namespace, for a process that stays in its own."""

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")
CLONE_NEWNET = 0x40000000


class Network:
    """The network namespace of a process; open until `close`."""

    def __init__(self, pid: int, inode: int = 0) -> None:
        """`inode`: refuse any other namespace, for a PID that may be another process's by now."""
        self._file = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self._file).st_ino
        if inode and inode != self.inode:
            self.close()
            raise ProcessLookupError(f"process {pid} is not the one that was meant")

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def run(self, act: Callable[[], T]) -> T:
        """Call `act` in a thread that is in the namespace. A socket stays in the namespace it was made in."""
        results: list[T] = []
        errors: list[Exception] = []

        def inside() -> None:
            try:
                if ctypes.CDLL(None, use_errno=True).setns(self._file, CLONE_NEWNET):
                    number = ctypes.get_errno()
                    raise OSError(number, f"setns: {os.strerror(number)}")  # noqa: TRY301 - handed over as any other
                results.append(act())
            except Exception as error:  # noqa: BLE001 - raised again by the caller
                errors.append(error)

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def command(self, *argv: str) -> None:
        """Run a program inside the namespace; OSError with what it complained of."""
        done = self.run(lambda: subprocess.run(argv, capture_output=True, text=True))
        if done.returncode:
            raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")

    def connect(self, address: str, port: int, timeout: float = 10.0) -> socket.socket:
        """A TCP connection from inside the namespace; blocking once it is made."""
        made = self.run(lambda: socket.create_connection((address, port), timeout))
        made.settimeout(None)
        return made

    def listen(self, port: int) -> socket.socket:
        """A TCP listener on every address inside the namespace."""
        return self.run(lambda: socket.create_server(("", port), backlog=128))

    def datagrams(self, address: str, port: int) -> socket.socket:
        """A UDP socket on an address of the namespace: an answer must come from the address that was asked."""

        def make() -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.bind((address, port))
            return made

        return self.run(make)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._file)
