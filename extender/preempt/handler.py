"""The verb preempt: decide, read what must be known first, make room, answer; the decision itself is
`extender.preempt.decide`.

Placeholders are ended here (`extender.preempt.evict`), for the pod that asks and for those behind it, and the answer is
then empty. The scheduler is left to preempt where others than placeholders must go, or when we could not.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Final

from ateplace.cluster.records import pod_record
from ateplace.cluster.state import Node
from ateplace.settings import Settings
from extender import decision_log, metrics
from extender.claim_writer import Claims
from extender.context import Cases, Unfit
from extender.demand import demand
from extender.fit import Case, unread
from extender.preempt.decide import ELSEWHERE, Verdict, decide, for_the_next
from extender.preempt.evict import Evictions
from extender.preempt.victims import Promises
from extender.protocol import MetaVictims, PreemptionArgs, PreemptionResult

READ_AT_ONCE: Final = 8
"""How many of the nodes that may be freed are read before we say which: the best come first."""
AT_ONCE: Final = 32
"""How many placeholders are ended in one call, for the pod that asks and those that wait for the same."""
ROUNDS: Final = 5
"""How often that is decided anew by what was read; nodes that are still unread then are not answered."""


class Preempting:
    def __init__(
        self, cases: Cases, claims: Claims, evictions: Evictions, ring: decision_log.Ring, settings: Settings
    ) -> None:
        self._cases = cases
        self._claims = claims
        self._evictions = evictions
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
        if keep and best is not None and await self._made_room(case, known, keep, until):
            outcome, keep = f"made room on {', '.join(keep)}", {}
        self._ring.add(f"{record.namespace}/{record.name}", "preempt", outcome, decision_log.summary(verdict.dropped))
        metrics.CALLS.labels("preempt", "answered" if verdict.keep else "refused").inc()
        return PreemptionResult(keep)

    async def _made_room(
        self, case: Case, clean: Mapping[str, MetaVictims], named: Mapping[str, MetaVictims], until: float
    ) -> bool:
        """End the placeholders that go for this pod, and those whose room the pool's other waiting pods need; whether
        this pod's are gone. All of `clean` can be freed by placeholders alone; `named` is one of them.

        How many others there are is a count, of pods that wait and pods that their pool is about to have: one room too
        few, and a pod asks for its own; one too many, and a placeholder comes back.
        """
        if case.demand.placeholder or not self._evictions.allowed():
            return False
        ledger = case.ledger
        own = [ledger.pods[pod.uid] for one in named.values() for pod in one.pods or ()]
        pool = ledger.pools.get(case.demand.pool)
        others = pool.awaited(case.now) - 1 - self._evictions.waiting(pool.uid) if pool else 0
        need = min(others, AT_ONCE - len(own))
        free = (one for one in self._evictions.placeholders() if self._promises.free(one.uid)) if need > 0 else ()
        more = for_the_next(case, clean, free, need)
        gone = await self._evictions.end((*own, *more), case.demand.pool, until)
        self._promises.ended(gone, time.monotonic())
        return all(one.uid in gone for one in own)


def _to_read(case: Case, verdict: Verdict, answer: Iterable[str], begun: float) -> list[Node]:
    """Nodes whose other pods must be known before one of them is freed, and those that were read too long ago to
    know a victim."""
    nodes = case.ledger.nodes
    behind = (nodes[name] for name, reason in verdict.dropped.items() if reason == ELSEWHERE)
    older = [node for node in behind if node.reading is not None and node.reading.at < begun]
    return [*(nodes[name] for name in answer if unread(case, nodes[name])), *older][:READ_AT_ONCE]
