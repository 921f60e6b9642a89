"""The map of a large cluster, measured in the browser: first picture, frames during a burst, memory of the server.

    make bench-map                                        5,000 nodes, 20,000 ateoms, a burst of 300
    make bench-map ARGS="--nodes 1000 --ateoms 4000"

The cluster is made up (`bench.map_cluster`); the map is a process of its own, with its real watches; the page is shown
by a headless Chromium without a graphics card. A frame is the time between two animation frames, as the page sees it.
Ends with a line of JSON, and with 1 when a target was missed.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from ateplace.local import browser
from ateplace.local.browser import Page
from bench.map_cluster import ZONES, Cluster

MOST = {"first_picture_s": 2.0, "burst_longest_frame_ms": 100.0, "server_peak_mib": 200.0}
FRAMES = """
globalThis.frames = [];
(() => {
  let last;
  const next = (now) => {
    if (last !== undefined) frames.push(now - last);
    last = now;
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
})()
"""
SCRUB = """
(async () => {
  const range = document.getElementById("when"), to = Number(range.max);
  for (let step = 0; step <= 20; step++) {
    range.value = to - (20 - step) / 4;
    range.dispatchEvent(new Event("input"));
    await new Promise(requestAnimationFrame);
  }
})()
"""
PER_NODE = 10
BURST_SECONDS = 3.0


def fill(cluster: Cluster, nodes: int, ateoms: int, pools: int) -> None:
    """Ateoms on as few nodes as hold them, ten on each; the rest is cold."""
    for index in range(pools):
        cluster.pool(f"pool-{index:02d}", ateoms // pools)
    for index in range(nodes):
        here = [
            f"pool-{number % pools:02d}"
            for number in range(index * PER_NODE, (index + 1) * PER_NODE)
            if number < ateoms
        ]
        cluster.node(f"node-{index:04d}", ZONES[index % len(ZONES)], *dict.fromkeys(here))
        if here:
            cluster.atelet(f"node-{index:04d}")
    for number in range(ateoms):
        cluster.pod(f"pool-{number % pools:02d}", number, f"node-{number // PER_NODE:04d}", ready=True)


async def burst(cluster: Cluster, first: int, count: int, nodes: int) -> None:
    """So many more ateoms of one pool: created at once, bound over a few seconds on nodes that are claimed for them."""
    cluster.pool("pool-00", first + count)
    for number in range(count):
        cluster.pod("pool-00", first + number)
    steps = 30
    for step in range(steps):
        for number in range(step * count // steps, (step + 1) * count // steps):
            node = nodes - 1 - number // PER_NODE
            if number % PER_NODE == 0:
                cluster.node(f"node-{node:04d}", ZONES[node % len(ZONES)], "pool-00")
            cluster.pod("pool-00", first + number, f"node-{node:04d}")
        await asyncio.sleep(BURST_SECONDS / steps)
    for number in range(count):
        if number % PER_NODE == 0:
            cluster.atelet(f"node-{nodes - 1 - number // PER_NODE:04d}")
        cluster.pod("pool-00", first + number, f"node-{nodes - 1 - number // PER_NODE:04d}", ready=True)


def kubeconfig(directory: Path, url: str) -> Path:
    path = directory / "kubeconfig"
    document = {
        "current-context": "bench",
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "clusters": [{"name": "bench", "cluster": {"server": url}}],
        "users": [{"name": "bench", "user": {}}],
    }
    path.write_text(json.dumps(document))
    return path


def peak(pid: int) -> float:
    """MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise KeyError("VmHWM")


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    cluster = Cluster()
    fill(cluster, options.nodes, options.ateoms, options.pools)
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as directory:
        async with cluster.serving() as server:
            environment = os.environ | {"KUBECONFIG": str(kubeconfig(Path(directory), server))}
            argv = [sys.executable, "-u", "-m", "ateplace.cli", "map", "--no-open", "--listen", "127.0.0.1:0"]
            process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - once
            try:
                assert process.stdout
                line = await loop.run_in_executor(None, process.stdout.readline)
                url = line.split(" at ")[1].split()[0]
                began = time.monotonic()
                async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
                    body = (await client.get(f"{url}api/placement")).raise_for_status().content
                figures: dict[str, Any] = {
                    "nodes": options.nodes,
                    "ateoms": options.ateoms,
                    "server_read_s": time.monotonic() - began,
                    "placement_mb": len(body) / 1e6,
                }
                print(f"the server has read the cluster after {figures['server_read_s']:.1f} s", flush=True)
                seen = await loop.run_in_executor(None, watch, url, cluster, options, loop)
                return figures | seen | {"server_peak_mib": peak(process.pid)}
            finally:
                process.terminate()
                process.wait(20)


def watch(url: str, cluster: Cluster, options: argparse.Namespace, loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    """What the browser sees."""
    with browser.browsing() as chromium, chromium.page() as page:
        page.size(1440, 900)
        page.goto(url)
        page.wait("performance.getEntriesByName('first-picture').length", 120)
        page.wait("document.getElementById('status').dataset.state === 'live'", 120)
        marks = "performance.getEntriesByName('first-picture')[0].startTime"
        received = "performance.getEntriesByName('placement-received')[0].startTime"
        figures: dict[str, Any] = {
            "first_picture_s": page.evaluate(f"{marks} - {received}") / 1000,
            "first_picture_after_opening_s": page.evaluate(marks) / 1000,
        }
        print(f"first picture {figures['first_picture_s']:.2f} s after its data", flush=True)
        page.evaluate("new Promise((done) => setTimeout(done, 3000))")
        figures |= frames(page, "idle", lambda: time.sleep(3))

        def go() -> None:
            sent = time.monotonic()
            asyncio.run_coroutine_threadsafe(
                burst(cluster, options.ateoms, options.burst, options.nodes), loop
            ).result()
            wanted = str(options.ateoms + options.burst)
            page.wait(f"document.getElementById('t-ready').innerText.replace(/\\D/g, '') === '{wanted}'", 60)
            figures["burst_shown_after_s"] = time.monotonic() - sent
            time.sleep(1.5)

        figures |= frames(page, "burst", go)
        began = time.monotonic()
        page.click("#pause")
        page.wait("document.getElementById('status').dataset.state === 'past'", 60)
        figures["stopped_after_s"] = time.monotonic() - began
        figures |= frames(page, "scrub", lambda: page.evaluate(SCRUB))
        if options.screenshot:
            page.click("#pause")
            time.sleep(1)
            page.screenshot(Path(options.screenshot))
        assert page.complaints == [], page.complaints
        return figures


def frames(page: Page, what: str, during: Any) -> dict[str, Any]:
    page.evaluate(FRAMES)
    during()
    seen = sorted(page.evaluate("frames"))
    assert seen, f"no frame during {what}"
    found = {
        f"{what}_longest_frame_ms": seen[-1],
        f"{what}_p99_frame_ms": seen[int(len(seen) * 0.99)],
        f"{what}_frames": len(seen),
    }
    print(
        f"{what}: {len(seen)} frames, longest {seen[-1]:.0f} ms, P99 {found[f'{what}_p99_frame_ms']:.0f} ms", flush=True
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--ateoms", type=int, default=20_000)
    parser.add_argument("--pools", type=int, default=40)
    parser.add_argument("--burst", type=int, default=300)
    parser.add_argument("--screenshot", default="", help="write the last picture to this file")
    options = parser.parse_args()
    if not browser.program():
        print(browser.WITHOUT)
        return 1
    figures = asyncio.run(bench(options))
    missed = [name for name, most in MOST.items() if figures[name] > most]
    shown = {name: round(value, 2) if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps(shown | {"targets": MOST, "missed": missed, "ok": not missed}))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
