"""`python -m ateplace.local.realnode.init PLAN`: process 1 of a real node (`local.realnode.machine`).

Mounts what the node must not share with the machine, names the node, then starts containerd, kubelet and
kube-proxy, and starts each again when it ends. Whatever the node writes is on file systems in memory that end with its
mount namespace.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from ateplace.local.realnode import cgroups
from ateplace.local.realnode.config import HIDDEN

RESTART = 2.0
"""Seconds until a part of the node that has ended is started again."""
PATIENCE = 60.0
"""Seconds for containerd to answer and to import the images."""

SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What kubelet insists on, for the whole machine: it reads files of the node instead, and finds nothing to write."""


def main() -> NoReturn:
    """Wait for a line on standard input (the machine's side is ready), then be a node, or try what one needs."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    if not sys.stdin.readline():
        sys.exit(1)
    _mount()
    _connect(plan["name"])
    if "attempt" in plan:
        _run(*plan["attempt"])
        sys.exit()
    _supervise(plan)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")


def _mount() -> None:
    outside = cgroups.hierarchies()
    _run("mount", "--make-rprivate", "/")
    _run("umount", "--recursive", "/sys")
    _run("mount", "-t", "sysfs", "sysfs", "/sys")
    _run("mount", "-t", "proc", "proc", "/proc")
    if all(each.place != cgroups.ROOT for each in outside):
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "cgroup", str(cgroups.ROOT))
    for each in outside:
        each.place.mkdir(exist_ok=True)
        kind = "cgroup" if each.options else "cgroup2"
        _run("mount", "-t", kind, "-o", each.options or "rw", "cgroup", str(each.place))
    if any(each.place == cgroups.ROOT for each in outside):
        leaf = cgroups.ROOT / "init"  # version 2: controllers are for cgroups without processes of their own
        leaf.mkdir()
        cgroups.enter([leaf])
        cgroups.delegate(cgroups.ROOT)
    for place in HIDDEN:
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "node", place)
    sysctls = Path("/run/sysctls")
    sysctls.mkdir()
    for name, value in SYSCTLS.items():
        if Path("/proc/sys", name).exists():
            file = sysctls / name.replace("/", ".")
            file.write_text(f"{value}\n")
            _run("mount", "--bind", str(file), f"/proc/sys/{name}")
    _run("mount", "--make-rshared", "/")


def _connect(name: str) -> None:
    socket.sethostname(name)
    for key in ("ip_forward", "conf/all/route_localnet"):
        Path("/proc/sys/net/ipv4", key).write_text("1")


def _supervise(plan: dict[str, Any]) -> NoReturn:
    logs, control = Path(plan["logs"]), Path(plan["directory"])
    running: dict[int, str] = {}
    due: dict[str, float] = {}

    def start(name: str) -> None:
        with (logs / f"{plan['name']}-{name}.log").open("ab") as log:
            argv = plan["commands"][name]
            running[subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/").pid] = name

    first, *others = plan["commands"]
    start(first)
    _prepare(plan["prepare"])
    for name in others:
        start(name)
    while True:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:  # every orphan in the node is ours
                if name := running.pop(ended[0], ""):
                    print(f"{name} ended with {os.waitstatus_to_exitcode(ended[1])}", file=sys.stderr, flush=True)
                    due[name] = time.monotonic() + RESTART
        for name in [name for name, at in due.items() if time.monotonic() >= at]:
            if not (control / f"{name}.down").exists():
                del due[name]
                start(name)
        time.sleep(0.05)


def _prepare(commands: list[list[str]]) -> None:
    """Carry out each; the first ones are refused until containerd answers."""
    deadline = time.monotonic() + PATIENCE
    for argv in commands:
        while (done := subprocess.run(argv, capture_output=True, text=True)).returncode:
            if time.monotonic() > deadline:
                sys.exit(f"{' '.join(argv)}: {done.stderr.strip()}")
            time.sleep(0.05)


if __name__ == "__main__":
    main()
