"""Picks in flight, and the unbound pods that have none.

The life of one pick (one unbound pod that was answered with a node):

      assume -----> counted against the node's room and its pool's pending pods
        |   pod_seen bound, here or elsewhere ....... the pod itself counts from now on
        |   pod_gone, or pod_seen finished .......... dropped
        |   forget .................................. dropped (we could not answer after all)
        |   failed .................................. dropped; the node is remembered as the last choice for this pod
        +-- EXPIRY seconds later .................... dropped (the scheduler gives up binding after 600 s); sooner
                                                      (UNSEEN) if the watch has never shown the pod: it may be gone

An unbound pod without a pick is unpicked: another process may have answered it. Unless it is a placeholder, or was
refused all nodes lately, its pool expects a node for it (`Pool.pending`). A pod with scheduling gates is neither: no
scheduler looks at it.
"""

from math import inf
from typing import Final

from ateplace.cluster.expiring import Expiring
from ateplace.cluster.ownership import Ownership
from ateplace.cluster.records import PodRecord
from ateplace.cluster.resources import Shape
from ateplace.cluster.state import Attempt, Node
from ateplace.cluster.tables import Tables

EXPIRY: Final = 600.0
UNSEEN: Final = 60.0
REFUSED: Final = 300.0
"""The scheduler itself tries a refused pod again after five minutes, whatever happens."""
AVOIDED: Final = 8
"""How many nodes that failed a pod are remembered for it."""


