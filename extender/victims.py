"""Placeholders that give way: which one goes for which pod, and whose room waits for its ateom.

A scheduler counts the pods it has nominated to a node, but the placeholders that are to go for them are there until
they are deleted. So for the second pod of a burst it names the first one's victim once more, beside a new one. Evicting
both again is waste, and worse: kube-scheduler's asynchronous preemption (on by default from 1.33; seen with 1.36.3)
forgets a pod whose last victim was deleted for another, until something else happens in the cluster or five minutes
have passed. Therefore a victim that is promised to one pod is not named to others. The same goes for victims that we
have ended ourselves (`extender.preempt.evict`), as long as the scheduler's cache still has them.

A placeholder that was ended is made anew at once, and the scheduler may try it before it tries the ateom again. So
until an ateom was answered the node, or some seconds are over, no placeholder is placed where one was ended.

Kept for seconds only, and never relied on: a pod that does not find its room asks again.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from ateplace.cluster.expiring import Expiring

SECONDS: Final = 10.0
MOST: Final = 10_000


class Victim(Struct, frozen=True, gc=False):
    pod: str
    """UID of the pod that it goes for; empty once it is gone: its room is for any ateom of the pool."""
    node: str = ""
    pool: str = ""
    """UID of the WorkerPool that its room was made for."""


class Victims:
    """By the placeholder's UID. `expire` before asking."""

    def __init__(self) -> None:
        self._victims: Expiring[str, Victim] = Expiring(SECONDS, MOST)
        self._ended: dict[str, dict[str, str]] = {}
        """By node, the placeholders that were ended there and whose room no ateom has taken yet, with its pool."""
        self._counts: dict[str, int] = {}
        """How many those are."""
        self._waiting: dict[str, int] = {}
        """The same by pool."""

    def expire(self, now: float) -> None:
        for uid, victim in self._victims.expire(now):
            self._close(uid, victim.node)

    def promise(self, uid: str, pod: str, now: float) -> None:
        """This pod was told that it goes."""
        self._victims.put(uid, Victim(pod), now)

    def ended(self, uid: str, node: str, pool: str, now: float) -> None:
        """We have ended it for ateoms of this pool: a scheduler that still names it has not heard of it, and will."""
        self._close(uid, node)
        self._victims.put(uid, Victim("", node, pool), now)
        self._ended.setdefault(node, {})[uid] = pool
        self._counts[node] = self._counts.get(node, 0) + 1
        self._waiting[pool] = self._waiting.get(pool, 0) + 1

    def withdraw(self, uids: Iterable[str]) -> None:
        """They do not go after all."""
        for uid in uids:
            self._victims.pop(uid)

    def taken(self, node: str) -> None:
        """An ateom was answered this node."""
        if ended := self._ended.get(node):
            self._close(next(iter(ended)), node)

    def made_room(self) -> Mapping[str, int]:
        """The nodes where no placeholder may go now."""
        return self._counts

    def waiting(self, pool: str) -> int:
        """For how many ateoms of this pool room was made that none has taken yet."""
        return self._waiting.get(pool, 0)

    def is_free(self, uid: str, pod: str = "") -> bool:
        """Whether it goes for no pod, or for this one."""
        victim = self._victims.get(uid)
        return victim is None or (bool(pod) and victim.pod == pod)

    def _close(self, uid: str, node: str) -> None:
        ended = self._ended.get(node)
        pool = ended.pop(uid, None) if ended else None
        if pool is None:
            return
        if not ended:
            del self._ended[node]
        for counts, key in ((self._counts, node), (self._waiting, pool)):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
