"""Where CPU time goes in a burst: flame pictures of scheduler, API server and extender, with the stock scheduler's.

    make bench-profile                                    1,000 and 5,000 nodes; draws docs/images/flame-*.svg
    make bench-profile ARGS="--nodes 1000 --pods 300"

The kinds of bursts, each cold:

    stock       kube-scheduler's default profile
    extender    our scheduler and extender
    before      the same, with a scheduler whose runtime collects garbage as often as Go's does by itself

The profiles are those that Go's runtime and the extender's debugging port take, while pods are created and bound. The
last line is JSON: each process's milliseconds of CPU a pod, and the share of its samples that has such a function on
its stack.
"""

import argparse
import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx

from ateplace.local import pki
from ateplace.local.api import Object
from ateplace.local.kubeconfig import connect
from ateplace.local.ports import Reservations
from ateplace.local.scheduling import environment
from bench import flame, pprof
from bench.load import SMALL, STOCK, Bench, stage
from bench.recorder import cpu_seconds

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SAID = {"stock": "stock scheduler", "extender": "ateplace", "before": "ateplace with Go's own garbage collection"}
SHOWN = {
    "stock": ("scheduler", "API server"),
    "extender": ("scheduler", "API server", "extender"),
    "before": ("scheduler",),
}
"""Which processes' pictures are drawn of each kind."""
SECONDS = 12
"""How long a profile is taken: longer than the pods need to be bound."""
LINE = re.compile(r":\d+\)$")
PLUMBING = re.compile(
    r"^net/http\.|^k8s\.io/apiserver/pkg/(server/filters|server\.DefaultBuildHandlerChain|endpoints/filters|util/flowcontrol)"
    r"|^k8s\.io/apiserver/pkg/endpoints/filterlatency|^go\.opentelemetry\.io|^k8s\.io/apimachinery/pkg/util/wait\."
    r"|^golang\.org/x/net/http2\."
)
"""Functions that only pass a call on, twenty deep in the API server: they are left out, not what they call."""
WHERE: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "scheduler": {
        "looks at nodes": ("findNodesThatPassFilters",),
        "calls us": ("findNodesThatPassExtenders",),
        "scores": ("prioritizeNodes",),
        "binds": ("bindingCycle",),
        "copies its cache": ("UpdateSnapshot",),
        "watches": ("processorListener", "Reflector"),
        "collects garbage": ("gcBgMarkWorker", "gcAssistAlloc", "bgsweep"),
    },
    "API server": {
        "creates": ("handlers.CreateResource", "createHandler"),
        "patches": ("handlers.PatchResource",),
        "lists and gets": ("handlers.ListResource", "handlers.GetResource"),
        "sends watches": ("handlers.serveWatch", "WatchServer"),
        "updates its caches": ("cacher.(*Cacher)", "watch_cache"),
        "collects garbage": ("gcBgMarkWorker", "gcAssistAlloc", "bgsweep"),
    },
    "extender": {
        "answers calls": ("filter/", "http_server", "served.py"),
        "follows watches": ("kube/watch", "cluster/feed"),
        "writes claims": ("claim_writer", "claims.py"),
    },
}
"""What is told of each process: functions with one of these words in their name, and what they call."""