class Picks:
    def __init__(self, tables: Tables, owners: Ownership) -> None:
        self.attempts: dict[str, Attempt] = {}
        """By pod UID, oldest first."""
        self.unpicked = Node("")
        """What unbound pods without a pick of ours count for: another process may have answered any of them."""
        self._tables = tables
        self._pods = tables.pods
        self._owners = owners
        self._unseen: Expiring[str, None] = Expiring(UNSEEN)
        """Pods that were picked a node and that the watch has not shown."""
        self._next_look = -inf
        self._refused: Expiring[str, None] = Expiring(REFUSED)
        """Unbound pods that were refused all nodes."""
        self.nominated = 0
        """Picks that no scheduler has asked about yet."""

    # What we did.

    def assume(
        self,
        pod_uid: str,
        pool_uid: str,
        name: str,
        shape: Shape,
        *,
        placeholder: bool = False,
        version: str = "",
        nominated: bool = False,
        now: float,
    ) -> None:
        """Count this pod on that node until the watch knows better. A pod has one pick at most. `nominated`: its
        scheduler is told before it asks."""
        self.expire(now)
        self._unseen.pop(pod_uid)
        attempt = self.attempts.pop(pod_uid, None)
        if attempt:
            self._uncount(pod_uid, attempt)
        pod = self._pods.get(pod_uid)
        if pod and pod.node:
            return
        tables = self._tables
        tables.generation += 1
        avoid = attempt.avoid if attempt else ()
        attempt = Attempt(pool_uid, name, shape, placeholder, version, now, avoid, nominated)
        self.nominated += nominated
        self.attempts[pod_uid] = attempt
        node = tables.node(name)
        there = tables.pool_on_node(node, pool_uid)
        there.picks += 1
        there.placeholder_picks += placeholder
        tables.pools[pool_uid].picks += 1
        node.load(shape, placeholder=placeholder, times=1)
        if pod:
            if pod_uid in self._refused:
                self._refused.pop(pod_uid)
                self._expect(pod_uid)
            self._count_unpicked(pod, -1)
            self.expect(pod, self._owners.owner(pod), -1)
        else:
            self._unseen.put(pod_uid, None, now)

    def note_refusal(self, pod_uid: str, now: float) -> None:
        """The pod was refused all nodes: nothing need be opened for it until something changes."""
        pod = self._pods.get(pod_uid)
        if pod and self.is_unpicked(pod_uid):
            if pod_uid not in self._refused:
                self.expect(pod, self._owners.owner(pod), -1)
            self._refused.put(pod_uid, None, now)

    def expire(self, now: float) -> None:
        """Drop the picks that no call or watch has confirmed for too long, and what was read long ago. Costs a look at
        the oldest, once a second."""
        if now < self._next_look:
            return
        self._next_look = now + 1.0
        self.expect_refused(now)
        self._tables.forget_readings(now)
        for pod_uid, _ in self._unseen.expire(now):
            self.drop(pod_uid)
        while self.attempts:
            pod_uid, oldest = next(iter(self.attempts.items()))
            if now - oldest.at < EXPIRY:
                return
            self.drop(pod_uid)

    def forget(self, pod_uid: str) -> None:
        """The pick was not answered after all."""
        attempt = self.attempts.get(pod_uid)
        if attempt and attempt.avoid:
            self._uncount(pod_uid, attempt)
            attempt.node = ""
        elif attempt:
            self.drop(pod_uid)

    def failed(self, pod_uid: str) -> None:
        """The pod came back unbound: its last node did not work out and becomes its last choice."""
        attempt = self.attempts.get(pod_uid)
        if attempt and attempt.node:
            attempt.avoid = (*(name for name in attempt.avoid if name != attempt.node), attempt.node)[-AVOIDED:]
            self._uncount(pod_uid, attempt)
            attempt.node = ""

    # What the watches show.

    def drop(self, pod_uid: str) -> None:
        """Whatever became of the pod, its pick is over."""
        attempt = self.attempts.pop(pod_uid, None)
        if attempt:
            self._unseen.pop(pod_uid)
            self._uncount(pod_uid, attempt)

    def file(self, pod: PodRecord) -> None:
        """An unbound pod is filed: it is there, so that its pick may last as long as the scheduler waits."""
        self._unseen.pop(pod.uid)
        if not self.picked(pod.uid):
            self._count_unpicked(pod, 1)

    def unfile(self, pod: PodRecord) -> None:
        """An unbound pod is filed no longer, or will be as another: whatever it was refused for is forgotten."""
        self._refused.pop(pod.uid)
        if not self.picked(pod.uid):
            self._count_unpicked(pod, -1)

    def expect(self, pod: PodRecord, pool_uid: str, times: int) -> None:
        """Count an unbound pod without a pick among those that nodes are opened for, or no longer."""
        if pool_uid and not pod.placeholder and not pod.gated and pod.uid not in self._refused:
            waiting = self._tables.pools[pool_uid].waiting
            if times > 0:
                waiting[pod.uid] = None
            else:
                waiting.pop(pod.uid, None)

    def expect_refused(self, now: float) -> None:
        """Those that were refused long enough ago are expected again."""
        for pod_uid, _ in self._refused.expire(now):
            self._expect(pod_uid)

    # Questions.

    def picked(self, pod_uid: str) -> bool:
        """Whether the pod has a pick in flight."""
        attempt = self.attempts.get(pod_uid)
        return attempt is not None and bool(attempt.node)

    def is_unpicked(self, pod_uid: str) -> bool:
        """Whether the pod is one of those that `unpicked` counts."""
        pod = self._pods.get(pod_uid)
        return pod is not None and not (pod.node or pod.gated) and not self.picked(pod_uid)

    def in_flight(self) -> int:
        """How many pods have a pick: attempts that failed have none."""
        return sum(pool.picks for pool in self._tables.pools.values())

    def refused_alike(self, pool_uid: str, shape: Shape, *, placeholder: bool) -> bool:
        """Whether such a pod of the pool was refused all nodes lately. Linear in the pods that were."""
        refused = (self._pods[uid] for uid in self._refused)
        return any(
            pod.shape == shape and pod.placeholder is placeholder and self._owners.owner(pod) == pool_uid
            for pod in refused
        )

    # Inside.

    def _uncount(self, pod_uid: str, attempt: Attempt) -> None:
        if not attempt.node:
            return
        tables = self._tables
        tables.generation += 1
        self.nominated -= attempt.nominated
        attempt.nominated = False
        pod = self._pods.get(pod_uid)
        if pod and not pod.node:
            self._count_unpicked(pod, 1)
            self.expect(pod, self._owners.owner(pod), 1)
        node = tables.nodes[attempt.node]
        pool = tables.pools[attempt.pool]
        there = node.pools[attempt.pool]
        there.picks -= 1
        there.placeholder_picks -= attempt.placeholder
        pool.picks -= 1
        node.load(attempt.shape, placeholder=attempt.placeholder, times=-1)
        tables.drop_pool_on_node(node, attempt.pool, there)
        tables.drop_pool(pool)
        tables.drop_node(node)

    def _count_unpicked(self, pod: PodRecord, times: int) -> None:
        if not pod.gated:
            self.unpicked.load(pod.shape, placeholder=pod.placeholder, times=times)

    def _expect(self, pod_uid: str) -> None:
        pod = self._pods[pod_uid]
        self.expect(pod, self._owners.owner(pod), 1)
