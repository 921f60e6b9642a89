"""A memory limit for one process: a cgroup's where we may make one (version 1 or 2), else the kernel's limit on data.

A cgroup's limit is what a pod has: who exceeds it is killed. RLIMIT_DATA makes allocations fail instead, and counts
memory that is reserved but was never touched.

As a program it enters the limit that its arguments say and becomes the program that follows:

    python -m bench.limits cgroup DIRECTORY COMMAND…
    python -m bench.limits data BYTES COMMAND…
"""

import os
import resource
import sys
from pathlib import Path
from typing import Final, Protocol

from ateplace.local.keeper import Keeper
from ateplace.local.realnode.cgroups import Hierarchy, enter, hierarchies

PREFIX: Final = "ateplace-memory-"
MIB: Final = 2**20


class Limit(Protocol):
    kind: str

    def argv(self, argv: list[str]) -> list[str]:
        """How to start a program under it."""

    def set(self, size: int, pid: int = 0) -> None:
        """The limit from now on, in bytes; `pid` when the process runs already."""

    def counted(self, pid: int) -> int:
        """What counts towards it now, in bytes, and cannot be reclaimed."""


class Cgroup:
    """Its directory is removed by the keeper, whatever becomes of us."""

    def __init__(self, keeper: Keeper, parent: Path, name: str) -> None:
        self._directory = parent / f"{PREFIX}{os.getpid()}-{name}"
        keeper.make(self._directory)
        self._old = (self._directory / "memory.limit_in_bytes").exists()
        self.kind = f"cgroup version {1 if self._old else 2}"

    def argv(self, argv: list[str]) -> list[str]:
        return [sys.executable, "-m", "bench.limits", "cgroup", str(self._directory), *argv]

    def set(self, size: int, pid: int = 0) -> None:
        swap = self._directory / "memory.swap.max"
        (self._directory / ("memory.limit_in_bytes" if self._old else "memory.max")).write_text(str(size))
        if swap.exists():
            swap.write_text("0")

    def counted(self, pid: int) -> int:
        used = int((self._directory / ("memory.usage_in_bytes" if self._old else "memory.current")).read_text())
        fields = dict(line.split() for line in (self._directory / "memory.stat").read_text().splitlines())
        return used - int(fields["total_cache" if self._old else "file"])


class Data:
    """RLIMIT_DATA, for whoever may not make cgroups."""

    kind = "RLIMIT_DATA"

    def __init__(self) -> None:
        self._size = resource.RLIM_INFINITY

    def argv(self, argv: list[str]) -> list[str]:
        return [sys.executable, "-m", "bench.limits", "data", str(self._size), *argv]

    def set(self, size: int, pid: int = 0) -> None:
        self._size = size
        if pid:
            resource.prlimit(pid, resource.RLIMIT_DATA, (size, resource.RLIM_INFINITY))

    def counted(self, pid: int) -> int:
        return kernel(pid, "VmData")


def parent(mounted: list[Hierarchy] | None = None) -> Path | None:
    """Where a cgroup with a memory limit can be made without changing anything that is there; None: nowhere."""
    for hierarchy in mounted if mounted is not None else hierarchies():
        control = hierarchy.parent / "cgroup.subtree_control"
        children = control.read_text().split() if control.exists() and not hierarchy.options else []
        limited = "memory" in hierarchy.options.split(",") or "memory" in children
        if limited and os.access(hierarchy.parent, os.W_OK):
            return hierarchy.parent
    return None


def kernel(pid: int, field: str) -> int:
    """Bytes, from /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def main(arguments: list[str]) -> None:
    kind, value, *argv = arguments
    if kind == "cgroup":
        enter([Path(value)])
    else:
        resource.setrlimit(resource.RLIMIT_DATA, (int(value), resource.RLIM_INFINITY))
    os.execvp(argv[0], argv)  # noqa: S606 - that is the purpose


if __name__ == "__main__":
    main(sys.argv[1:])
