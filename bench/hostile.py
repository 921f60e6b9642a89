"""What hostile tenants and strangers cost others: memory of each role, and an innocent pool's times beside them.

    make bench-hostile                                  10,000 odd pods, 100 fat ones, 600 connections, 24 pools
    make bench-hostile ARGS="--odd 500 --fat 5"         (a 0 leaves a part out)

Everything is installed as shipped, on a real API server. Measured alone, and then beside each attack: creations of
ateoms through the webhook (dry runs, one after another), a burst of ateoms from created to bound, how long a new pool
waits for its finalizer and its end, and how long, beside the linger, until the node of a deleted ateom is released:
medians, and the 99th percentile of creations and of placements. An attack may cost a role less than 20 MiB; odd pods,
each of which is remembered, 2 KiB each beside that. It may not take an innocent pool more than twice as long; what is
less than `NOISE` longer (twice that for a percentile) is not told from chance on two cores. Ends with a line of JSON,
and with 1 when a target was missed.
"""

import argparse
import contextlib
import itertools
import json
import ssl
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ateplace import names
from ateplace.local import ApiError, ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.pods import Installation
from ateplace.local.progress import say
from ateplace.local.scene import OVERLAY
from ateplace.local.strangers import Strangers, pods_that_stay, review
from bench.headroom import lives
from bench.odd_pods import POOL, OddPods
from bench.recorder import Recorder

INNOCENT, HOSTILE = "innocent", "hostile"
ROLES: Final = ("webhook", "extender", "reconciler")
MOST_MIB: Final = 20.0
ODD_KIB: Final = 2.0
RATIO: Final = 2.0
NOISE: Final = 0.1
"""Seconds."""
LINGER: Final = 3.0
"""Seconds; short, because each measure of a release waits for it."""
CREATIONS, BURST, POOLS = 100, 50, 5
RESOURCES: Final = 20_000
"""Of a fat pod: about as many as one object holds."""

Times = dict[str, float]


