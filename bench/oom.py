"""Grows a cluster until the roles run out of memory, and says at which size each would die, and of what.

    make reproduce-oom                              20,000 ateoms on 2,000 nodes in five batches; writes docs/memory
    make reproduce-oom ARGS="--batches 2 --nodes 20 --pools 10 --ateoms 200 --others 200 --report /tmp/report"
    make reproduce-oom ARGS=--rlimit                without cgroups, as for users other than root

Each role runs as a process of its own under a memory limit a little above what it takes. When the kernel has killed it,
it is started again under the same limit, as a kubelet would, and then under a higher one. Beside each runs a twin
without a limit whose allocations are traced: heap pictures between the batches. Sizes beyond the last batch
are extrapolated, and the report says which.

Whatever ends this, Ctrl-C and kill -9 included, leaves no process, cgroup or directory behind (`local.keeper`); the
report is written at the very end or not at all. Ends with a line of JSON.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import yaml

from ateplace import names
from ateplace.errors import LocalError
from ateplace.kube import Kube
from ateplace.local import ControlPlane, substrate
from ateplace.local.ports import Reservations
from ateplace.local.program import ateplace
from ateplace.local.scheduling import Scheduling
from ateplace.quantities import quantity
from ateplace.settings import Cluster
from bench import oom_report
from bench.crowd import Crowd
from bench.limits import MIB, Cgroup, Data, Limit, kernel, parent
from bench.oom_report import KINDS, Death, Figures, Size, Step

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "docs" / "memory"
PAGE = ROOT / "docs" / "operations.md"
ROLES = ("webhook", "extender", "reconciler")
GENEROUS = 4096 * MIB
"""The limit of a process whose own limit is not known yet."""
NOISE = 32 * 1024
"""Bytes by which a process at rest may change in a second."""
SITE = re.compile(r"^\s*([\d.]+)\s+\d+\s+(\S+:\d+)$", re.MULTILINE)
"""A line of the debug port's heap picture: KiB, blocks, where."""

_numbers = itertools.count()


class Role:
    """A role's process."""

    def __init__(self, plane: ControlPlane, role: str, certificates: Path, limit: Limit | None = None) -> None:
        self._plane = plane
        self._limit = limit
        self.name = f"{role}-{'limited' if limit else 'traced'}-{next(_numbers)}"
        reserved = Reservations()
        self._health, self._debug = reserved.port(), reserved.port()
        reserved.release()
        flags = {
            "cluster.kubeconfig": plane.kubeconfig,
            "serve.host": "127.0.0.1",
            "serve.health_port": self._health,
            "serve.debug_port": 0 if limit else self._debug,
            "serve.drain": 0,
            "certs.managed": "false",
            "reconciler.atelet_late": 1e6,  # no atelet runs here
            "log.level": "warning",
        }
        if role != "reconciler":
            flags |= {f"{role}.port": 0, f"{role}.tls_directory": certificates}
        program, self._env = ateplace()
        argv = [*program, role, *(f"--set={key}={value}" for key, value in flags.items())]
        self._argv = limit.argv(argv) if limit else argv
        if limit is None:
            self._env = {**self._env, "PYTHONTRACEMALLOC": "1"}
        self.pid = 0

    def start(self) -> bool:
        """Whether it became ready."""
        self.pid = self._plane.run(self.name, self._argv, self._env)
        try:
            self._plane.wait(self._up, timeout=120, why=f"{self.name} to be ready", every=0.2)
        except AssertionError:
            return False
        return self.alive()

    def start_unhindered(self) -> None:
        """LocalError when it does not become ready, as no limit can be why."""
        if not self.start():
            raise LocalError(f"{self.name} did not become ready: {self._plane.log(self.name).read_text()[-1000:]}")

    def stop(self) -> None:
        if self.alive():
            self._plane.stop(self.name, signal.SIGKILL)

    def alive(self) -> bool:
        """Whether it runs, and can still allocate memory."""
        if self._plane.keeper.exit_code(self.name) is not None:
            return False
        return b"MemoryError" not in self._plane.log(self.name).read_bytes()

    def peak(self) -> int:
        """The most that it has taken, without what is mapped from files."""
        return kernel(self.pid, "VmHWM") - kernel(self.pid, "RssFile")

    def heap(self) -> dict[str, float]:
        """KiB by line."""
        url = f"http://127.0.0.1:{self._debug}/debug/heap"
        text = httpx.get(url, params={"seconds": 0.01}, timeout=300, trust_env=False).text
        return {where: float(size) for size, where in SITE.findall(text)}

    def _up(self) -> bool:
        if not self.alive():
            return True
        try:
            said = httpx.get(f"http://127.0.0.1:{self._health}/readyz", timeout=30, trust_env=False).text
        except httpx.HTTPError as error:
            raise AssertionError(repr(error)) from error
        assert said == "ready\n", said
        return True


