"""Extender and reconciler in one process on a large cluster: time to claim it from cold, memory, idle CPU.

    make bench-scale                1,000 nodes, 500 pools, 5,000 ateoms, 5,000 other pods; later 20,000 ateoms
    make bench-scale ARGS="--nodes 200 --pools 50 --ateoms 1000 --others 1000 --more 2000 --idle 20"
    make bench-scale ARGS="--idle 0 --more 0"           only the claims, from cold (a 0 leaves a part out)

Two targets say how quickly it claims: from the start of the process to leading, with no other process holding the
lease, in seconds of a quiet machine; and from leading to the last claim, against a reference in the same run: as many
bare patches of the same size to the same nodes by the same client, as many at once. Both are done three times, in
turns, and medians are compared. Pods are bound when they are created, and nobody runs them, so that nothing but us is
at work. Memory, CPU time and bytes read are the kernel's figures for the process, and the time of a claim is read off
its log: asking it while it works would slow it down.

Idle means that each node reports every five minutes, as kubelets do when nothing changes (the bench does it for them:
KWOK's first reports would come after its end), the lease is renewed and the full comparison runs. The last is measured
by itself and counted as often as it is made by default.
Ends with a line of JSON, and with 1 when a target was missed.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

import httpx

from ateplace import names
from ateplace.kube import Kube
from ateplace.local import ControlPlane, substrate
from ateplace.local.ports import Reservations
from ateplace.local.scheduling import Scheduling
from ateplace.settings import Cluster, Reconciler
from bench.crowd import WORKERS, Crowd, Reports
from bench.recorder import cpu_seconds

COMPARED = "ateplace_full_comparisons_total"
RUNS = 3
ROUND = 15.0
"""Seconds in whose middle a full comparison is made."""
MOST = {
    "leading_median_s": 0.8,
    "claimed_after_leading_ratio": 1.2,
    "peak_mib": 128.0,
    "idle_cpu_percent": 1.0,
    "bytes_per_other": 16.0,
    "read_per_other": 16.0,
    "bytes_per_ateom": 1024.0,
}
"""The targets. For pods that are not ateoms it is 0: what is left is the noise of the allocator and of the clock."""


class Us:
    """The process under test."""

    def __init__(self, plane: ControlPlane, resync: float, name: str) -> None:
        self._plane = plane
        self._name = name
        rig = Scheduling(plane)
        rig.write_certificates()
        reserved = Reservations()
        self.port = reserved.port()
        reserved.release()
        flags = {
            "cluster.kubeconfig": plane.kubeconfig,
            "serve.host": "127.0.0.1",
            "serve.health_port": self.port,
            "extender.port": 0,
            "extender.tls_directory": rig.directory / "server",
            "certs.managed": "false",
            "reconciler.workers": WORKERS,
            "reconciler.resync": resync,
            "reconciler.atelet_late": 1e6,  # no atelet runs here
        }
        argv = [
            sys.executable,
            "-m",
            "bench.scale_server",
            *(f"{key}={value}" for key, value in flags.items()),
        ]
        self.began = time.monotonic()
        self.pid = plane.run(name, argv)

    def stop(self) -> None:
        self._plane.stop(self._name, timeout=60)

    def said(self, words: str, times: int, timeout: float = 300) -> float:
        """When it had logged these words so many times."""
        log = self._plane.log(self._name)
        wanted = f'"{words}"'.encode()
        self._plane.wait(lambda: log.read_bytes().count(wanted) >= times, timeout, why=f"{words} × {times}", every=0.02)
        return time.monotonic()

    def metric(self, name: str) -> float:
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=30, trust_env=False).text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    def kernel(self, file: str, field: str) -> int:
        """A number from /proc: KiB in status, bytes in io."""
        for line in Path(f"/proc/{self.pid}/{file}").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1])
        raise KeyError(field)

    def peak(self) -> float:
        """MiB."""
        return self.kernel("status", "VmHWM") / 1024

    def quiet(self) -> None:
        """Wait until nothing is left to be written, Events included."""
        sent = -1.0
        while sent != (sent := self.metric("ateplace_events_sent_total")):
            time.sleep(5)

    def resting(self) -> int:
        """Resident memory once it has stopped changing, in bytes."""
        last = -1
        for _ in range(30):
            now = self.kernel("status", "VmRSS")
            if now == last:
                break
            last = now
            time.sleep(2)
        return now * 1024


class Sampled:
    """CPU seconds and bytes read in a stretch of time."""

    def __init__(self, us: Us) -> None:
        self._us = us
        self._at, self._cpu, self._read = time.monotonic(), cpu_seconds(us.pid), us.kernel("io", "rchar")

    def so_far(self) -> tuple[float, float, int]:
        """Seconds, CPU seconds, bytes."""
        us = self._us
        return time.monotonic() - self._at, cpu_seconds(us.pid) - self._cpu, us.kernel("io", "rchar") - self._read


def idle(us: Us, seconds: float) -> dict[str, float]:
    """Between two full comparisons, then with one."""
    before = us.metric(COMPARED)
    while us.metric(COMPARED) == before:
        time.sleep(1)
    time.sleep(1)
    quiet = Sampled(us)
    time.sleep(seconds)
    took, cpu, read = quiet.so_far()
    busy = Sampled(us)
    time.sleep(ROUND)
    longer, more, _ = busy.so_far()
    assert us.metric(COMPARED) == before + 2
    comparison = max(0.0, more - cpu / took * longer)
    percent = 100 * (cpu / took + comparison / Reconciler().resync)
    print(f"idle CPU: {100 * cpu / took:.2f} % of a core over {took:.0f} s, a full comparison {comparison:.2f} s")
    return {"idle_cpu_percent": percent, "comparison_cpu_s": comparison, "read_per_s": read / took}


def bench(options: argparse.Namespace) -> dict[str, float | list[float]]:
    with ControlPlane(scheduler=False) as plane:
        plane.define(substrate.MANIFESTS / "new" / "workerpool-crd.yaml")
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": names.NAMESPACE}})
        this = Crowd(plane, plane.add_nodes(options.nodes), options.pools)

        def ask(what: str, *arguments: int) -> object:
            async def main() -> object:
                kube = await Kube.connect(Cluster(kubeconfig=str(plane.kubeconfig), request_timeout=60))
                try:
                    return await getattr(this, what)(kube, *arguments)
                finally:
                    await kube.close()

            return asyncio.run(main())

        def reference() -> float:
            return float(str(ask("reference")))

        ask("prepare")
        ask("fill", options.ateoms, options.others)
        print(f"{options.nodes} nodes, {options.pools} pools, {options.ateoms} ateoms, {options.others} other pods")
        reference()  # connections and caches of the API server, which the first would pay for
        bare, claimed, led = [], [], []
        for number in range(RUNS):
            bare.append(reference())
            us = Us(plane, options.idle + ROUND / 2 if options.idle else Reconciler().resync, f"us-{number}")
            led.append(us.said("leading", 1) - us.began)
            claimed.append(us.said("claimed", options.nodes) - us.began)
            labelled = plane.api.list("/api/v1/nodes", labelSelector=names.NODE_LABEL)
            assert len(labelled) == options.nodes
            if number < RUNS - 1:
                us.stop()
                ask("unclaim")
        us.quiet()
        usual, took, leading = (statistics.median(each) for each in (bare, claimed, led))
        figures: dict[str, float | list[float]] = {
            "bare_s": bare,
            "claimed_s": claimed,
            "claimed_ratio": took / usual,
            "leading_s": led,
            "leading_median_s": leading,
            "claimed_after_leading_ratio": (took - leading) / usual,
        }
        print(f"bare patches: {_listed(bare)}")
        print(f"claimed, from the start of the process: {_listed(claimed)} ({figures['claimed_ratio']:.2f} × bare)")
        print(f"         of which before leading: {_listed(led)}")
        if options.idle:
            with Reports(plane, this.nodes) as reports:
                figures |= idle(us, options.idle)
                base = us.resting()
                if options.others:
                    filling = Sampled(us)
                    ask("fill", 0, options.others)
                    took, _, read = filling.so_far()
                    own = read - float(str(figures["read_per_s"])) * took
                    figures["bytes_per_other"] = (us.resting() - base) / options.others
                    figures["read_per_other"] = own / options.others
                    print(f"{options.others} more other pods: {figures['bytes_per_other']:+.0f} bytes each,", end=" ")
                    print(f"{figures['read_per_other']:+.0f} bytes read for each")
            figures["reports"] = float(reports.count)
            assert reports.count
        figures["peak_mib"] = us.peak()
        base = us.resting()
        print(f"memory: peak {us.peak():.0f} MiB, at rest {base / 2**20:.0f} MiB")
        if options.more:
            ask("fill", options.more, 0)
            more = us.resting()
            figures["bytes_per_ateom"] = (more - base) / options.more
            print(f"{options.more} more ateoms: {figures['bytes_per_ateom']:+.0f} bytes each")
            print(f"memory: peak {us.peak():.0f} MiB, at rest {more / 2**20:.0f} MiB")
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pools", type=int, default=500, help="each in a namespace of its own")
    parser.add_argument("--ateoms", type=int, default=5000)
    parser.add_argument("--others", type=int, default=5000, help="pods that are not ateoms; as many more later")
    parser.add_argument("--more", type=int, default=15000, help="ateoms that come later")
    parser.add_argument("--idle", type=int, default=45, help="seconds over which idle CPU is measured")
    figures = bench(parser.parse_args())
    missed = [name for name, most in MOST.items() if isinstance(found := figures.get(name), float) and found > most]
    shown = {name: _rounded(found) for name, found in figures.items()}
    print(json.dumps(shown | {"targets": MOST, "missed": missed, "ok": not missed}))
    return int(bool(missed))


def _listed(seconds: list[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in seconds) + " s"


def _rounded(found: float | list[float]) -> float | list[float]:
    return [round(each, 2) for each in found] if isinstance(found, list) else round(found, 2)


if __name__ == "__main__":
    sys.exit(main())
