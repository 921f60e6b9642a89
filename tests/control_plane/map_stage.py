"""A local plane with the map beside it, and every address that one of its processes connects to."""

import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from ateplace.cli.explain import explain, explain_node, explain_pool
from ateplace.cli.map import wire
from ateplace.cli.options import reaching
from ateplace.cli.status import data, look
from ateplace.errors import KubeError
from ateplace.kube import Kube
from ateplace.local import ControlPlane
from ateplace.settings import Settings, load
from tests.unit.test_map_board import timeless

T = TypeVar("T")

LINGER = 4.0
SPACE = "demo"
SLOT = "example.com/slot"
"""What ateoms ask for: nothing else takes it, so that a node holds exactly four."""
ATEOM = {"requests": {SLOT: "1"}, "limits": {SLOT: "1"}}


class Sockets:
    """Every address that a process of the plane, or a child of ours, is connected or connecting to."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.others: set[int] = set()
        """Processes that are none of the plane's, and what they start."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Sockets":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(0.25):
            ours = _descendants(os.getpid(), self.others)
            inodes = {inode for pid in ours for inode in _sockets(pid)}
            for table in ("tcp", "tcp6", "udp", "udp6"):
                for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                    fields = line.split()
                    address, _, port = fields[2].partition(":")
                    if fields[9] in inodes and int(port, 16) and not _is_loopback(address):
                        self.found.add(fields[2])


def _descendants(pid: int, without: set[int]) -> set[int]:
    """A process and all that it has started, by the kernel's lists of children."""
    found: set[int] = set()
    left = [pid]
    while left:
        one = left.pop()
        found.add(one)
        with contextlib.suppress(OSError):  # it may end at any moment
            for task in Path(f"/proc/{one}/task").glob("*/children"):
                left += [int(child) for child in task.read_text().split() if int(child) not in found | without]
    return found


def _sockets(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if (to := str(link.readlink())).startswith("socket:["):
                    yield to[8:-1]


def _is_loopback(address: str) -> bool:
    """As /proc/net has it: little-endian words."""
    if len(address) == 8:
        return address.endswith("7F")
    mapped = address.startswith("0000000000000000FFFF0000") and address.endswith("7F")
    return mapped or address == "00000000000000000000000001000000"


@dataclass
class Stage:
    plane: ControlPlane
    url: str
    sockets: Sockets

    def ask(self, what: Callable[[Kube, Settings], Awaitable[T]]) -> T:
        """What a command finds out, as the operator who has nothing but the plane's kubeconfig."""
        settings = load({}, [f"cluster.kubeconfig={self.plane.kubeconfig}", f"reconciler.linger={LINGER}"]).settings
        return reaching(settings, lambda kube: what(kube, settings))

    def status(self) -> dict[str, Any]:
        """What `ateplace status -o json` says of nodes and pools."""
        try:
            said = data(self.ask(lambda kube, settings: look(kube, settings, [])))
        except KubeError as error:  # a busy machine
            raise AssertionError(str(error)) from error
        assert said["notes"] == []
        return timeless(said)

    def explained(self, kind: str, name: str) -> dict[str, Any]:
        """What `ateplace explain -o json` says."""
        namespace, _, rest = name.partition("/")
        match kind:
            case "pod":
                found = self.ask(lambda kube, settings: explain(kube, settings, namespace, rest, []))
            case "node":
                found = self.ask(lambda kube, settings: explain_node(kube, settings, name, []))
            case _:
                found = self.ask(lambda kube, settings: explain_pool(kube, settings, namespace, rest))
        return found.as_data()

    def placement(self) -> wire.Placement:
        answer = httpx.get(f"{self.url}api/placement", trust_env=False, timeout=30)
        return msgspec.json.decode(answer.raise_for_status().content, type=wire.Placement)

    def settled(self, pool: str, ateoms: int, placeholders: int = 0) -> wire.Placement:
        """The map, once a pool is at rest."""

        def check() -> wire.Placement | None:
            seen = self.placement()
            row = seen.pools.get(f"{SPACE}/{pool}")
            held = all(one.state == "warm" for one in seen.nodes.values() if one.state != "cold")
            done = row and row.ready == ateoms and not row.waiting and row.placeholders == placeholders
            return seen if done and held and not seen.totals.in_flight else None

        found = self.plane.wait(check, timeout=60, why=f"{ateoms} ateoms of {pool} on the map", every=0.2)
        assert found is not None
        return found

    def pods(self, pool: str) -> list[str]:
        listed = self.plane.api.list(f"/api/v1/namespaces/{SPACE}/pods", labelSelector=f"ate.dev/worker-pool={pool}")
        return [item["metadata"]["name"] for item in listed]