class Growing:
    """The cluster, the roles in it, and what was seen."""

    def __init__(self, plane: ControlPlane, options: argparse.Namespace) -> None:
        self.plane = plane
        self.options = options
        self.crowd = Crowd(plane, [], 0)
        self.steps: list[Step] = []
        self.deaths: list[Death] = []
        self.cold: dict[str, list[int]] = {role: [] for role in ROLES}
        self.pictures: list[dict[str, dict[str, float]]] = []
        rig = Scheduling(plane)
        rig.write_certificates()
        self._certificates = rig.directory / "server"
        place = None if options.rlimit else parent()
        self.limits: dict[str, Limit] = {role: Cgroup(plane.keeper, place, role) if place else Data() for role in ROLES}
        self.sizes = dict.fromkeys(ROLES, GENEROUS)
        self.roles: dict[str, Role] = {}
        self.twins = {role: Role(plane, role, self._certificates) for role in ROLES}
        self._fallen: dict[str, Size] = {}

    def size(self) -> Size:
        crowd = self.crowd
        return Size(len(crowd.namespaces), len(crowd.pools), len(crowd.nodes), crowd.ateoms, crowd.others)

    def begin(self) -> None:
        for role in ROLES:
            self._start_generously(role)
            self.twins[role].start_unhindered()
        self._rest()
        for role in ROLES:
            self._limit(role)
        self._note("start", 0)

    def grow(self, turn: int) -> None:
        """One batch: each kind in turn, and a heap picture."""
        for kind in KINDS:
            count = getattr(self.options, "pools" if kind == "namespaces" else kind)
            with self._watching():
                self._add(kind, count, turn)
                self._rest()
            self._note(kind, turn)
            if self._revive():
                self._rest()
                self._note("start", turn)
            print(f"batch {turn}: {count} more {kind}: {self._said()}", flush=True)
        self.pictures.append({role: twin.heap() for role, twin in self.twins.items()})

    def finish(self) -> None:
        """How much a start takes now."""
        for role in ROLES:
            self.roles[role].stop()
            self._start_generously(role)

    def figures(self) -> Figures:
        first, last = self.pictures[0], self.pictures[-1]
        kubernetes = self.plane.api.get("/version")["gitVersion"]
        return Figures(
            machine=f"{os.cpu_count()} cores, Python {platform.python_version()}, Kubernetes {kubernetes}",
            limited_by=next(iter(self.limits.values())).kind,
            step=self.options.step * MIB,
            shipped={role: shipped(role) for role in ROLES},
            steps=self.steps,
            deaths=self.deaths,
            cold={role: (sizes[0], sizes[-1]) for role, sizes in self.cold.items()},
            sites={
                role: {
                    line: round((size - first[role].get(line, 0.0)) * 1024)
                    for line, size in last[role].items()
                    if size > first[role].get(line, 0.0)
                }
                for role in ROLES
            },
        )

    def _make(self, role: str) -> Role:
        self.roles[role] = Role(self.plane, role, self._certificates, self.limits[role])
        return self.roles[role]

    def _start_generously(self, role: str) -> None:
        """And note how much the start takes."""
        self.limits[role].set(GENEROUS)
        self._make(role).start_unhindered()
        self.cold[role].append(self.roles[role].peak())

    def _limit(self, role: str) -> None:
        """A step above what it takes now."""
        pid, limit = self.roles[role].pid, self.limits[role]
        self.sizes[role] = limit.counted(pid) + self.options.step * MIB
        limit.set(self.sizes[role], pid)

    def _add(self, kind: str, count: int, turn: int) -> None:
        crowd = self.crowd
        if kind == "nodes":
            crowd.nodes += self.plane.add_nodes(count, prefix=f"batch{turn}")
            return

        async def main() -> None:
            kube = await Kube.connect(Cluster(kubeconfig=str(self.plane.kubeconfig), request_timeout=60))
            try:
                if kind == "namespaces":
                    await crowd.add_namespaces(kube, count)
                elif kind == "pools":
                    await crowd.add_pools(kube, count)
                else:
                    await crowd.fill(kube, *((count, 0) if kind == "ateoms" else (0, count)))
            finally:
                await kube.close()

        asyncio.run(main())

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Within it, the size at which a role dies is noted as it happens."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.2):
                for role, process in self.roles.items():
                    if role not in self._fallen and not process.alive():
                        self._fallen[role] = self.size()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _revive(self) -> bool:
        """Start again what died: under its limit, and then under ever higher ones until it comes up."""
        for role, size in self._fallen.items():
            self.roles[role].stop()
            again = self._make(role).start()
            self.deaths.append(Death(role, self.sizes[role], size, again))
            print(f"{role} was killed at {self.sizes[role] / MIB:.1f} MiB with {size.ateoms} ateoms", flush=True)
            up = False
            while not up:
                self.roles[role].stop()
                self.sizes[role] += self.options.step * MIB
                if self.sizes[role] > GENEROUS:
                    raise LocalError(f"{role} does not come up with {GENEROUS / MIB:.0f} MiB either")
                self.limits[role].set(self.sizes[role])
                up = self._make(role).start()
        revived = bool(self._fallen)
        self._fallen.clear()
        return revived

    def _rest(self) -> None:
        """Wait until no role's memory changes any more, but for noise."""
        last: list[int] = []
        for _ in range(15):
            live = [process for process in self.roles.values() if process.alive()]
            now = [kernel(process.pid, "VmRSS") for process in live]
            if len(now) == len(last) and all(abs(a - b) <= NOISE for a, b in zip(now, last, strict=True)):
                return
            last = now
            time.sleep(1)

    def _note(self, kind: str, turn: int) -> None:
        live = {role: process.pid for role, process in self.roles.items() if process.alive()}
        used = {role: self.limits[role].counted(pid) for role, pid in live.items()}
        self.steps.append(Step(kind, turn, self.size(), used))

    def _said(self) -> str:
        used = self.steps[-1].used
        return ", ".join(f"{role} {used[role] / MIB:.1f} of {self.sizes[role] / MIB:.1f} MiB" for role in used)


