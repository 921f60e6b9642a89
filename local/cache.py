"""The cache directory: whole files only, one writer at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from ateplace.local.progress import Say
from ateplace.local.versions import chosen


def root() -> Path:
    """`$ATEPLACE_CACHE`, else `$XDG_CACHE_HOME/ateplace`, else `~/.cache/ateplace`."""
    if given := os.environ.get("ATEPLACE_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ateplace"


def binaries() -> Path:
    """Where the chosen version's binaries are, or will be."""
    return root() / "control-plane" / chosen().key


@contextlib.contextmanager
def locked(say: Say) -> Iterator[None]:
    """Hold the cache's lock; the kernel drops it with the process, so a killed build blocks no other."""
    root().mkdir(parents=True, exist_ok=True)
    with (root() / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is filling the cache; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def sweep() -> None:
    """Under the lock: remove what a killed writer left half written."""
    for part in binaries().glob(".*.part"):
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def staged(name: str, directory: Path | None = None) -> Iterator[Path]:
    """A path to write a binary to; it appears in the cache, executable and whole, when the block ends well.

    `directory`: another one than that of the control plane's binaries."""
    directory = directory or binaries()
    directory.mkdir(parents=True, exist_ok=True)
    part = directory / f".{name}.{os.getpid()}.part"
    try:
        yield part
        part.chmod(0o755)
        with part.open("rb") as handle:
            os.fsync(handle.fileno())
        part.replace(directory / name)
    finally:
        part.unlink(missing_ok=True)
