"""The verb preempt: who is it, what is known, which nodes may be freed, claim, make room, answer.

The decision itself is `extender.preempt.decide`. Placeholders are ended here (`extender.preempt.evict`), for the pod
that asks and for those behind it, and the answer is then empty. The scheduler is left to preempt where others than
placeholders must go, or when we could not.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from ateplace import errors
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import PodRecord
from ateplace.cluster.state import Node
from ateplace.extender import decision_log, metrics
from ateplace.extender.claim_writer import ClaimWriter
from ateplace.extender.context import Case, Context, TryAgain
from ateplace.extender.demand import Demand, demand, read_pod
from ateplace.extender.fit import UNCLAIMED, answerable, must_read
from ateplace.extender.preempt.decide import ELSEWHERE, Verdict, best, decide, for_the_next, new_victims
from ateplace.extender.preempt.evict import Evictions
from ateplace.extender.protocol import MetaPod, MetaVictims, PreemptionArgs, PreemptionResult
from ateplace.extender.victims import Victims
from ateplace.settings import Settings

READ_AT_ONCE: Final = 8
"""How many of the nodes that may be freed are read before we say which: the best come first."""
AT_ONCE: Final = 32
"""How many placeholders are ended in one call, for the pod that asks and those that wait for the same."""
ROUNDS: Final = 5
"""How often that is decided anew by what was read; nodes that are still unread then are not answered."""
UNREAD: Final = "its other pods are not known yet"


class Preempt:
    def __init__(
        self,
        context: Context,
        ledger: Ledger,
        settings: Settings,
        *,
        claims: ClaimWriter,
        victims: Victims,
        evictions: Evictions,
        decisions: decision_log.Ring,
    ) -> None:
        self._context = context
        self._ledger = ledger
        self._claims = claims
        self._victims = victims
        self._evictions = evictions
        self._decisions = decisions
        self._pool_label = settings.substrate.pool_label
        self._deadline = settings.extender.deadline
        self._others = settings.extender.preempt_others
        self._class = settings.webhook.priority_class

    async def preempt(self, args: PreemptionArgs) -> PreemptionResult:
        """Raises TryAgain or KubeError when nothing can be decided: there is no field for an error in the answer."""
        named = args.victims or {}
        if args.pod is None:
            raise TryAgain("the call has no Pod")
        record = read_pod(args.pod, self._pool_label)
        if record is None:
            metrics.CALLS.labels("preempt", "passed").inc()
            return PreemptionResult({name: one for name, one in named.items() if one})
        until = asyncio.get_running_loop().time() + self._deadline
        others = self._others or args.pod.spec.priority_class_name != self._class
        try:
            wanted = demand(args.pod, record, await self._context.pool(record, until))
            case, verdict = await self._decide(wanted, named, until, others=others)
            answer, outcome = await self._settle(case, verdict, until)
        except TimeoutError as error:
            raise TryAgain(f"the API server took longer than {self._deadline:g} s") from error
        self._decisions.add(record.key, "preempt", outcome, decision_log.summary(verdict.dropped))
        metrics.CALLS.labels("preempt", "answered" if verdict.keep else "refused").inc()
        return PreemptionResult(answer)

    async def _decide(
        self, wanted: Demand, named: dict[str, MetaVictims | None], until: float, *, others: bool
    ) -> tuple[Case, Verdict]:
        """Which nodes may be freed, once the pods of those that come into question are known."""
        begun = time.monotonic()
        for last in (*(False,) * ROUNDS, True):
            case = self._context.case(wanted)
            verdict = decide(case, named, others=others)
            name = best(case, verdict.keep, self._victims)
            read = [] if last else _to_read(case, verdict, (name,) if name else verdict.keep, begun)
            if not read:
                break
            for node in read:
                await self._claims.open(node, wanted.pool, write=False, read=True, until=until)
        for name in [name for name in verdict.keep if must_read(case, case.ledger.nodes[name])]:
            verdict.dropped[name] = UNREAD
            del verdict.keep[name]
        return case, verdict

    async def _settle(self, case: Case, verdict: Verdict, until: float) -> tuple[dict[str, MetaVictims], str]:
        """What the scheduler is to do, and in words what was decided. Nodes whose claim is refused are dropped from the
        verdict: nothing is ended for a pod that could not go there."""
        found = f"{len(verdict.keep)} of {len(verdict.keep) + len(verdict.dropped)} nodes may be freed"
        while name := best(case, verdict.keep, self._victims):
            if not verdict.keep[name].pods:
                # Nothing is evicted: the scheduler nominates the pod to this node, and filter claims it when asked.
                return {name: MetaVictims([], 0)}, f"{found}: {name}, without evictions"
            own = new_victims(case, verdict.keep[name], self._victims)
            if not own:
                return {}, f"{found}: none"  # those that go for others make room enough, and bring this pod back
            answer = {name: MetaVictims([MetaPod(uid) for uid in own], verdict.keep[name].violations)}
            for uid in own:  # and so no other pod is told of them
                self._victims.promise(uid, case.demand.uid, case.now)
            if case.demand.placeholder:
                return answer, f"{found}: {name}"
            more = self._for_the_next(case, verdict, name, len(own))
            if refused := await self._claim(case, name, more, until):
                verdict.dropped[name] = refused
                del verdict.keep[name]
                self._victims.withdraw(own)
                case = self._context.case(case.demand)
                continue
            if await self._make_room(case, own, more, until):
                return {}, f"made room on {name}"
            return answer, f"{found}: {name}"
        for name, one in verdict.keep.items():
            if any(pod.uid not in case.ledger.pods for pod in one.pods or ()):
                case.ledger.others_changed(name)  # when the pod comes back, those are gone
        return verdict.keep, f"{found}: {', '.join(verdict.keep) or 'none'}"

    def _for_the_next(self, case: Case, verdict: Verdict, own: str, count: int) -> list[PodRecord]:
        """Placeholders whose room the pool's other waiting pods need.

        How many of those there are is a count, of pods that wait and pods that their pool is about to have: one room
        too few, and a pod asks for its own; one too many, and a placeholder comes back.
        """
        pool = case.ledger.pools.get(case.demand.pool)
        others = pool.awaited(case.now) - 1 - self._victims.waiting(pool.uid) if pool else 0
        need = min(others, AT_ONCE - count)
        return for_the_next(case, verdict.keep, self._evictions.placeholders(), need, own) if need > 0 else []

    async def _claim(self, case: Case, name: str, more: list[PodRecord], until: float) -> str:
        """Claim the nodes where room is made, before anything is ended there; why this pod's is refused. Of `more`,
        those stay whose node was claimed."""
        nodes, wanted = case.ledger.nodes, case.demand
        also = {one.node for one in more} - {name}
        unwritten = [nodes[one] for one in sorted(also) if not answerable(case, nodes[one])]
        write = not answerable(case, nodes[name])
        if not (write or unwritten):
            return ""
        try:
            await self._claims.open(nodes[name], wanted.pool, write=write, read=False, until=until, also=unwritten)
        except (errors.NotFound, errors.Conflict, errors.Invalid, errors.Forbidden):
            return UNCLAIMED
        case = self._context.case(wanted)
        more[:] = [one for one in more if one.node in nodes and answerable(case, nodes[one.node])]
        return ""

    async def _make_room(self, case: Case, own: list[str], more: list[PodRecord], until: float) -> bool:
        """End this pod's victims and `more`; whether this pod's are gone."""
        victims = [pod for uid in own if (pod := case.ledger.pods.get(uid))]
        if not all(self._evictions.allowed(uid) for uid in own):
            return False
        gone = await self._evictions.end((*victims, *more), case.demand.pool, until)
        return all(one.uid in gone for one in victims)


def _to_read(case: Case, verdict: Verdict, answer: Iterable[str], begun: float) -> list[Node]:
    """Nodes whose other pods must be known before one of them is freed, and those that were read too long ago to
    know a victim."""
    nodes = case.ledger.nodes
    behind = (nodes[name] for name, reason in verdict.dropped.items() if reason == ELSEWHERE)
    older = [node for node in behind if node.reading is not None and node.reading.at < begun]
    return [*(nodes[name] for name in answer if must_read(case, nodes[name])), *older][:READ_AT_ONCE]
