"""What is remembered about pods that were refused: what they were told, for how long they wait for warm room, and when
they are looked at again.

`RefusalCache`: refusals that are given again without deciding again. Every event of any pod or node makes the scheduler
try all refused pods: dozens of calls that differ in nothing but the pod's name, each about all nodes. A refusal follows
from what the pod wants, from the ledger and from the time; so as long as those are the same, and for a moment only, a
pod that wants the same gets the same.

`HoldWarm`: how long `hold-warm` keeps a pod from cold nodes while placeholders on warm ones could make room for it.

`Retry`: how refused pods come back when something changed that no scheduler looks at. A scheduler tries refused pods
again when a Node changes or a bound pod goes, and else after five minutes. It does not see an atelet that is Ready
again (a bound pod's status moves no pod), a DaemonSet that tolerates more, what we read of a node getting old, our own
watch catching up with the event that brought the pod back a moment too early, the end of `hold-warm`, and other rules
of its pool. So such a pod is decided upon again, and when a node would do by now, that node is claimed: the change of
the Node is the event that brings the pod back. One timer for all pods that want the same of one pool, soon after each
refusal and then ever more rarely, until a claim was acknowledged or no such pod waits.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from msgspec import Struct

from ateplace import errors
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.resources import Shape
from ateplace.extender import decision_log
from ateplace.extender.context import Case, Sent, TryAgain
from ateplace.extender.demand import Demand

SAME_SECONDS: Final = 1.0
"""For how long a refusal is given again."""
FIRST: Final = 1.0
"""Seconds from a refusal to the first look; each further one takes twice as long, up to LAST."""
LAST: Final = 32.0
MOST: Final = 64
"""So many kinds of pods are remembered; of more than that, those that were refused last are looked at again."""
PODS: Final = 10_000
"""Pods for which the time of holding back is remembered."""

Key = tuple[str, Shape, bool]
"""A kind of pod: its pool, what it asks for, and whether it is a placeholder."""


class Refusal(Struct, frozen=True, gc=False):
    reasons: dict[str, str]
    """By node."""
    counts: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    """For `explain`."""


class Given(Struct, frozen=True, gc=False):
    refusal: Refusal
    generation: int
    at: float


def refusal(reasons: dict[str, str]) -> Refusal:
    return Refusal(reasons, tuple(Counter(reasons.values()).items()), decision_log.summary(reasons))


class RefusalCache:
    def __init__(self) -> None:
        self._given: dict[tuple[Key, str], Given] = {}

    def get(self, case: Case, sent: Sent) -> Refusal | None:
        """What a pod like this one was told a moment ago about these very nodes."""
        given = self._given.get((_kind(case.demand), case.demand.template)) if self._given else None
        if given is None or given.generation != case.ledger.generation:
            return None
        reasons = given.refusal.reasons
        # The scheduler sends the same nodes in another order each time.
        same = case.now - given.at < SAME_SECONDS and reasons.keys() == set(sent.all())
        return given.refusal if same else None

    def put(self, case: Case, what: Refusal) -> None:
        if len(self._given) >= MOST:
            self._given.clear()
        self._given[_kind(case.demand), case.demand.template] = Given(what, case.ledger.generation, case.now)


class HoldWarm:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[str, float] = {}
        """By pod UID, the one that came first first."""

    def holds(self, case: Case) -> bool:
        """Whether this pod is to wait for warm room. The first call starts its time."""
        return self.left(case) > 0

    def left(self, case: Case) -> float:
        """For how many seconds it still is."""
        if not self._seconds or case.demand.placeholder:
            return 0.0
        since = self._since.setdefault(case.demand.uid, case.now)
        if len(self._since) > PODS:
            del self._since[next(iter(self._since))]
        return max(0.0, since + self._seconds - case.now)

    def placed(self, uid: str) -> None:
        self._since.pop(uid, None)


class Among:
    """The nodes that were refused, as names that were sent."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def all(self) -> list[str]:
        return list(self._names)


class Wait(Struct, gc=False):
    demand: Demand
    sent: Sent
    delay: float
    timer: asyncio.TimerHandle
    under: object = None
    """The rules that the pod was refused under."""
    look: asyncio.Task[None] | None = None
    """The look under way."""


class Retry:
    """`waits`: whether such a pod waits. `claim`: claim the node that it would get now, and say whether that was
    acknowledged."""

    def __init__(self, waits: Callable[[Demand], bool], claim: Callable[[Demand, Sent], Awaitable[bool]]) -> None:
        self._waits = waits
        self._claim = claim
        self._kinds: dict[Key, Wait] = {}
        """The one that was refused longest ago first."""

    def later(self, demand: Demand, sent: Sent, delay: float = 0.0, under: object = None) -> None:
        """Such a pod was not placed, under these rules; look again after `delay` seconds, or soon."""
        key = _kind(demand)
        self._forget(key)
        if len(self._kinds) >= MOST:
            self._forget(next(iter(self._kinds)))
        self._start(key, demand, sent, delay or FIRST, under)

    def changed(self, pool: str, rules: object) -> None:
        """A pool may have other rules now: then look again soon."""
        for key, wait in tuple(self._kinds.items()):
            if key[0] == pool and wait.under != rules:
                self._forget(key)
                self._start(key, wait.demand, wait.sent, FIRST, rules)

    def close(self) -> None:
        for key in tuple(self._kinds):
            self._forget(key)

    def _start(self, key: Key, demand: Demand, sent: Sent, delay: float, under: object) -> None:
        timer = asyncio.get_running_loop().call_later(delay, self._begin, key)
        self._kinds[key] = Wait(demand, sent, delay, timer, under)

    def _begin(self, key: Key) -> None:
        wait = self._kinds[key]
        wait.look = asyncio.get_running_loop().create_task(self._look(key, wait))

    async def _look(self, key: Key, wait: Wait) -> None:
        claimed = False
        waits = self._waits(wait.demand)
        if waits:
            try:
                claimed = await self._claim(wait.demand, wait.sent)
            except (TryAgain, errors.KubeError, TimeoutError):
                claimed = False  # it was logged where it failed
        if self._kinds.get(key) is wait:
            del self._kinds[key]
            if waits and not claimed:
                self._start(key, wait.demand, wait.sent, min(2 * wait.delay, LAST), wait.under)

    def _forget(self, key: Key) -> None:
        if wait := self._kinds.pop(key, None):
            wait.timer.cancel()
            if wait.look:
                wait.look.cancel()


def rules_of(ledger: Ledger, pool_uid: str) -> object:
    """The rules that a pool's pods are refused under, to be compared."""
    pool = ledger.pools.get(pool_uid)
    return (pool.record.rules, ledger.quotas.get(pool.namespace)) if pool and pool.record else None


def is_waiting(ledger: Ledger, wanted: Demand) -> bool:
    """Whether this pod, or one that wants the same, was not placed and is still there."""
    pool = ledger.pools.get(wanted.pool)
    return (
        ledger.picks.is_unpicked(wanted.uid)
        or ledger.picks.refused_alike(wanted.pool, wanted.shape, placeholder=wanted.placeholder)
        or (not wanted.placeholder and pool is not None and pool.pending > 0)
    )


def _kind(demand: Demand) -> Key:
    return demand.pool, demand.shape, demand.placeholder