class Bench:
    def __init__(self, plane: ControlPlane, installed: Installation) -> None:
        self.plane = plane
        self.installed = installed
        self._number = itertools.count()
        for namespace in (INNOCENT, HOSTILE):
            plane.api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
            account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
            plane.wait(lambda account=account: plane.api.exists(account), why="a ServiceAccount")  # type: ignore[misc]
        substrate.pool(plane, INNOCENT, "web")
        substrate.pool(plane, HOSTILE, POOL)

    # The innocent.

    def memory(self) -> dict[str, float]:
        """MiB of each role."""
        pids = {role: self.plane.pid(f"ateplace-{role}") for role in ROLES}
        pages = {role: int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) for role, pid in pids.items()}
        return {role: found * 4096 / 2**20 for role, found in pages.items()}

    def times(self) -> Times:
        """In seconds: medians, and P99 of what is measured often."""
        created = sorted(self._create() for _ in range(CREATIONS))
        placed = sorted(self._burst() + self._burst())
        pools = [self._pool() for _ in range(POOLS)]
        return {
            "admission": statistics.median(created),
            "admission_p99": _p99(created),
            "placement": statistics.median(placed),
            "placement_p99": _p99(placed),
            "finalizer": statistics.median(each[0] for each in pools),
            "deletion": statistics.median(each[1] for each in pools),
            "release": self._release(),
        }

    def _ateom(self) -> Object:
        requests = {"resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
        container = {"name": "ateom", "image": "registry.example/ateom:1", **requests}
        meta = {"generateName": "web-", "labels": {names.POOL_LABEL: "web"}}
        return {"metadata": meta, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}

    def _create(self) -> float:
        begun = time.perf_counter()
        self.plane.api.post(f"/api/v1/namespaces/{INNOCENT}/pods", self._ateom(), dryRun="All")
        return time.perf_counter() - begun

    def _burst(self) -> list[float]:
        """From created to bound, of each ateom of a burst."""
        path = f"/api/v1/namespaces/{INNOCENT}/pods"
        with Recorder(self.plane, path) as pods:
            for _ in range(BURST):
                self.plane.api.post(path, self._ateom())
            self.plane.wait(
                lambda: len(self.plane.api.list(path, fieldSelector="spec.nodeName!=")) == BURST,
                timeout=120,
                why="the burst to be bound",
            )
            pods.reach_present()
        created, bound = lives(pods.events(), names.POOL_LABEL)
        self.plane.api.delete(path, {"gracePeriodSeconds": 0})
        self.plane.wait(lambda: not self.plane.api.list(path), timeout=60, why="the burst to go")
        return [at - created[uid] for uid, (at, _) in bound.items()]

    def _pool(self) -> tuple[float, float]:
        """Until a new pool has its finalizer, and until it is gone after its deletion."""
        name = f"pool-{next(self._number)}"
        path = f"/apis/ate.dev/v1alpha1/namespaces/{INNOCENT}/workerpools/{name}"
        begun = time.perf_counter()
        substrate.pool(self.plane, INNOCENT, name)
        self.plane.wait(
            lambda: names.FINALIZER in self.plane.api.get(path)["metadata"].get("finalizers", ()),
            timeout=60,
            every=0.01,
            why="the finalizer",
        )
        held = time.perf_counter()
        substrate.delete(self.plane, INNOCENT, name)
        self.plane.wait(lambda: not self.plane.api.exists(path), timeout=60, every=0.01, why="the pool to go")
        return held - begun, time.perf_counter() - held

    def _release(self) -> float:
        """From an ateom's deletion until its node has no claim of its pool, without the linger: the median over some
        pools of one ateom each, which are deleted at the same time."""
        pods = f"/api/v1/namespaces/{INNOCENT}/pods"
        keys: dict[str, str] = {}
        for _ in range(POOLS):
            name = f"pool-{next(self._number)}"
            uid = substrate.pool(self.plane, INNOCENT, name)["metadata"]["uid"]
            ateom = self._ateom()
            ateom["metadata"]["labels"] = {names.POOL_LABEL: name}
            self.plane.api.post(pods, ateom)
            keys[names.claim_key(uid)] = name
        self.plane.wait(
            lambda: len(self.plane.api.list(pods, fieldSelector="spec.nodeName!=")) == POOLS,
            timeout=60,
            why="an ateom of each pool to be bound",
        )
        ended = time.perf_counter()
        self.plane.api.delete(pods, {"gracePeriodSeconds": 0})
        released: dict[str, float] = {}

        def look() -> bool:
            claims = {key for node in self.plane.api.list("/api/v1/nodes") for key in node["metadata"]["annotations"]}
            now = time.perf_counter()
            for key in keys.keys() - claims:
                released.setdefault(key, max(0.0, now - ended - LINGER))
            return len(released) == POOLS

        self.plane.wait(look, timeout=LINGER + 60, every=0.02, why="the claims to be released")
        for name in keys.values():
            substrate.delete(self.plane, INNOCENT, name)
        return statistics.median(released.values())

    # The attacks: each is under way while its block runs.

    @contextlib.contextmanager
    def odd(self, count: int, node: str) -> Iterator[None]:
        made, refused = OddPods(1, node), 0
        path = f"/api/v1/namespaces/{HOSTILE}/pods"

        def create(number: int) -> int:
            try:
                pod = self.plane.api.post(path, bodies[number])
                if number % 50 == 0:
                    self.plane.api.patch(f"{path}/{pod['metadata']['name']}/status", made.status())
            except ApiError as error:
                if error.status not in {400, 403, 422}:
                    raise
                return 1
            return 0

        bodies = [made.pod() for _ in range(count)]
        with ThreadPoolExecutor(8) as workers:
            refused = sum(workers.map(create, range(count)))
        say(f"{count - refused} odd pods created, {refused} refused by the API server")
        if refused > count // 10:
            raise SystemExit("most odd pods should be such as an API server accepts")
        yield

    @contextlib.contextmanager
    def fat(self, count: int) -> Iterator[None]:
        for index in range(count):
            asked = {f"p{index:03}.example.com/r{number}": "1" for number in range(RESOURCES)}
            meta = {"name": f"fat-{index}", "labels": {names.PLACEHOLDER_LABEL: "fat"}}
            container = {"name": "c", "image": "registry.example/c:1", "resources": {"limits": asked}}
            spec = {"schedulerName": "nobody", "containers": [container]}
            self.plane.api.post(f"/api/v1/namespaces/{HOSTILE}/pods", {"metadata": meta, "spec": spec})
        yield

    @contextlib.contextmanager
    def strangers(self, count: int) -> Iterator[None]:
        """Connections to the webhook that ask about pools which they invent."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        numbers = itertools.count()
        webhook = self.installed.pods["webhook"]
        with Strangers(8443, count, lambda: review(f"p{next(numbers)}"), tls=context, host=webhook.address) as there:
            self.plane.wait(lambda: there.answers > count, timeout=60, why="the strangers to be served")
            yield

    @contextlib.contextmanager
    def pools(self, count: int) -> Iterator[None]:
        """Pools that are being deleted, with pods that stay and whose owners are odd."""
        for number in range(count):
            uid = substrate.pool(self.plane, HOSTILE, f"p{number}")["metadata"]["uid"]
            pods_that_stay(self.plane, HOSTILE, f"p{number}", uid, 10)
        for number in range(count):
            substrate.delete(self.plane, HOSTILE, f"p{number}")
        yield


def _p99(ordered: list[float]) -> float:
    return ordered[len(ordered) * 99 // 100 - 1]


def _is_slow(what: str, alone: float, during: float) -> bool:
    noise = 2 * NOISE if what.endswith("p99") else NOISE
    return during > max(RATIO * alone, alone + noise)


def bench(options: argparse.Namespace) -> tuple[dict[str, object], list[str]]:
    figures: dict[str, object] = {}
    missed: list[str] = []
    with ControlPlane(nodes=4) as plane:
        substrate.install(plane)
        (theirs,) = plane.add_nodes(1, prefix="theirs")
        plane.api.patch(f"/api/v1/nodes/{theirs}", {"spec": {"unschedulable": True}})
        installed = Installation(plane, OVERLAY, reconciler__linger=LINGER)
        installed.start()
        this = Bench(plane, installed)
        this.times()  # what is done for the first time is no measure
        alone = this.times()
        say(f"alone: {_shown(alone)}; {_memory(this.memory())}")
        figures["alone"] = _milliseconds(alone)
        attacks: dict[str, Callable[[int], contextlib.AbstractContextManager[None]]] = {
            "strangers": this.strangers,
            "pools": this.pools,
            "odd": lambda count: this.odd(count, theirs),
            "fat": this.fat,
        }
        for name, attack in attacks.items():
            count = getattr(options, name)
            if not count:
                continue
            before = this.memory()
            with attack(count):
                during = this.times()
                after = this.memory()
            grown = {role: after[role] - before[role] for role in ROLES}
            say(f"{count} {name}: {_shown(during)}; grown by {_memory(grown)}")
            figures[name] = {"count": count, "ms": _milliseconds(during), "grown_mib": _rounded(grown)}
            allowed = MOST_MIB + (count * ODD_KIB / 1024 if name == "odd" else 0)
            missed += [f"{name}: memory of {role}" for role in ROLES if grown[role] >= allowed]
            missed += [f"{name}: {what}" for what in alone if _is_slow(what, alone[what], during[what])]
            figures[name]["ratio"] = _rounded({what: during[what] / max(alone[what], 1e-3) for what in alone})  # type: ignore[index]
        for role in ROLES:
            if plane.keeper.exit_code(f"ateplace-{role}") is not None:
                missed.append(f"{role} has ended")
    return figures, missed


def _rounded(found: dict[str, float]) -> dict[str, float]:
    return {name: round(each, 1) for name, each in found.items()}


def _milliseconds(found: Times) -> dict[str, int]:
    return {name: round(1000 * each) for name, each in found.items()}


def _shown(found: Times) -> str:
    return ", ".join(f"{name} {each} ms" for name, each in _milliseconds(found).items())


def _memory(found: dict[str, float]) -> str:
    return ", ".join(f"{role} {each:.0f} MiB" for role, each in found.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--odd", type=int, default=10_000, help="odd pods")
    parser.add_argument("--fat", type=int, default=100, help="pods with as many resources as one object holds")
    parser.add_argument("--strangers", type=int, default=600, help="connections to the webhook")
    parser.add_argument("--pools", type=int, default=24, help="hostile pools that are being deleted")
    figures, missed = bench(parser.parse_args())
    print(json.dumps({**figures, "missed": missed, "ok": not missed}))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