class Profiled(Bench):
    """Takes profiles while pods are created and bound."""

    ports: Mapping[str, int]
    profiled = STOCK
    taken: Mapping[str, Future[Counter[pprof.Stack]]]
    cpu: Mapping[str, float]
    """Milliseconds a pod."""

    async def create(
        self, namespace: str, pods: list[Object], patches: int, labels: dict[str, str], rate: float
    ) -> dict[str, float]:
        ours = self.profiled != STOCK
        processes = {"scheduler": f"scheduler-{self.rig.name if ours else STOCK}", "API server": "kube-apiserver"}
        pids = {name: self.plane.pid(process) for name, process in processes.items()}
        pids["extender"] = self.rig.pids[0]
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        with ThreadPoolExecutor(len(WHERE)) as pool:
            self.taken = {
                "scheduler": pool.submit(self._scheduler, self.ports[self.profiled]),
                "API server": pool.submit(self._api_server),
                "extender": pool.submit(self._extender),
            }
            sent = await super().create(namespace, pods, patches, labels, rate)
            await asyncio.gather(*map(asyncio.wrap_future, self.taken.values()))
        self.cpu = {name: 1000 * (cpu_seconds(pid) - before[name]) / len(pods) for name, pid in pids.items()}
        return sent

    def _scheduler(self, port: int) -> Counter[pprof.Stack]:
        path = f"https://127.0.0.1:{port}/debug/pprof/profile"
        answer = httpx.get(
            path,
            params={"seconds": SECONDS},
            verify=pki.client_context(self.plane.ca),
            timeout=5 * SECONDS,
            trust_env=False,
        )
        return pprof.stacks(answer.raise_for_status().content)

    def _api_server(self) -> Counter[pprof.Stack]:
        api = connect(self.plane.kubeconfig)
        try:
            with api.stream("/debug/pprof/profile", seconds=str(SECONDS)) as chunks:
                return pprof.stacks(b"".join(chunks))
        finally:
            api.close()

    def _extender(self) -> Counter[pprof.Stack]:
        path = f"http://127.0.0.1:{self.ports['debug']}/debug/cpu"
        query = {"seconds": str(SECONDS), "format": "collapsed"}
        text = httpx.get(path, params=query, timeout=5 * SECONDS, trust_env=False).raise_for_status().text
        found: Counter[pprof.Stack] = Counter()
        for line in text.splitlines():
            stack, _, count = line.rpartition(" ")
            found[tuple(LINE.sub(")", name) for name in stack.split(";"))] += int(count)
        return found


def profile(nodes: int, pods: int) -> dict[str, object]:
    """The three kinds of bursts over so many nodes."""
    reserved = Reservations()
    ports = {name: reserved.port() for name in ("debug", *SAID)}
    figures: dict[str, object] = {}
    with stage(nodes, Profiled, profiled=ports["stock"], serve__debug_port=ports["debug"]) as bench:
        plane, rig, bench.ports = bench.plane, bench.rig, ports
        for kind, said in SAID.items():
            bench.profiled = kind
            if kind != "stock":
                plane.stop_scheduler(rig.name)
                collects = environment() if kind == "extender" else {}
                plane.add_scheduler(rig.name, rig.configuration(), env=collects, profiled=ports[kind])
            as_ours = "stock" if kind == "stock" else "extender"
            bench.run(as_ours, 30, SMALL)  # connections, caches
            bench.run(as_ours, pods, SMALL)
            load = f"{pods:,} ateoms at once over {nodes:,} nodes, {said}"
            figures[kind] = {name: drawn(f"{name}: {load}", bench, name, nodes) for name in SHOWN[kind]}
    reserved.release()
    return figures


def drawn(title: str, bench: Profiled, name: str, nodes: int) -> dict[str, object]:
    """Draw one process's picture; its figures."""
    stacks, cpu = bench.taken[name].result(), bench.cpu[name]
    note = f"{cpu:.1f} ms of CPU a pod; {sum(stacks.values()):,} samples. Below a function are those that it calls."
    picture = flame.draw(title, note, flame.trimmed(flame.without(stacks, PLUMBING)))
    (IMAGES / f"flame-{name.lower().replace(' ', '-')}-{nodes}-{bench.profiled}.svg").write_text(picture)
    shares = {what: round(flame.share(stacks, *words), 2) for what, words in WHERE[name].items()}
    told: dict[str, object] = {"CPU ms a pod": round(cpu, 1), **{what: part for what, part in shares.items() if part}}
    print(f"{title}: {told}", flush=True)
    for place, part in flame.hottest(stacks, 8):
        print(f"    {part:6.1%} {place}")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--pods", type=int, default=1000)
    options = parser.parse_args()
    figures = {f"{nodes} nodes": profile(nodes, options.pods) for nodes in options.nodes}
    print(json.dumps({"bench": "profile", **figures, "ok": True}, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
