"""`python docs/make_images.py`: pictures of the commands at work, from a real run on the local control plane."""

import asyncio
import io
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ateplace.cli.doctor.command import examine
from ateplace.cli.findings import table
from ateplace.cli.status import look, screen
from ateplace.kube import Kube
from ateplace.local import ControlPlane, substrate
from ateplace.local.pods import Installation
from ateplace.local.scene import OVERLAY
from ateplace.settings import Settings, load

IMAGES = Path(__file__).parent / "images"
ROOM = {"requests": {"cpu": "500m", "memory": "512Mi"}}
WIDTH = 100

T = TypeVar("T")


def main() -> None:
    with ControlPlane(nodes=8, start_delay=1.0) as plane:
        substrate.install(plane)
        installed = Installation(plane, OVERLAY)
        installed.start()
        plane.wait(installed.ready, timeout=120, why="ateplace to be ready")
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": "demo"}})
        substrate.pool(plane, "demo", "web", 24, resources=ROOM, annotations={"ateplace.ate.dev/headroom": "3"})
        substrate.pool(plane, "demo", "batch", 9, resources=ROOM)
        given = load({}, [f"cluster.kubeconfig={plane.kubeconfig}"])
        settings = given.settings
        urls = [pod.url("") for name, pod in installed.pods.items() if name.startswith("extender")]

        def settled() -> bool:
            seen = ask(settings, lambda kube: look(kube, settings, urls)).picture
            return seen.waiting == 0 and all(row.placeholders + row.ready for row in seen.rows.values())

        plane.wait(settled, timeout=120, why="every ateom on a node")
        substrate.pool(plane, "demo", "burst", 12, resources=ROOM)
        plane.wait(lambda: not ask(settings, lambda kube: look(kube, settings, urls)).picture.waiting, why="the burst")
        seen = ask(settings, lambda kube: look(kube, settings, urls))
        save("status", "ateplace status", screen(seen, idle=True))
        save("doctor", "ateplace doctor", table(ask(settings, lambda kube: examine(kube, given, []))))


def ask(settings: Settings, what: Callable[[Kube], Awaitable[T]]) -> T:
    async def run() -> T:
        kube = await Kube.connect(settings.cluster)
        try:
            return await what(kube)
        finally:
            await kube.close()

    return asyncio.run(run())


def save(name: str, title: str, what: RenderableType) -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Group(Text(f"$ {title}", style="bold"), Text(), what))
    IMAGES.mkdir(exist_ok=True)
    drawn = console.export_svg(title=title, unique_id=f"ateplace-{name}")
    # A reader's browser must not fetch a font from another server.
    (IMAGES / f"{name}.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))


if __name__ == "__main__":
    main()
