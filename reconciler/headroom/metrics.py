"""What headroom is good for, in numbers: seen by the leader, from the pods themselves.

The leader looks at every change of an ateom or a placeholder that the view's watches show. From these it tells a
placeholder that was preempted (the scheduler says so on the pod before deleting it) from one that was merely deleted,
and an ateom that found atelet Ready on its node from one that had to wait.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec.structs import asdict
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import PodRecord
from ateplace.cluster.refills import PREEMPTED, SECONDS, Refills
from ateplace.process import metrics
from ateplace.reconciler.headroom.warm_slots import warm_slots

STARTS: Final = metrics.counter(
    "ateom_starts_total",
    "Ateoms bound: warm, with atelet Ready on their node at that moment, or cold.",
    ["pool", "start"],
)
WAITED: Final = metrics.histogram(
    "ateom_wait_seconds", "Time that ateoms waited for atelet in their init container.", SECONDS
)


class ByPool(Collector):
    """A gauge by pool and state that is counted when it is scraped, while some `Workers` run."""

    def __init__(self, name: str, words: str) -> None:
        self._name = name
        self._words = words
        self.counts: Callable[[], Mapping[str, Mapping[str, int]]] = dict
        metrics.REGISTRY.register(self)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield self._family()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = self._family()
        for pool, counts in self.counts().items():
            for state, count in counts.items():
                family.add_metric([pool, state], count)
        yield family

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(metrics.PREFIX + self._name, self._words, labels=["pool", "state"])


PLACEHOLDERS: Final = ByPool("placeholders", "Placeholders by pool: wanted, running (they hold room) and pending.")
WARM_SLOTS: Final = ByPool(
    "warm_slots",
    "Room for a pool's ateoms: used by those that are on nodes; free, or kept by its placeholders, on nodes that it "
    "has claimed and whose atelet is Ready. Pods of others are not counted: free is the most there can be.",
)


class Workers:
    """`changed` gets every change; it counts while `run` runs. `wanted` is the headroom's own map of what should be
    there, `placeholders` what is."""

    def __init__(
        self,
        ledger: Ledger,
        wanted: Mapping[str, tuple[str, int]],
        placeholders: Mapping[str, PodRecord],
        clock: Callable[[], float] = time.monotonic,
        *,
        ateoms_per_node: int = 0,
    ) -> None:
        self._ledger = ledger
        self._ateoms_per_node = ateoms_per_node
        self._wanted = wanted
        self._placeholders = placeholders
        self._refills = Refills(clock)
        self._counting = False
        ledger.subscribe(pool=self._pool_changed)

    async def run(self) -> None:
        """Until cancelled."""
        self._counting, PLACEHOLDERS.counts, WARM_SLOTS.counts = True, self.counts, self.slots
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._counting, PLACEHOLDERS.counts, WARM_SLOTS.counts = False, dict, dict
            self._refills.clear()

    def counts(self) -> dict[str, Counter[str]]:
        """By pool: placeholders wanted, running (on a node) and pending."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for pool, count in self._wanted.values():
            found[pool].update(wanted=count, running=0, pending=0)
        for one in self._placeholders.values():
            if one.pool_uid and not one.finished:
                found[_shown(one)]["running" if one.node else "pending"] += 1
        return found

    def slots(self) -> dict[str, dict[str, int]]:
        """By pool: room that is used, free, or a placeholder's."""
        return {pool: asdict(slots) for pool, slots in warm_slots(self._ledger, self._ateoms_per_node).items()}

    def changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        """One pod, before and after; what has finished, lacks our UID label or has lost its pool is as good as gone."""
        if not self._counting:
            return
        old, new = self._counted(old), self._counted(new)
        if old and (new is None or new.uid != old.uid):
            if old.preempted:
                self._refills.owe(old.pool_uid, _shown(old))
            old = None
        if new is None:
            return
        if new.placeholder and new.node and not (old and old.node):
            _, wanted = self._wanted.get(new.pool_uid, ("", 0))
            self._refills.paid(new.pool_uid, wanted)
        if not new.placeholder and new.node and not (old and old.node):
            node = self._ledger.nodes.get(new.node)
            STARTS.labels(_shown(new), "warm" if node and node.atelet_ready else "cold").inc()
        if new.waited is not None and (old is None or old.waited is None):
            WAITED.observe(new.waited)

    def _counted(self, pod: PodRecord | None) -> PodRecord | None:
        """Nothing would ever take away what is counted for a pool that is gone."""
        return pod if pod and not pod.finished and self._known(pod.pool_uid) else None

    def _known(self, pool_uid: str) -> bool:
        pool = self._ledger.pools.get(pool_uid)
        return pool is not None and pool.record is not None

    def _pool_changed(self, pool_uid: str) -> None:
        if not self._known(pool_uid):
            self._refills.forget(pool_uid)


def forget(pool: str) -> None:
    """The pool is gone, and so is what was counted for it."""
    PREEMPTED.remove(pool)
    for start in ("warm", "cold"):
        STARTS.remove(pool, start)


def _shown(pod: PodRecord) -> str:
    """Its pool, as people call it."""
    return f"{pod.namespace}/{pod.pool}"
