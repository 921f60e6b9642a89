"""The verb prioritize: 0 to 10, warm and full first. Only asked when filter answered several nodes."""

from collections.abc import Iterable
from typing import Final

from ateplace.cluster.ledger import Ledger
from ateplace.cluster.state import Node, Warmth
from ateplace.extender import metrics
from ateplace.extender.context import Case, Context
from ateplace.extender.demand import demand, read_pod
from ateplace.extender.fit import drop
from ateplace.extender.protocol import ExtenderArgs, HostPriority
from ateplace.settings import Settings

BASE: Final = {Warmth.READY: 6, Warmth.CLAIMED: 3, Warmth.COLD: 0}


class Prioritize:
    def __init__(self, context: Context, ledger: Ledger, settings: Settings) -> None:
        self._context = context
        self._ledger = ledger
        self._pool_label = settings.substrate.pool_label

    async def prioritize(self, args: ExtenderArgs) -> list[HostPriority]:
        """Errors are swallowed by the scheduler, so when in doubt all are equal."""
        sent = args.names.all() if args.names else []
        record = read_pod(args.pod, self._pool_label) if args.pod else None
        if args.pod is None or record is None or self._context.unknown():
            metrics.CALLS.labels("prioritize", "passed").inc()
            return [HostPriority(name, 0) for name in sent]
        metrics.CALLS.labels("prioritize", "answered").inc()
        return scores(self._context.case(demand(args.pod, record, self._ledger.owners.pool_of(record))), sent)


def scores(case: Case, names: Iterable[str]) -> list[HostPriority]:
    """READY nodes 6..10, claimed ones 3..5, cold ones 0..2, the fuller the more; 0 for one that filter would drop."""
    return [HostPriority(name, score(case, case.ledger.nodes.get(name))) for name in names]


def score(case: Case, node: Node | None) -> int:
    if node is None or drop(case, node):
        return 0
    attempt = case.ledger.picks.attempts.get(case.demand.uid)
    if attempt and node.name in attempt.avoid:
        return 0
    warmth = node.warmth()
    span = 4 if warmth is Warmth.READY else 2
    return BASE[warmth] + round(span * min(1.0, node.fullness))
