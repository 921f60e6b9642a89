"""Prioritize: 0 to 10, warm and full first (pure). Only asked when filter answered several nodes."""

from collections.abc import Iterable

from ateplace.cluster.state import Node, Warmth
from extender.fit import Case, drop
from extender.protocol import HostPriority

BASE = {Warmth.READY: 6, Warmth.CLAIMED: 3, Warmth.COLD: 0}


def scores(case: Case, names: Iterable[str]) -> list[HostPriority]:
    """READY nodes 6..10, claimed ones 3..5, cold ones 0..2, the fuller the more; 0 for one that filter would drop."""
    return [HostPriority(name, score(case, case.ledger.nodes.get(name))) for name in names]


def score(case: Case, node: Node | None) -> int:
    if node is None or drop(case, node):
        return 0
    attempt = case.ledger.attempts.get(case.demand.uid)
    if attempt and node.name in attempt.avoid:
        return 0
    warmth = node.warmth()
    span = 4 if warmth is Warmth.READY else 2
    return BASE[warmth] + round(span * min(1.0, node.fullness))
