"""Which placeholder goes for which pod: one node per answer, and no victim twice.

A scheduler counts the pods it has nominated to a node, but the placeholders that are to go for them are there until
they are deleted. So for the second pod of a burst it names the first one's victim once more, beside a new one. Evicting
both again is waste, and worse: kube-scheduler's asynchronous preemption (on by default from 1.33; seen with 1.36.3)
forgets a pod whose last victim was deleted for another, until something else happens in the cluster or five minutes
have passed. Therefore a victim that is promised to one pod is taken out of the answers to others, and only
one node is answered, so that we know what was promised. The same goes for victims that we have ended ourselves
(`extender.preempt.evict`), as long as the scheduler's cache still has them.

Kept for seconds only, and never relied on: a promise that was not kept is forgotten, and the pod asks again.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from ateplace.cluster.ledger import Ledger
from extender.fit import Case
from extender.protocol import MetaPod, MetaVictims

SECONDS: Final = 10.0
MOST: Final = 10_000


class Promise(Struct, frozen=True, gc=False):
    pod: str
    """UID of who needs the room; empty when the victim is gone, and the room is whose it gets."""
    at: float


class Promises:
    def __init__(self) -> None:
        self._by_victim: dict[str, Promise] = {}
        """Oldest first."""

    def settle(self, case: Case, keep: dict[str, MetaVictims]) -> dict[str, MetaVictims]:
        """Of the nodes that may be freed the one to answer, with the victims that are new.

        Where others than placeholders would go, the scheduler's own rules for choosing are better than ours.
        """
        best = self.best(case, keep)
        if best is None:
            return keep
        fresh = self._fresh(case, keep[best])
        if not fresh:
            return {}  # those who go for others make room enough, and their end brings this pod back
        for uid in fresh:
            self._by_victim.pop(uid, None)
            self._by_victim[uid] = Promise(case.demand.uid, case.now)
        return {best: MetaVictims([MetaPod(uid) for uid in fresh], keep[best].violations)}

    def ended(self, victims: Iterable[str], now: float) -> None:
        """We have ended these: whoever still names them has not heard of it, and will."""
        for uid in victims:
            self._by_victim.pop(uid, None)
            self._by_victim[uid] = Promise("", now)

    def free(self, uid: str) -> bool:
        """Whether nobody was promised this one."""
        return uid not in self._by_victim

    def best(self, case: Case, keep: dict[str, MetaVictims]) -> str | None:
        """The one node that will be answered; None when the scheduler chooses."""
        self._expire(case.now)
        named = {name: [pod.uid for pod in victims.pods or ()] for name, victims in keep.items()}
        if not keep or not all(_placeholders(case.ledger, uids) for uids in named.values()):
            return None

        def rank(name: str) -> tuple[int, bool, int, str]:
            return keep[name].violations, _foreign(case, named[name]), len(self._fresh(case, keep[name])), name

        return min(keep, key=rank)

    def _fresh(self, case: Case, victims: MetaVictims) -> list[str]:
        return [pod.uid for pod in victims.pods or () if not self._taken(pod.uid, case)]

    def _taken(self, uid: str, case: Case) -> bool:
        promise = self._by_victim.get(uid)
        return promise is not None and promise.pod != case.demand.uid

    def _expire(self, now: float) -> None:
        while self._by_victim:
            uid, oldest = next(iter(self._by_victim.items()))
            if now - oldest.at < SECONDS and len(self._by_victim) <= MOST:
                return
            del self._by_victim[uid]


def _placeholders(ledger: Ledger, uids: list[str]) -> bool:
    return all(uid in ledger.pods and ledger.pods[uid].placeholder for uid in uids)


def _foreign(case: Case, uids: list[str]) -> bool:
    """Whether another pool's headroom would go: a pool uses its own first."""
    return any(case.ledger.pool_of(case.ledger.pods[uid]) != case.demand.pool for uid in uids)
