"""A cgroup for a real node in every mounted hierarchy, version 1 or 2, removed when the node has ended.

In version 1 the node's cgroup is below the one that we are in, so limits that apply to us apply to the node. Version 2
allows no processes beside child cgroups, so there it is directly below the root of what we see.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/fs/cgroup")
PREFIX = "ateplace-node-"
NEEDED = {"cpu", "memory", "pids"}
"""Controllers without which kubelet does not start."""
PATIENCE = 20.0
"""Seconds for the last processes of a node to leave its cgroups."""


class Hierarchy(NamedTuple):
    """A mounted hierarchy and the cgroup that this process is in."""

    place: Path
    options: str
    """Mount options of version 1; empty for version 2."""
    current: str

    @property
    def parent(self) -> Path:
        """Where a node's cgroup is made."""
        here = self.place / self.current.lstrip("/")
        return here if self.options and here.is_dir() else self.place


def hierarchies(cgroups: str | None = None, mounts: str | None = None) -> list[Hierarchy]:
    """Every hierarchy that is mounted; of several at one place the last. The texts of /proc/self/cgroup and
    /proc/self/mountinfo may be given."""
    current: dict[frozenset[str], str] = {}
    for line in (cgroups or Path("/proc/self/cgroup").read_text()).splitlines():
        _, controllers, path = line.split(":", 2)
        current[frozenset(filter(None, controllers.split(",")))] = path
    found: dict[Path, Hierarchy] = {}
    for line in (mounts or Path("/proc/self/mountinfo").read_text()).splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        place = Path(before.split()[4])
        if kind == "cgroup2":
            found[place] = Hierarchy(place, "", current.get(frozenset(), "/"))
        elif kind == "cgroup":
            mounted = frozenset(options.split(","))
            ours = next((each for each in current if each and each <= mounted), frozenset[str]())
            named = any(each.startswith("name=") for each in ours)
            text = ",".join(["none", *ours] if named else sorted(ours))
            found[place] = Hierarchy(place, text, current.get(ours, "/"))
    return list(found.values())


def make(name: str) -> list[Path]:
    """The cgroups of a node that this process answers for, one a hierarchy; those of nodes whose process has ended are
    removed first."""
    made = []
    for hierarchy in hierarchies():
        for parent in {hierarchy.place, hierarchy.parent}:
            for old in parent.glob(f"{PREFIX}*"):
                if not Path("/proc", old.name.rpartition("-")[2]).exists():
                    remove(old)
        if hierarchy.place == ROOT:
            delegate(ROOT)
        cgroup = hierarchy.parent / f"{PREFIX}{name}-{os.getpid()}"
        cgroup.mkdir()
        if "cpuset" in hierarchy.options.split(","):
            for file in ("cpuset.cpus", "cpuset.mems"):
                (cgroup / file).write_text((hierarchy.parent / file).read_text())
            (cgroup / "cgroup.clone_children").write_text("1")
        made.append(cgroup)
    return made


def delegate(cgroup: Path) -> None:
    """Version 2: let children use the controllers that kubelet needs."""
    control = cgroup / "cgroup.subtree_control"
    for controller in sorted(NEEDED - set(control.read_text().split())):
        with contextlib.suppress(OSError):
            control.write_text(f"+{controller}")
    if lacking := NEEDED - set(control.read_text().split()):
        raise OSError(f"the cgroup controllers {', '.join(sorted(lacking))} cannot be used below {cgroup}")


def enter(cgroups: Iterable[Path], pid: int = 0) -> None:
    """Move a process; 0 is the caller."""
    for cgroup in cgroups:
        (cgroup / "cgroup.procs").write_text(str(pid))


def leave(pid: int) -> None:
    """Move a process to where we are."""
    enter((each.place / each.current.lstrip("/") for each in hierarchies()), pid)


def remove(cgroup: Path) -> None:
    """Remove a cgroup and those below it as far as they are empty."""
    for directory, _, _ in os.walk(cgroup, topdown=False):
        with contextlib.suppress(OSError):
            Path(directory).rmdir()


def remove_when_we_end(cgroups: Iterable[Path]) -> Callable[[], None]:
    """Have the cgroups removed when this process ends, in whatever way; the returned function removes them now.

    A child in a session of its own waits for the end of a pipe. Call this before there are threads.
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            os.read(ours, 1)
        _remove_all(cgroups)
        os._exit(0)
    os.close(ours)

    def now() -> None:
        os.close(theirs)
        os.waitpid(child, 0)

    return now


def _remove_all(cgroups: Iterable[Path]) -> None:
    deadline = time.monotonic() + PATIENCE
    while (left := [cgroup for cgroup in cgroups if cgroup.exists()]) and time.monotonic() < deadline:
        for cgroup in left:
            remove(cgroup)
        time.sleep(0.02)
