"""Refusals that are given again without deciding again.

Every event of any pod or node makes the scheduler try all refused pods: dozens of calls that differ in nothing but the
pod's name, each about all nodes. A refusal follows from what the pod wants, from the ledger and from the time; so as
long as those are the same, and for a moment only, a pod that wants the same gets the same.
"""

from collections import Counter
from typing import Final

from msgspec import Struct

from ateplace.cluster.resources import Shape
from ateplace.extender import decision_log
from ateplace.extender.context import Case
from ateplace.extender.filter.placeholders import Names

SECONDS: Final = 1.0
MOST: Final = 64


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
        self._given: dict[tuple[str, Shape, bool, str], Given] = {}

    def get(self, case: Case, sent: Names) -> Refusal | None:
        """What a pod like this one was told a moment ago about these very nodes."""
        given = self._given.get(_key(case)) if self._given else None
        if given is None or given.generation != case.ledger.generation:
            return None
        reasons = given.refusal.reasons
        # The scheduler sends the same nodes in another order each time.
        same = case.now - given.at < SECONDS and reasons.keys() == set(sent.all())
        return given.refusal if same else None

    def put(self, case: Case, what: Refusal) -> None:
        if len(self._given) >= MOST:
            self._given.clear()
        self._given[_key(case)] = Given(what, case.ledger.generation, case.now)


def _key(case: Case) -> tuple[str, Shape, bool, str]:
    demand = case.demand
    return demand.pool, demand.shape, demand.placeholder, demand.template
