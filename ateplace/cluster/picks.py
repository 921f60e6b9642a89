"""Picks in flight, and the unbound pods that have none.

The life of one pick (one unbound pod that was answered with a node):

      assume -----> counted against the node's room and its pool's pending pods
        |   pod_seen bound, here or elsewhere ....... the pod itself counts from now on
        |   pod_gone, or pod_seen finished .......... dropped
        |   forget .................................. dropped (we could not answer after all)
        |   failed .................................. dropped; the node is remembered as the last choice for this pod
        +-- EXPIRY seconds later .................... dropped (the scheduler gives up binding after 600 s); sooner
                                                      (UNSEEN) if the watch has never shown the pod: it may be gone

An unbound pod without a pick is adrift: another process may have answered it. Unless it is a placeholder, or was
refused all nodes lately, its pool expects a node for it (`Pool.pending`). A pod with scheduling gates is neither: no
scheduler looks at it.
"""

from math import inf
from typing import Final

from ateplace.cluster.ownership import Membership
from ateplace.cluster.records import PodRecord
from ateplace.cluster.resources import Shape
from ateplace.cluster.state import Attempt, Node
from ateplace.cluster.tables import Book

EXPIRY: Final = 600.0
UNSEEN: Final = 60.0
REFUSED: Final = 300.0
"""The scheduler itself tries a refused pod again after five minutes, whatever happens."""
AVOIDED: Final = 8
"""How many nodes that failed a pod are remembered for it."""


class Picks:
    def __init__(self, book: Book, members: Membership) -> None:
        self.attempts: dict[str, Attempt] = {}
        """By pod UID, oldest first."""
        self.adrift = Node("")
        """What unbound pods without a pick of ours count for: another process may have answered any of them."""
        self._book = book
        self._pods = book.pods
        self._members = members
        self._unseen: dict[str, float] = {}
        """When pods that the watch has not shown were picked a node, oldest first."""
        self._next_look = -inf
        self._refused: dict[str, float] = {}
        """When unbound pods were last refused all nodes, oldest first."""

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
        now: float,
    ) -> None:
        """Count this pod on that node until the watch knows better. A pod has one pick at most."""
        self.expire(now)
        self._unseen.pop(pod_uid, None)
        attempt = self.attempts.pop(pod_uid, None)
        if attempt:
            self._uncount(pod_uid, attempt)
        pod = self._pods.get(pod_uid)
        if pod and pod.node:
            return
        book = self._book
        book.generation += 1
        avoid = attempt.avoid if attempt else ()
        attempt = Attempt(pool_uid, name, shape, placeholder, version, now, avoid)
        self.attempts[pod_uid] = attempt
        node = book.node(name)
        book.tenant(node, pool_uid).picks += 1
        book.pools[pool_uid].picks += 1
        node.load(shape, placeholder=placeholder, times=1)
        if pod:
            self._pardon(pod_uid)
            self._drift(pod, -1)
            self.expect(pod, self._members.owner(pod), -1)
        else:
            self._unseen[pod_uid] = now

    def refused(self, pod_uid: str, now: float) -> None:
        """The pod was refused all nodes: nothing need be opened for it until something changes."""
        pod = self._pods.get(pod_uid)
        if pod and self.is_adrift(pod_uid):
            if self._refused.pop(pod_uid, None) is None:
                self.expect(pod, self._members.owner(pod), -1)
            self._refused[pod_uid] = now

    def expire(self, now: float) -> None:
        """Drop the picks that nobody has spoken of for too long, and what was read long ago. Costs a look at the
        oldest, once a second."""
        if now < self._next_look:
            return
        self._next_look = now + 1.0
        self.forgive(now)
        self._book.unlearn(now)
        while self._unseen:
            pod_uid, at = next(iter(self._unseen.items()))
            if now - at < UNSEEN:
                break
            del self._unseen[pod_uid]
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
            self._unseen.pop(pod_uid, None)
            self._uncount(pod_uid, attempt)

    def file(self, pod: PodRecord) -> None:
        """An unbound pod is filed: it is there, so that its pick may last as long as the scheduler waits."""
        self._unseen.pop(pod.uid, None)
        if not self.picked(pod.uid):
            self._drift(pod, 1)

    def unfile(self, pod: PodRecord) -> None:
        """An unbound pod is filed no longer, or will be as another: whatever it was refused for is forgotten."""
        self._refused.pop(pod.uid, None)
        if not self.picked(pod.uid):
            self._drift(pod, -1)

    def expect(self, pod: PodRecord, pool_uid: str, times: int) -> None:
        """Count an unbound pod without a pick among those that nodes are opened for, or no longer."""
        if pool_uid and not pod.placeholder and not pod.gated and pod.uid not in self._refused:
            self._book.pools[pool_uid].pending += times

    def forgive(self, now: float) -> None:
        """Those that were refused long enough ago are expected again."""
        while self._refused:
            pod_uid, at = next(iter(self._refused.items()))
            if now - at < REFUSED:
                return
            self._pardon(pod_uid)

    # Questions.

    def picked(self, pod_uid: str) -> bool:
        """Whether the pod has a pick in flight."""
        attempt = self.attempts.get(pod_uid)
        return attempt is not None and bool(attempt.node)

    def is_adrift(self, pod_uid: str) -> bool:
        """Whether the pod is one of those that `adrift` counts."""
        pod = self._pods.get(pod_uid)
        return pod is not None and not (pod.node or pod.gated) and not self.picked(pod_uid)

    def in_flight(self) -> int:
        """How many pods have a pick: attempts that failed have none."""
        return sum(pool.picks for pool in self._book.pools.values())

    def waits(self, pool_uid: str, shape: Shape, *, placeholder: bool) -> bool:
        """Whether such a pod of the pool was refused all nodes lately. Linear in the pods that were."""
        refused = (self._pods[uid] for uid in self._refused)
        return any(
            pod.shape == shape and pod.placeholder is placeholder and self._members.owner(pod) == pool_uid
            for pod in refused
        )

    # Inside.

    def _uncount(self, pod_uid: str, attempt: Attempt) -> None:
        if not attempt.node:
            return
        book = self._book
        book.generation += 1
        pod = self._pods.get(pod_uid)
        if pod and not pod.node:
            self._drift(pod, 1)
            self.expect(pod, self._members.owner(pod), 1)
        node = book.nodes[attempt.node]
        pool = book.pools[attempt.pool]
        tenant = node.tenants[attempt.pool]
        tenant.picks -= 1
        pool.picks -= 1
        node.load(attempt.shape, placeholder=attempt.placeholder, times=-1)
        book.drop_tenant(node, attempt.pool, tenant)
        book.drop_pool(pool)
        book.drop_node(node)

    def _drift(self, pod: PodRecord, times: int) -> None:
        if not pod.gated:
            self.adrift.load(pod.shape, placeholder=pod.placeholder, times=times)

    def _pardon(self, pod_uid: str) -> None:
        if self._refused.pop(pod_uid, None) is not None:
            pod = self._pods[pod_uid]
            self.expect(pod, self._members.owner(pod), 1)
