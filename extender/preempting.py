"""The verb preempt: decide, read what must be known first, answer; the decision itself is `extender.preempt`."""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from ateplace.entries import Node
from ateplace.records import pod_record
from ateplace.settings import Settings
from extender import explain, metrics
from extender.cases import Cases, Unfit
from extender.claim import Claims
from extender.demand import demand
from extender.preempt import ELSEWHERE, Verdict, decide
from extender.promises import Promises
from extender.rules import Case, unread
from extender.wire import PreemptionArgs, PreemptionResult

READ_AT_ONCE: Final = 8
"""How many of the nodes that may be freed are read before we say which: the best come first."""
ROUNDS: Final = 5
"""How often that is decided anew by what was read; nodes that are still unread then are not answered."""


class Preempting:
    def __init__(self, cases: Cases, claims: Claims, ring: explain.Ring, settings: Settings) -> None:
        self._cases = cases
        self._claims = claims
        self._ring = ring
        self._pool_label = settings.substrate.pool_label
        self._deadline = settings.extender.deadline
        self._others = settings.extender.preempt_others
        self._class = settings.webhook.priority_class
        self._promises = Promises()

    async def preempt(self, args: PreemptionArgs) -> PreemptionResult:
        """Raises Unfit or KubeError when nothing can be decided: there is no field for an error in the answer."""
        victims = args.victims or {}
        if args.pod is None:
            raise Unfit("the call has no Pod")
        record = pod_record(args.pod, self._pool_label)
        if record is None:
            metrics.CALLS.labels("preempt", "passed").inc()
            return PreemptionResult({name: named for name, named in victims.items() if named})
        until = asyncio.get_running_loop().time() + self._deadline
        wanted = demand(args.pod, record, await self._cases.pool(record, until))
        others = self._others or args.pod.spec.priority_class_name != self._class
        begun = time.monotonic()
        for last in (*(False,) * ROUNDS, True):
            case = self._cases.make(wanted)
            verdict = decide(case, victims, others=others)
            best = self._promises.best(case, verdict.keep)
            read = [] if last else _to_read(case, verdict, (best,) if best else verdict.keep, begun)
            if not read:
                break
            for node in read:
                await self._claims.open(node, wanted.pool, write=False, read=True, until=until)
        known = {name: one for name, one in verdict.keep.items() if not unread(case, case.ledger.nodes[name])}
        keep = self._promises.settle(case, known)
        for name, named in keep.items():
            if any(pod.uid not in case.ledger.pods for pod in named.pods or ()):
                case.ledger.unread(name)  # when the pod comes back, those are gone
        outcome = f"{len(verdict.keep)} of {len(victims)} nodes may be freed: {', '.join(keep) or 'none'}"
        self._ring.add(f"{record.namespace}/{record.name}", "preempt", outcome, explain.summary(verdict.dropped))
        metrics.CALLS.labels("preempt", "answered" if verdict.keep else "refused").inc()
        return PreemptionResult(keep)


def _to_read(case: Case, verdict: Verdict, answer: Iterable[str], begun: float) -> list[Node]:
    """Nodes whose other pods must be known before one of them is freed, and those that were read too long ago to
    know a victim."""
    nodes = case.ledger.nodes
    behind = (nodes[name] for name, reason in verdict.dropped.items() if reason == ELSEWHERE)
    older = [node for node in behind if node.reading is not None and node.reading.at < begun]
    return [*(nodes[name] for name in answer if unread(case, nodes[name])), *older][:READ_AT_ONCE]
