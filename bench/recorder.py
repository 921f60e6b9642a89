"""What a burst leaves behind: when each pod was bound, in which order nodes were claimed, and what it all cost.

Watches are only recorded while a burst runs, with the time at which each piece arrived, and read afterwards: two cores
are shared with what is being measured.
"""

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from ateplace import names
from ateplace.local.api import Object
from ateplace.local.kubeconfig import connect
from ateplace.local.plane import ControlPlane

TAIL = 64 * 1024
VERSION = re.compile(rb'"resourceVersion":"(\d+)"')
SPLIT = 64
"""More than such a version takes: it may be cut in two by the end of a chunk."""
TICKS = os.sysconf("SC_CLK_TCK")


class Recorder:
    """Records a watch from `with` to its end."""

    def __init__(self, plane: ControlPlane, path: str) -> None:
        self._api = connect(plane.kubeconfig)
        self._path = path
        self._chunks: list[tuple[float, bytes]] = []
        self._stopped = threading.Event()
        self._begun = 0

    def __enter__(self) -> "Recorder":
        version = self._api.get(self._path, limit="1")["metadata"]["resourceVersion"]
        self._begun = int(version)
        threading.Thread(target=self._follow, args=(version,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def _follow(self, version: str) -> None:
        """The API server ends the watch of a reader that falls behind for a moment: resumed where it ended.

        Stopped, it ends with the next event, and closes its connection itself: closed from another thread, the
        socket's number would soon be another connection's, whose bytes this thread would then read.
        """
        while not self._stopped.is_set():
            tail = b""
            try:
                with self._api.stream(self._path, watch="true", resourceVersion=version) as chunks:
                    for chunk in chunks:
                        if self._stopped.is_set():
                            break
                        self._chunks.append((time.perf_counter(), chunk))
                        tail += chunk
                        tail = tail if len(tail) < TAIL else tail[-TAIL:]
            except httpx.HTTPError:
                pass  # closed by the API server
            # What is not a whole line comes again.
            whole = tail.rpartition(b"\n")[0]
            if self._chunks and tail != whole + b"\n":
                self._chunks.append((time.perf_counter(), b"\n"))
            found = VERSION.findall(whole.rpartition(b"\n")[2])
            version = found[0].decode() if found else version
        self._api.close()

    def reach_present(self, seconds: float = 60.0) -> None:
        """Wait until everything that has happened to these objects so far has arrived."""
        items = self._api.get(self._path)["items"]
        newest = max((int(item["metadata"]["resourceVersion"]) for item in items), default=0)
        reached, scanned, rest = self._begun, 0, b""
        deadline = time.monotonic() + seconds
        while reached < newest:
            chunks = self._chunks[scanned:]
            scanned += len(chunks)
            text = rest + b"".join(chunk for _, chunk in chunks)
            reached = max(reached, *map(int, VERSION.findall(text)), 0)
            rest = text[-SPLIT:]
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._path}: at {reached}, not {newest}")
            time.sleep(0.02)

    def events(self) -> list[tuple[float, Object]]:
        """(when it had arrived, the event)."""
        found, rest = [], b""
        for at, chunk in list(self._chunks):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    found.append((at, json.loads(line)))
        return found


@dataclass
class Result:
    """One burst."""

    seconds: list[float] = field(default_factory=list)
    """Create to bound, of every pod."""
    nodes: int = 0
    patches: int = 0
    requests: int = 0
    cpu: dict[str, float] = field(default_factory=dict)
    early: int = 0
    """Pods bound to a node before its claim and label, by resourceVersion."""
    errors: int = 0
    """Calls that the extender answered with an error."""
    created: float = 0.0
    """Pods a second, from the first create to the last."""
    bound: float = 0.0
    """Pods a second, from the first create to the last binding."""
    ended: int = 0
    """Other pods that were on a node, and are gone."""

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def bindings(events: list[tuple[float, Object]]) -> dict[str, tuple[float, int, str, str]]:
    """Of each pod the first event that has it bound: when, version, node, pool UID."""
    found: dict[str, tuple[float, int, str, str]] = {}
    for at, event in events:
        pod = event["object"]
        meta, node = pod["metadata"], pod["spec"].get("nodeName")
        if node and meta["name"] not in found:
            pool = meta.get("labels", {}).get(names.POOL_UID_LABEL, "")
            found[meta["name"]] = (at, int(meta["resourceVersion"]), node, pool)
    return found


def ended(events: list[tuple[float, Object]], but: Container[str]) -> int:
    """How many pods that were on a node were deleted, but for those with these names."""
    gone = [event["object"] for _, event in events if event["type"] == "DELETED"]
    return sum(bool(pod["spec"].get("nodeName")) and pod["metadata"]["name"] not in but for pod in gone)


def early(bound: dict[str, tuple[float, int, str, str]], nodes: list[tuple[float, Object]]) -> int:
    """How many were bound before their node's newest older state carried claim and label."""
    states: dict[str, list[tuple[int, bool, set[str]]]] = {}
    for _, event in nodes:
        meta = event["object"]["metadata"]
        claims = {pool for key in meta.get("annotations", {}) if (pool := names.claimed_pool(key)) is not None}
        labelled = meta.get("labels", {}).get(names.NODE_LABEL) == "true"
        states.setdefault(meta["name"], []).append((int(meta["resourceVersion"]), labelled, claims))
    count = 0
    for _, version, node, pool in bound.values():
        older = [state for state in states.get(node, ()) if state[0] < version]
        count += not older or not older[-1][1] or pool not in older[-1][2]
    return count


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def process_with(*words: str) -> int:
    """The one process whose command line has all of these words."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                line = (entry / "cmdline").read_text()
            except OSError:
                continue
            if all(word in line for word in words):
                return int(entry.name)
    raise LookupError(f"no process with {words}")


def api_requests(plane: ControlPlane) -> int:
    """Requests that the API server has answered so far, watches not counted."""
    lines = plane.kubectl("get", "--raw", "/metrics").splitlines()
    counted = [line for line in lines if line.startswith("apiserver_request_total{") and 'verb="WATCH"' not in line]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in counted))
