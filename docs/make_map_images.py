"""`python -m docs.make_map_images`: pictures of the map from a real run on the local control plane.

A cluster with a burst is recorded and photographed at three sizes, light and dark (map-light.png, map-tablet-dark.png
...), and the recording becomes an animated SVG, map-replay.svg, which needs no script and follows the reader's theme.
"""

import contextlib
import sys
import tempfile
import time
from pathlib import Path

from ateplace.cli.map.recording import read
from ateplace.local import ControlPlane, browser, substrate
from ateplace.local.browser import Page
from ateplace.local.pods import Installation
from ateplace.local.scene import OVERLAY, start_map
from docs.map_animation import animated

IMAGES = Path(__file__).parent / "images"
ZONES = {"zone-a": 14, "zone-b": 14, "zone-c": 14}
ROOM = {"requests": {"cpu": "500m", "memory": "512Mi"}}
LINGER = 6.0
SIZES = {"map": (1440, 860, 1), "map-tablet": (820, 1180, 1), "map-phone": (390, 844, 2)}
"""Width, height, device pixels for each."""


def main() -> None:
    if not browser.program():
        sys.exit(browser.WITHOUT)
    with (
        tempfile.TemporaryDirectory() as directory,
        ControlPlane(start_delay=0.8) as plane,
        browser.browsing() as chromium,
    ):
        recording = Path(directory) / "map.jsonl"
        for zone, count in ZONES.items():
            plane.add_nodes(count, f"node-{zone[-1]}", labels={"topology.kubernetes.io/zone": zone})
        substrate.install(plane)
        installed = Installation(plane, OVERLAY, reconciler__linger=LINGER)
        installed.start()
        plane.wait(installed.ready, timeout=120, why="ateplace to be ready")
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": "demo"}})
        url = start_map(plane, LINGER, "--record", str(recording))
        with contextlib.ExitStack() as stack:
            pages = {}
            for name, (width, height, scale) in SIZES.items():
                for scheme in ("light", "dark"):
                    page = pages[f"{name}-{scheme}"] = stack.enter_context(chromium.page())
                    page.scheme(scheme)
                    page.size(width, height, scale=scale, mobile=width < 500)
                    page.goto(url)
                    page.wait("document.getElementById('status').dataset.state === 'live'", 60)
            act(plane, pages)
        plane.stop("map")
        start, changes = read(recording)
        svg = animated(start, changes)
        (IMAGES / "map-replay.svg").write_text(svg)
        print(f"map-replay.svg: {len(svg) / 1000:.0f} kB")


def act(plane: ControlPlane, pages: dict[str, Page]) -> None:
    """Two pools come, one of them bursts, and shrinks again; photographs are taken in the middle of the burst."""
    substrate.pool(plane, "demo", "web", 48, resources=ROOM, annotations={"ateplace.ate.dev/headroom": "8"})
    substrate.pool(plane, "demo", "batch", 26, resources={"requests": {"cpu": "1", "memory": "1Gi"}})
    substrate.pool(plane, "demo", "agents", 18, resources=ROOM)
    light = pages["map-light"]
    ready = "Number(document.getElementById('t-ready').innerText)"
    light.wait(f"{ready} === 92", 120)
    time.sleep(2)
    substrate.scale(plane, "demo", "web", 260)
    light.wait(f"{ready} > 130", 60)
    for name, page in pages.items():
        if name.startswith("map-phone"):
            page.evaluate("document.getElementById('nodes').scrollIntoView(), 0")
        page.screenshot(IMAGES / f"{name}.png")
    light.wait(f"{ready} === 304", 120)
    time.sleep(3)
    substrate.scale(plane, "demo", "web", 48)
    light.wait(f"{ready} === 92 && document.getElementById('t-claimed').innerText === '0'", 120)
    time.sleep(LINGER + 4)


if __name__ == "__main__":
    main()
