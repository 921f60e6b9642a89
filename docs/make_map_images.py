"""`python -m docs.make_map_images`: pictures of the map from a real run on the local control plane.

A cluster with a burst is recorded and photographed: map-light.png, map-dark.png, map-phone.png, and the recording as an
animated SVG, map-replay.svg, which needs no script and follows the reader's theme.
"""

import sys
import tempfile
import time
from pathlib import Path

from ateplace.cli.map.recording import read
from docs.map_animation import animated
from local import ControlPlane, browser, substrate
from local.browser import Page
from local.pods import Installation
from local.scene import OVERLAY, start_map

IMAGES = Path(__file__).parent / "images"
ZONES = {"zone-a": 14, "zone-b": 14, "zone-c": 14}
ROOM = {"requests": {"cpu": "500m", "memory": "512Mi"}}
LINGER = 6.0


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
        with chromium.page() as light, chromium.page() as dark, chromium.page() as phone:
            show(light, url, "light")
            show(dark, url, "dark")
            show(phone, url, "light", width=390, height=844, scale=2)
            act(plane, light, dark, phone)
        plane.stop("map")
        start, changes = read(recording)
        svg = animated(start, changes)
        (IMAGES / "map-replay.svg").write_text(svg)
        print(f"map-replay.svg: {len(svg) / 1000:.0f} kB")


def show(page: Page, url: str, scheme: str, *, width: int = 1440, height: int = 860, scale: float = 1) -> None:
    page.scheme(scheme)
    page.size(width, height, scale=scale, mobile=width < 500)
    page.goto(url)
    page.wait("document.getElementById('status').dataset.state === 'live'", 60)


def act(plane: ControlPlane, light: Page, dark: Page, phone: Page) -> None:
    """Two pools come, one of them bursts, and shrinks again; photographs are taken in the middle of the burst."""
    substrate.pool(plane, "demo", "web", 48, resources=ROOM, annotations={"ateplace.ate.dev/headroom": "8"})
    substrate.pool(plane, "demo", "batch", 26, resources={"requests": {"cpu": "1", "memory": "1Gi"}})
    substrate.pool(plane, "demo", "agents", 18, resources=ROOM)
    ready = "Number(document.getElementById('t-ready').innerText)"
    light.wait(f"{ready} === 92", 120)
    time.sleep(2)
    substrate.scale(plane, "demo", "web", 260)
    light.wait(f"{ready} > 130", 60)
    for page, name in ((light, "map-light"), (dark, "map-dark")):
        page.screenshot(IMAGES / f"{name}.png")
    phone.evaluate("document.getElementById('nodes').scrollIntoView(), 0")
    phone.screenshot(IMAGES / "map-phone.png")
    light.wait(f"{ready} === 304", 120)
    time.sleep(3)
    substrate.scale(plane, "demo", "web", 48)
    light.wait(f"{ready} === 92 && document.getElementById('t-claimed').innerText === '0'", 120)
    time.sleep(LINGER + 4)


if __name__ == "__main__":
    main()
