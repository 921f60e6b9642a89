"""What a cluster costs a role's process, small and quick; `make bench-scale` and `make reproduce-oom` measure more."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from ateplace import names
from tests.unit.kube_server import Answer, Request, kubeconfig, serving
from tests.unit.watch_server import END

MIB = 2**20
PEAK = 80 * MIB
PER_ATEOM = 1024
PER_OTHER = 32
"""The contract says 0: what is left is the allocator's noise."""

CHILD = """
import asyncio, contextlib, gc, sys
gc.disable()
import ateplace.extender.app, reconciler.app
from ateplace.cluster.feed import View
from ateplace.process import runtime
from ateplace.settings import load

def kernel(file, field):
    with open(f"/proc/self/{file}") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))

async def obey(view):
    while line := await asyncio.to_thread(sys.stdin.readline):
        while len(view.ateoms.store) != int(line):
            await asyncio.sleep(0.01)
        gc.collect()
        print(kernel("status", "VmRSS") * 1024, kernel("status", "VmHWM") * 1024, kernel("io", "rchar"), flush=True)

@contextlib.asynccontextmanager
async def role(process):
    process.spawn(obey(View.of(process)), "orders")
    yield

sys.exit(runtime.run(load(flags=sys.argv[1:]).settings, {"view": role}))
"""
"""Everything that extender and reconciler import and know of a cluster. It answers a number of ateoms, when it knows of
so many, with its memory, the most that it has been, and the bytes that it has read."""


class Taken(NamedTuple):
    memory: int
    peak: int
    read: int


class Api:
    """Pods, sent to every watch whose selector they match, as an API server does."""

    def __init__(self) -> None:
        self.pods: list[Any] = []
        self._news = asyncio.Event()

    def add(self, count: int, *, ateom: bool) -> None:
        for _ in range(count):
            number = len(self.pods) + 1
            labels = {names.POOL_LABEL: "pool", names.POOL_UID_LABEL: "uid-of-the-pool"} if ateom else {"app": "other"}
            meta = {"name": f"pod-{number}", "namespace": "team", "uid": f"uid-{number}", "labels": labels}
            env = [{"name": f"SETTING_{each}", "value": "x" * 40} for each in range(12)]
            resources = {"requests": {"cpu": "10m", "memory": "10Mi"}}
            container = {"name": "c", "image": "registry.example/c:1", "env": env, "resources": resources}
            spec = {"nodeName": f"node-{number % 200}", "containers": [container]}
            self.pods.append({"metadata": {**meta, "resourceVersion": str(number)}, "spec": spec})
        self._news.set()
        self._news = asyncio.Event()

    async def __call__(self, request: Request, answer: Answer) -> None:
        if "watch" not in request.query:
            await answer.reply(200, {"metadata": {"resourceVersion": "1"}, "items": []})
            return
        await answer.begin()
        sent = await self._send(request, answer, 0)
        version = str(max(1, sent))
        await answer.event("BOOKMARK", {"metadata": {"resourceVersion": version, "annotations": END}})
        while True:
            news = self._news
            sent = await self._send(request, answer, sent)
            await news.wait()

    async def _send(self, request: Request, answer: Answer, sent: int) -> int:
        if request.path == "/api/v1/pods":
            wanted = request.query.get("labelSelector")
            lines = [
                json.dumps({"type": "ADDED", "object": pod}).encode() + b"\n"
                for pod in self.pods[sent:]
                if wanted is None or wanted in pod["metadata"]["labels"]
            ]
            for start in range(0, len(lines), 100):
                await answer.chunk(b"".join(lines[start : start + 100]))
        return len(self.pods)


async def measured(directory: Path) -> tuple[Taken, Taken, Taken]:
    """With 2,000 ateoms; with 8,000 other pods and one ateom more; with 8,000 ateoms more."""
    api = Api()
    api.add(2000, ateom=True)
    async with serving(api) as server:
        config = kubeconfig(directory, server.url, token="t")
        flags = (f"cluster.kubeconfig={config}", "serve.host=127.0.0.1", "serve.health_port=0", "log.level=error")
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, *flags, stdin=pipe, stdout=pipe)
        assert child.stdin is not None and child.stdout is not None
        try:

            async def taken(ateoms: int) -> Taken:
                assert child.stdin is not None and child.stdout is not None
                child.stdin.write(b"%d\n" % ateoms)
                async with asyncio.timeout(60):
                    return Taken(*map(int, (await child.stdout.readline()).split()))

            first = await taken(2000)
            api.add(8000, ateom=False)
            api.add(1, ateom=True)  # once this one is there, so would the others be
            others = await taken(2001)
            api.add(8000, ateom=True)
            return first, others, await taken(10_001)
        finally:
            child.kill()
            await child.wait()


def test_memory_is_bounded_by_ateoms_and_other_pods_cost_nothing(tmp_path: Path) -> None:
    first, others, more = asyncio.run(measured(tmp_path))
    figures = (
        f"{first.peak / MIB:.1f} MiB with 2,000 ateoms, {(more.memory - others.memory) / 8000:.0f} bytes for each more"
    )
    print(figures, f"{(others.memory - first.memory) / 8000:.1f} for another pod")
    assert first.peak <= PEAK, figures
    assert more.memory - others.memory <= PER_ATEOM * 8000, figures
    assert more.read - others.read > 8000 * 500, "the ateoms came over the wire"
    assert others.memory - first.memory <= PER_OTHER * 8000
    assert others.read - first.read < 8000, "less than a byte was read for another pod"
