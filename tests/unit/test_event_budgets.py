"""Events about one object are few, whatever it does, and leave room for those about others."""

import asyncio
from collections import Counter
from pathlib import Path

from ateplace.reconciler.events import OBJECT_BURST, OBJECT_SECONDS, Events, about_node
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving, until


def test_an_object_has_ten_events_at_once_then_one_in_half_a_minute(tmp_path: Path) -> None:
    written: Counter[str] = Counter()

    async def handle(request: Request, answer: Answer) -> None:
        written[request.json["regarding"]["name"]] += 1
        await answer.reply(201, {"metadata": {"name": "event"}})

    async def main() -> None:
        now = 0.0
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            events = Events(kube, "test", clock=lambda: now)
            for number in range(1_000):
                events.warn(about_node("noisy", "u1"), "Reason", f"{number}")
            events.warn(about_node("quiet", "u2"), "Reason", "once")
            now = OBJECT_SECONDS
            for number in range(1_000):
                events.warn(about_node("noisy", "u1"), "Reason", f"later {number}")
            writing = asyncio.create_task(events.run())
            await until(lambda: written == {"noisy": OBJECT_BURST + 1, "quiet": 1})
            writing.cancel()
            await asyncio.wait([writing])

    asyncio.run(main())
