"""The verb filter: who is it, what is known, was it answered already, candidates, claim, answer, refuse.

What is never done: answering a node whose claim and label the API server has not acknowledged; answering "all fit" for
a pod of ours; writing anything for a pod that is not.

Calls come one at a time from a scheduler, but replays, two schedulers and claims ahead overlap; everything here is
confined to one loop, and between two awaits the ledger does not change.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Final

from msgspec import Struct, field

from ateplace import errors
from ateplace.cluster.claims import boottime
from ateplace.cluster.expiring import Expiring
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import PodRecord
from ateplace.cluster.state import Node, Warmth
from ateplace.extender import decision_log, metrics
from ateplace.extender.claim_writer import ClaimWriter
from ateplace.extender.context import Case, Context, TryAgain
from ateplace.extender.demand import Demand, demand, read_pod
from ateplace.extender.filter.choose import Choice, choose, refusals, unserved
from ateplace.extender.filter.crowded_nodes import CrowdedNodes
from ateplace.extender.filter.hold import HoldWarm
from ateplace.extender.filter.nominate import Nominator
from ateplace.extender.filter.placeholders import Names as Sent
from ateplace.extender.filter.refusal_cache import Refusal, RefusalCache, refusal
from ateplace.extender.filter.retry import Among, Retry
from ateplace.extender.fit import (
    CHANGED,
    FILLED,
    HELD_BACK,
    NO_ROOM,
    PROMISED,
    answerable,
    drop,
    must_read,
    no_room,
    passes,
)
from ateplace.extender.protocol import ExtenderArgs, FilterResult, Names
from ateplace.extender.rules import kind
from ateplace.extender.victims import Victims
from ateplace.extender.zones import ateoms_by_zone, zoned
from ateplace.kube import Kube
from ateplace.kube.objects import Pod
from ateplace.settings import Settings

log = logging.getLogger(__name__)

REPLAY_SECONDS: Final = 0.5
"""The same pod in the same version so soon is the same scheduling cycle; a failed attempt comes back after a second."""
READS: Final = 32
"""How many nodes one call reads before it gives up for now; the next call goes on from there (`crowded_nodes`)."""
WARY_SECONDS: Final = 300.0
"""For how long, after a claimed node turned out to be full of others' pods, nodes are read before they are claimed: a
claim that is of no use brings an atelet, which may preempt another pod."""
DENIALS: Final = 4
"""How many claims that the API server denies one call tries."""
DENIED_SECONDS: Final = 60.0
"""For how long such a node is not tried again."""

GONE: Final = "the pod has been deleted"
BUSY: Final = "another call for this pod is still under way"


class Call(Struct):
    """One question of the scheduler's, and what was tried to answer it."""

    pod: Pod
    record: PodRecord
    sent: Names
    until: float
    """When an answer must have been given, by the loop's clock."""
    begun: float
    watched: bool
    """Whether the watch had shown the pod when the call came."""
    tried: set[str] = field(default_factory=set)
    crowded: set[str] = field(default_factory=set)
    """Nodes that had no room lately: read again when there are no others."""
    nominated: str = ""
    """The node that was chosen for the pod before it was asked about."""
    reads: int = 0
    denials: int = 0
    holds: bool = False
    refused: str = ""
    """Why a node could not be claimed, when that passes by itself."""
    ahead: list[str] = field(default_factory=list)
    """Nodes that are claimed for the pods that come next."""


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
        self._claims = claims
        self._victims = victims
        self._decisions = decisions
        self._pool_label = settings.substrate.pool_label
        self._deadline = extender.deadline
        self._hold = HoldWarm(extender.hold_warm_seconds if extender.placement == "hold-warm" else 0.0)
        self._retry = Retry(self._waits, self._claim_again)
        self._refusals = RefusalCache()
        self._crowded = CrowdedNodes()
        self._denied: Expiring[str, None] = Expiring(DENIED_SECONDS)
        """Nodes that the API server refuses to have claimed."""
        self._under_way: dict[str, asyncio.Event] = {}
        """Calls by pod UID."""
        self._wary_until = -math.inf
        self._nominator = Nominator(
            kube, context, ledger, least=extender.nominate_nodes, claim=self._claim_ahead, excluded=self._denied
        )
        ledger.subscribe(pool=self._pool_changed)

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
        while choice := self._candidate(case, call):
            case, claimed = await self._claim(case, call, choice)
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
            if case.now - attempt.at <= REPLAY_SECONDS and _may_answer(case, node):
                return self._answer(case, call, Choice(node))
        case.ledger.picks.failed(case.demand.uid)
        call.holds = self._hold.holds(case)
        if not call.holds and (before := self._refusals.get(case, call.sent)):
            case.ledger.picks.note_refusal(case.demand.uid, case.now)
            return self._say(call, before)
        return None

    def _candidate(self, case: Case, call: Call) -> Choice | None:
        """The best node that is left."""
        if call.watched and call.record.uid not in self._ledger.pods:
            raise TryAgain(GONE)  # it was deleted while we waited: no event would speak of its pick again
        nominated = case.ledger.nodes.get(call.nominated)
        if nominated and call.nominated not in call.tried and not (drop(case, nominated) or no_room(case, nominated)):
            return Choice(nominated)
        self._denied.expire(case.now)
        if not call.tried and not call.reads:
            call.crowded = self._crowded.outdated(case)
        excluded = {*call.tried, *self._denied}
        choice = choose(case, call.sent, excluded={*excluded, *call.crowded}, hold=call.holds)
        if choice is None and call.crowded:
            choice = choose(case, call.sent, excluded=excluded, hold=call.holds)
        if choice and call.denials >= DENIALS:
            raise TryAgain(f"the API server refuses to have {call.denials} nodes claimed; there are more")
        if choice and self._is_wary(case) and must_read(case, choice.node) and call.reads >= READS:
            if choice.node.name in call.crowded:
                return None  # all others were read lately
            raise TryAgain(f"no room beside atelet on the {READS} nodes looked at; there are more")
        return choice

    async def _claim(self, case: Case, call: Call, choice: Choice) -> tuple[Case, bool]:
        """Claim the node unless it may be answered as it is, and read its pods if they must be known; what is known
        afterwards, and whether it may be answered."""
        node, wanted = choice.node, case.demand
        if self._is_wary(case) and must_read(case, node):
            return await self._read(case, call, node), False
        self._assume(case, node)
        call.ahead = self._claim_ahead(case, choice.ahead)
        write, read = not answerable(case, node), must_read(case, node)
        also = [one for name in choice.also if not answerable(case, one := case.ledger.nodes[name])]
        if not (write or read or also):
            return case, True
        call.tried.add(node.name)
        try:
            await self._claims.open(
                node, wanted.pool, write=write, read=read, until=call.until, also=also, alone=case.served is not None
            )
        except (errors.NotFound, errors.Conflict, errors.Invalid, errors.Forbidden) as error:
            self._note_refused(call, node.name, error)
            case.ledger.picks.forget(wanted.uid)
            return self._context.case(wanted, call.begun), False
        # Time has passed: decide on this node again, by what is known now, without the pick itself.
        case.ledger.picks.forget(wanted.uid)
        case = self._context.case(wanted, call.begun)
        full = no_room(case, node)
        if call.watched and wanted.uid not in case.ledger.pods:
            raise TryAgain(GONE)
        if full in FILLED:
            self._wary_until = case.now + WARY_SECONDS
            self._crowded.add(node.name, case.now)
        if full or not _may_answer(case, node):
            return case, False
        self._assume(case, node)
        return case, True

    async def _read(self, case: Case, call: Call, node: Node) -> Case:
        """Learn what others have on a node before it is claimed."""
        call.reads += 1
        await self._claims.open(node, case.demand.pool, write=False, read=True, until=call.until)
        case = self._context.case(case.demand, call.begun)
        call.crowded.discard(node.name)
        if no_room(case, node) in FILLED:
            self._crowded.add(node.name, case.now)
        return case

    def _note_refused(self, call: Call, name: str, error: errors.KubeError) -> None:
        log.info("node cannot be claimed", extra={"node": name, "reason": str(error)})
        if isinstance(error, errors.NotFound | errors.Conflict):
            call.refused = f"{name} cannot be claimed: {error}"
        else:
            call.denials += 1
            self._denied.put(name, None, time.monotonic())

    def _claim_ahead(self, case: Case, nodes: Iterable[Node]) -> list[str]:
        read = partial(must_read, case)
        alone = case.served is not None
        return self._claims.ahead(nodes, case.demand.pool, read=read, wary=self._is_wary(case), alone=alone)

    def _is_wary(self, case: Case) -> bool:
        return case.now < self._wary_until

    def _assume(self, case: Case, node: Node) -> None:
        wanted = case.demand
        case.ledger.picks.assume(
            wanted.uid,
            wanted.pool,
            node.name,
            wanted.shape,
            placeholder=wanted.placeholder,
            version=wanted.version,
            now=case.now,
        )

    def _rules(self, pool_uid: str) -> object:
        """What its pods are refused under, to be compared."""
        pool = self._ledger.pools.get(pool_uid)
        return (pool.record.rules, self._ledger.quotas.get(pool.namespace)) if pool and pool.record else None

    def _pool_changed(self, pool_uid: str) -> None:
        self._retry.changed(pool_uid, self._rules(pool_uid))

    def _waits(self, wanted: Demand) -> bool:
        """Whether this pod, or one that wants the same, was not placed and is still there."""
        ledger = self._ledger
        pool = ledger.pools.get(wanted.pool)
        return (
            ledger.picks.is_unpicked(wanted.uid)
            or ledger.picks.refused_alike(wanted.pool, wanted.shape, placeholder=wanted.placeholder)
            or (not wanted.placeholder and pool is not None and pool.pending > 0)
        )

    async def _claim_again(self, wanted: Demand, sent: Sent) -> bool:
        """Claim the node that a pod like this one would get now; whether that was acknowledged. A node whose other
        pods must be known is read first."""
        until = asyncio.get_running_loop().time() + self._deadline
        for _ in range(2):
            if not self._context.may_claim(wanted):
                return False
            case = self._context.case(wanted)
            self._denied.expire(case.now)
            choice = choose(case, sent, excluded=self._denied, hold=self._hold.holds(case))
            if choice is None or not case.claims:
                return False
            read = must_read(case, choice.node)
            if not read:
                self._claim_ahead(case, choice.ahead)
            await self._claims.open(
                choice.node, wanted.pool, write=not read, read=read, until=until, alone=case.served is not None
            )
            if not read:
                return True
        return False

    def _place(self, case: Case, call: Call, choice: Choice) -> FilterResult:
        if not call.record.placeholder:
            self._victims.taken(choice.node.name)
        self._nominator.placed(case, call.record, call.sent)
        return self._answer(case, call, choice)

    def _answer(self, case: Case, call: Call, choice: Choice) -> FilterResult:
        self._hold.placed(case.demand.uid)
        node, nodes = choice.node, case.ledger.nodes
        also = [name for name in choice.also if name in nodes and _may_answer(case, nodes[name])]
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
        if call.refused:
            raise TryAgain(call.refused)
        case.ledger.picks.forget(case.demand.uid)
        if case.served and case.claims:
            read = partial(must_read, case)
            self._claims.ahead(
                unserved(case, call.sent), case.demand.pool, read=read, wary=self._is_wary(case), alone=True
            )
        reasons = refusals(case, dict.fromkeys(call.sent.all()), hold=call.holds, denied=self._denied)
        if not reasons:
            raise TryAgain("the call names no node")
        reasons |= {name: NO_ROOM for name in call.crowded if reasons.get(name) == CHANGED}
        for name, reason in reasons.items():
            if passes(case, name, reason):
                raise TryAgain(reason)
        said = refusal(reasons)
        if call.holds and HELD_BACK in reasons.values():
            self._retry.later(case.demand, call.sent, self._hold.left(case), self._rules(case.demand.pool))
        elif case.claims:
            self._retry.later(case.demand, Among(said.reasons), under=self._rules(case.demand.pool))
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


def _may_answer(case: Case, node: Node) -> bool:
    """Whether the node may be answered, and is one where a pod of this pool may go."""
    return answerable(case, node) and not drop(case, node)


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