def shipped(role: str) -> int:
    """The memory limit of the manifest."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "base" / f"{role}.yaml").read_text("utf-8"))
    deployment = next(each for each in documents if each and each["kind"] == "Deployment")
    limit = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    return int(quantity(limit))


def write(figures: Figures, directory: Path, page: Path | None = None) -> None:
    """The report's three files, and the sizing table into its place on a page of the docs; each whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    content = {
        directory / "README.md": oom_report.report(figures),
        directory / "memory.svg": oom_report.plot(figures),
        directory / "figures.json": msgspec.json.format(msgspec.json.encode(figures), indent=1).decode() + "\n",
    }
    if page:
        before, begin, rest = page.read_text("utf-8").partition("<!-- memory: begin -->\n")
        _, end, after = rest.partition("<!-- end -->")
        content[page] = f"{before}{begin}\n{oom_report.sizing(figures)}\n{end}{after}"
    fresh = {path: path.with_name(f".{path.name}.new") for path in content}
    try:
        for path, text in content.items():
            fresh[path].write_text(text, "utf-8")
        for path, part in fresh.items():
            part.replace(path)
    finally:
        for part in fresh.values():
            part.unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--pools", type=int, default=200, help="in a batch, each in a new namespace")
    parser.add_argument("--nodes", type=int, default=400, help="in a batch")
    parser.add_argument("--ateoms", type=int, default=4000, help="in a batch")
    parser.add_argument("--others", type=int, default=4000, help="pods that are not ateoms, in a batch")
    parser.add_argument("--step", type=int, default=6, help="MiB from what a role takes to its limit")
    parser.add_argument("--rlimit", action="store_true", help="limit data instead of making cgroups")
    parser.add_argument("--report", type=Path, default=PUBLISHED, help="directory to write it to")
    options = parser.parse_args()
    if options.batches < 2:
        parser.error("growth takes two batches at least: the first fills caches")
    began = time.monotonic()
    with ControlPlane(scheduler=False) as plane:
        plane.define(substrate.MANIFESTS / "new" / "workerpool-crd.yaml")
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": names.NAMESPACE}})
        growing = Growing(plane, options)
        print(f"limited by {next(iter(growing.limits.values())).kind}", flush=True)
        growing.begin()
        for turn in range(1, options.batches + 1):
            growing.grow(turn)
        growing.finish()
        figures = growing.figures()
    write(figures, options.report, PAGE if options.report == PUBLISHED else None)
    print(f"report: {options.report / 'README.md'}")
    print(
        json.dumps(
            {
                "seconds": round(time.monotonic() - began),
                "limited_by": figures.limited_by,
                **oom_report.summary(figures),
                "ok": True,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
