"""A real node changes nothing of the machine, and nothing of it stays."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ateplace.local.realnode import cgroups

NAME = "solo"
PROGRAM = f"""
import sys
from ateplace.local import ControlPlane
from ateplace.local.realnode import RealNode
with ControlPlane(real_nodes=True) as plane, RealNode(plane, "{NAME}") as node:
    plane.wait(node.ready, timeout=120)
    plane.kubectl("run", "one", "--image=registry.example/ateom:1")
    path = "/api/v1/namespaces/default/pods/one"
    plane.wait(lambda: plane.api.get(path)["status"]["phase"] == "Running", timeout=120)
    print(node.init, plane.directory, flush=True)
    sys.stdin.read()
"""


class Running(NamedTuple):
    process: "subprocess.Popen[str]"
    """Has a plane, and a node that runs a pod."""
    namespace: str
    """The node's PID namespace."""
    machine_side: int
    """PID of the process that answers for the node."""
    directory: Path
    """The plane's."""
    before: dict[str, object]
    """What the machine was like."""


@pytest.fixture
def node(fit: None) -> Iterator[Running]:
    before = machine()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    init, directory = process.stdout.readline().split()
    namespace = str(Path(f"/proc/{init}/ns/pid").readlink())
    unshare = int(Path(f"/proc/{init}/stat").read_text().rpartition(")")[2].split()[1])
    outer = int(Path(f"/proc/{unshare}/stat").read_text().rpartition(")")[2].split()[1])
    yield Running(process, namespace, outer, Path(directory), before)
    process.kill()
    process.communicate()


def machine() -> dict[str, object]:
    """What a node would change if it were not kept to itself."""
    places = [Path(place) for place in ("/run", "/var/lib", "/var/log", "/etc/cni", "/opt/cni")]
    return {
        "mounts": [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()],
        "links": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "routes": Path("/proc/net/route").read_text(),
        "rules": subprocess.run(["iptables-save"], capture_output=True, text=True).stdout.count("-A "),
        "sysctls": [Path("/proc/sys", name).read_text() for name in ("vm/overcommit_memory", "kernel/panic")],
        "files": {str(path) for place in places if place.exists() for path in place.iterdir()},
    }


def processes_in(namespace: str) -> set[str]:
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if str((path / "ns" / "pid").readlink()) == namespace:
                found.add((path / "comm").read_text().strip())
        except OSError:
            continue  # it has ended meanwhile
    return found


def cgroups_of_the_node() -> list[Path]:
    return list(cgroups.ROOT.rglob(f"{cgroups.PREFIX}{NAME}-*"))


def until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_machine_is_as_it_was_while_a_node_runs(node: Running) -> None:
    assert {"kubelet", "containerd"} <= processes_in(node.namespace)  # pods have namespaces below it
    assert machine() == node.before


def test_nothing_stays_when_the_process_that_made_the_node_is_killed(node: Running) -> None:
    assert cgroups_of_the_node()
    node.process.kill()
    until(lambda: not processes_in(node.namespace))
    until(lambda: not cgroups_of_the_node())
    until(lambda: not node.directory.exists())
    assert machine() == node.before


def test_nothing_stays_when_the_process_that_answers_for_the_node_is_killed(node: Running) -> None:
    os.kill(node.machine_side, signal.SIGKILL)
    until(lambda: not processes_in(node.namespace))
    until(lambda: not cgroups_of_the_node())


def test_without_root_one_sentence_says_what_to_do(fit: None) -> None:
    asked = [sys.executable, "-c", "from ateplace.local.realnode import unfit; print(unfit())"]
    said = subprocess.run(["unshare", "--user", *asked], capture_output=True, text=True)
    assert said.stdout == "a real node needs root, for namespaces, mounts and cgroups: run this as root\n", said.stderr
