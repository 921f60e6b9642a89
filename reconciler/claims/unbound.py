"""Unbound pods that may be bound to a node any moment, because an extender has answered it.

                 seen unbound                   its scheduler says: no node will do        gates
    (unknown) ---------------> may be answered -----------------------------------> refused then    (ignored)
                                     ^                                                    |
                                     +------- says so no longer: being tried again -------+

The extenders' answers are not known here, so every unbound pod counts, with three exceptions:

- A pod with scheduling gates has never been looked at.
- A pod that was refused had no node in flight at that moment. It may have been answered one since; but an answer rests
  on a claim that was written at most half a linger before (the reply rule). So a refusal that came a whole linger after
  a claim last changed proves that the pod does not go by that claim. When it came is known up to `lag`: a watch that is
  further behind is not decided by.
- A pod that asks for what the node was given up for (`ate.dev/kvm`) was never answered that node.

So a placeholder that waits on a full cluster, as it should, keeps no claim that is older than its last refusal.
"""

import time
from collections.abc import Callable, Collection, Iterator
from math import inf

from ateplace.cluster.records import PodRecord
from ateplace.cluster.resources import Amounts
from ateplace.cluster.state import Pool


class Unbound:
    """`changed` gets every change of an ateom or a placeholder. Loop-confined; an entry per unbound pod."""

    def __init__(self, lag: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lag = lag
        self._clock = clock
        self._pods: dict[str, dict[str, tuple[PodRecord, float]]] = {}
        """By pool (its UID, or namespace and name where a pod has no UID label), then by pod UID: the pod, and when it
        was last refused, at the earliest; -inf while that is not what its scheduler says."""

    def changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        before = -inf
        if old:
            pods = self._pods.get(_key(old), {})
            _, before = pods.pop(old.uid, (old, -inf))
            if not pods:
                self._pods.pop(_key(old), None)
        if new is None or new.node or new.finished or new.gated:
            return
        if not (old and old.uid == new.uid and old.refused and new.refused):
            before = self._clock() - self._lag if new.refused else -inf
        self._pods.setdefault(_key(new), {})[new.uid] = new, before

    def refused(self, pod_uid: str, pool_key: str) -> float:
        """When the pod was last refused, at the earliest; -inf when it was not."""
        return self._pods.get(pool_key, {}).get(pod_uid, (None, -inf))[1]

    def may_bind(self, pool: Pool, until: float, never: Collection[str] = ()) -> bool:
        """Whether a pod of the pool that would hold a claim may have been answered a node by a claim that no
        extender has answered by after that moment. `never`: resources that the node does not have."""
        return any(
            at <= until and not (never and asks_for(pod.shape.requests, never))
            for pod, at in self._of(pool)
            if pool.warm or not pod.placeholder
        )

    def waiting(self, pool_uid: str) -> Iterator[PodRecord]:
        """Unbound pods that carry this pool's UID."""
        for pod, _ in self._pods.get(pool_uid, {}).values():
            yield pod

    def _of(self, pool: Pool) -> Iterator[tuple[PodRecord, float]]:
        record = pool.record
        for pod, at in self._pods.get(pool.uid, {}).values():
            if record is None or pod.namespace == record.namespace:
                yield pod, at
        if record:
            yield from self._pods.get(f"{record.namespace}/{record.name}", {}).values()


def asks_for(requests: Amounts, names: Collection[str]) -> bool:
    return any(name in names for name, _ in requests)


def _key(pod: PodRecord) -> str:
    return pod.pool_uid or f"{pod.namespace}/{pod.pool}"
