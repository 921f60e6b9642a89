"""The verb filter: who is it, what is known, was it answered already, candidates, claim, answer, refuse.

What is never done: answering a node whose claim and label the API server has not acknowledged; answering "all fit" for
a pod of ours; writing anything for a pod that is not.

Calls come one at a time from a scheduler, but replays, two schedulers and claims ahead overlap; everything here is
confined to one loop, and between two awaits the ledger does not change.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from ateplace import errors
from ateplace.cluster.claims import boottime
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import PodRecord
from ateplace.cluster.state import Node, Warmth
from ateplace.extender import decision_log, metrics
from ateplace.extender.claim_writer import ClaimWriter
from ateplace.extender.context import Case, Context, TryAgain
from ateplace.extender.demand import demand, read_pod
from ateplace.extender.filter.ahead import unserved
from ateplace.extender.filter.choose import Choice, refusals
from ateplace.extender.filter.claiming import Call, Claiming, may_answer
from ateplace.extender.filter.nominate import Nominator
from ateplace.extender.filter.refused_pods import (
    Among,
    HoldWarm,
    Refusal,
    RefusalCache,
    Retry,
    is_waiting,
    refusal,
    rules_of,
)
from ateplace.extender.fit import CHANGED, HELD_BACK, NO_ROOM, PROMISED, ateoms_by_zone, passes, zoned
from ateplace.extender.protocol import ExtenderArgs, FilterResult
from ateplace.extender.rules import kind
from ateplace.extender.victims import Victims
from ateplace.kube import Kube
from ateplace.settings import Settings

log = logging.getLogger(__name__)

REPLAY_SECONDS: Final = 0.5
"""The same pod in the same version so soon is the same scheduling cycle; a failed attempt comes back after a second."""
BUSY: Final = "another call for this pod is still under way"


class Filter:
    def __init__(
        self,
        kube: Kube,
        context: Context,
        ledger: Ledger,
        settings: Settings,
        *,
        claims: ClaimWriter,
        victims: Victims,
        decisions: decision_log.Ring,
    ) -> None:
        extender = settings.extender
        self._context = context
        self._ledger = ledger
        self._victims = victims
        self._decisions = decisions
        self._pool_label = settings.substrate.pool_label
        self._deadline = extender.deadline
        self._hold = HoldWarm(extender.hold_warm_seconds if extender.placement == "hold-warm" else 0.0)
        self._claiming = Claiming(context, claims, self._hold, deadline=extender.deadline)
        self._retry = Retry(partial(is_waiting, ledger), self._claiming.again)
        self._refusals = RefusalCache()
        self._under_way: dict[str, asyncio.Event] = {}
        """Calls by pod UID."""
        self._nominator = Nominator(
            kube,
            context,
            ledger,
            least=extender.nominate_nodes,
            claim=self._claiming.ahead,
            excluded=self._claiming.denied,
        )
        ledger.subscribe(pool=lambda uid: self._retry.changed(uid, rules_of(ledger, uid)))

    def close(self) -> None:
        """Look at no pod again, and nominate none."""
        self._retry.close()
        self._nominator.close()

    async def filter(self, args: ExtenderArgs) -> FilterResult:
        """One node (or, for a pod with preferences, several), each claimed; or why not."""
        pod, sent = args.pod, args.names
        if pod is None or not pod.metadata.uid:
            return _bad("the call has no Pod")
        if sent is None:
            return _bad("the call has no NodeNames: set nodeCacheCapable")
        record = read_pod(pod, self._pool_label)
        if record is None:
            metrics.CALLS.labels("filter", "passed").inc()
            return FilterResult(node_names=sent.all())
        until = asyncio.get_running_loop().time() + self._deadline
        try:
            async with self._alone(record.uid, until):
                call = Call(pod, record, sent, until, boottime(), record.uid in self._ledger.pods)
                return await self._decide(call)
        except (TryAgain, errors.KubeError, TimeoutError) as error:
            return self._fail(record, str(error) or f"the API server took longer than {self._deadline:g} s")

    @contextlib.asynccontextmanager
    async def _alone(self, uid: str, until: float) -> AsyncIterator[None]:
        """One call for a pod at a time: two would take each other's pick for one that failed."""
        while before := self._under_way.get(uid):
            try:
                async with asyncio.timeout_at(until):
                    await before.wait()
            except TimeoutError as error:
                raise TryAgain(BUSY) from error
        over = self._under_way[uid] = asyncio.Event()
        try:
            yield
        except BaseException:
            self._ledger.picks.forget(uid)
            raise
        finally:
            del self._under_way[uid]
            over.set()

    async def _decide(self, call: Call) -> FilterResult:
        self._ledger.picks.expire(time.monotonic())
        wanted = demand(call.pod, call.record, await self._context.pool(call.record, call.until))
        case = self._context.case(wanted, call.begun)
        if answer := self._answered_already(case, call):
            return answer
        if await self._nominator.hold(case, call.sent):
            case = self._context.case(wanted, call.begun)
        while choice := self._claiming.candidate(case, call):
            case, claimed = await self._claiming.claim(case, call, choice)
            if claimed:
                return self._place(case, call, choice)
        return self._refuse(case, call)

    def _answered_already(self, case: Case, call: Call) -> FilterResult | None:
        """The same node, when the scheduler asks again within the same cycle; or the refusal that a pod like this one
        got a moment ago."""
        attempt = case.ledger.picks.attempts.get(case.demand.uid)
        if attempt and attempt.nominated and attempt.node in call.sent:
            call.nominated = attempt.node
            case.ledger.picks.forget(case.demand.uid)
            return None
        if attempt and attempt.node and attempt.version == case.demand.version and attempt.node in call.sent:
            node = case.ledger.nodes[attempt.node]
            if case.now - attempt.at <= REPLAY_SECONDS and may_answer(case, node):
                return self._answer(case, call, Choice(node))
        case.ledger.picks.failed(case.demand.uid)
        call.holds = self._hold.holds(case)
        if not call.holds and (before := self._refusals.get(case, call.sent)):
            case.ledger.picks.note_refusal(case.demand.uid, case.now)
            return self._say(call, before)
        return None

    def _place(self, case: Case, call: Call, choice: Choice) -> FilterResult:
        if not call.record.placeholder:
            self._victims.taken(choice.node.name)
        self._nominator.placed(case, call.sent)
        return self._answer(case, call, choice)

    def _answer(self, case: Case, call: Call, choice: Choice) -> FilterResult:
        self._hold.placed(case.demand.uid)
        node, nodes = choice.node, case.ledger.nodes
        also = [name for name in choice.also if name in nodes and may_answer(case, nodes[name])]
        warmth = Warmth.READY if node.atelet_ready else Warmth.CLAIMED if node.atelets else Warmth.COLD
        metrics.CALLS.labels("filter", "answered").inc()
        if not call.record.placeholder:
            metrics.PICKS.labels(warmth.name.lower()).inc()
        notes = (
            *(f"{name}: {warmth.name.lower()}, {fullness:.0%} full" for name, warmth, fullness in choice.ranking),
            *((f"claimed ahead: {', '.join(call.ahead)}",) if call.ahead else ()),
            *((f"also answered: {', '.join(also)}",) if also else ()),
            *_zones(case, node),
        )
        self._decisions.add(call.record.key, "filter", f"picked {node.name}", notes)
        return FilterResult(node_names=[node.name, *also])

    def _refuse(self, case: Case, call: Call) -> FilterResult:
        """Why no node will do; TryAgain when that passes by itself: a refusal would let the scheduler preempt."""
        if call.not_claimed:
            raise TryAgain(call.not_claimed)
        case.ledger.picks.forget(case.demand.uid)
        if case.served and case.claims_node:
            self._claiming.ahead(case, unserved(case, call.sent))
        reasons = refusals(case, dict.fromkeys(call.sent.all()), hold=call.holds, denied=self._claiming.denied)
        if not reasons:
            raise TryAgain("the call names no node")
        reasons |= {name: NO_ROOM for name in call.full if reasons.get(name) == CHANGED}
        for name, reason in reasons.items():
            if passes(case, name, reason):
                raise TryAgain(reason)
        said = refusal(reasons)
        under = rules_of(case.ledger, case.demand.pool)
        if call.holds and HELD_BACK in reasons.values():
            self._retry.later(case.demand, call.sent, self._hold.left(case), under)
        elif case.claims_node:
            self._retry.later(case.demand, Among(said.reasons), under=under)
        if not (call.tried or call.reads or call.holds or PROMISED in reasons.values()):
            self._refusals.put(case, said)  # nothing was tried, so the same question has the same answer
        if not call.holds:
            case.ledger.picks.note_refusal(case.demand.uid, case.now)
        return self._say(call, said)

    def _say(self, call: Call, said: Refusal) -> FilterResult:
        metrics.CALLS.labels("filter", "refused").inc()
        for reason, count in said.counts:
            metrics.DROPPED.labels(kind(reason)).inc(count)
        self._decisions.add(call.record.key, "filter", f"refused all {len(said.reasons)} nodes", said.notes)
        return FilterResult(node_names=[], unresolvable=said.reasons)

    def _fail(self, record: PodRecord, reason: str) -> FilterResult:
        metrics.CALLS.labels("filter", "error").inc()
        self._decisions.add(record.key, "filter", f"error: {reason}")
        log.warning("filter failed", extra={"pod": record.key, "reason": reason})
        return FilterResult(error=f"ateplace: {reason}")


def _zones(case: Case, node: Node) -> tuple[str, ...]:
    """For `explain`: what the zone was chosen by, where this pod is the first of its pool on the node."""
    there = node.pools.get(case.demand.pool)
    if not zoned(case) or there is None or there.ateoms or there.picks > 1:
        return ()
    counts = ateoms_by_zone(case)
    said = ", ".join(f"{zone or 'none'} {counts.get(zone, 0)}" for zone in sorted(case.ledger.zones))
    return (f"new to the pool, in zone {node.zone or 'none'}; its ateoms by zone with this one: {said}",)


def _bad(reason: str) -> FilterResult:
    metrics.CALLS.labels("filter", "bad").inc()
    return FilterResult(error=reason)
