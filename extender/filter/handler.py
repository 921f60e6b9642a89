"""The three verbs: decode, decide, claim, answer.

What is never done: answering a node whose claim and label the API server has not acknowledged; answering "all fit" for
a pod of ours; writing anything for a pod that is not.

Calls come one at a time from a scheduler, but replays, two schedulers and claims ahead overlap; everything here is
confined to one loop, and between two awaits the ledger does not change.
"""

import asyncio
import logging
import math
import time
from collections.abc import Collection
from functools import partial
from typing import Final

from ateplace import errors
from ateplace.clock import boottime
from ateplace.cluster.feed import View
from ateplace.cluster.records import PodRecord, pod_record
from ateplace.cluster.state import Node, Warmth
from ateplace.kube import Kube
from ateplace.kube.objects import Pod
from ateplace.settings import Settings
from extender import decision_log, metrics
from extender.claim_writer import Claims
from extender.context import Cases, Unfit
from extender.demand import Demand, demand
from extender.filter.choose import Choice, choose, refusals
from extender.filter.crowded_nodes import Tight
from extender.filter.hold import Hold
from extender.filter.placeholders import Names as Sent
from extender.filter.refusal_cache import Refusal, Refusals, refusal
from extender.filter.retry import Among, Waiting
from extender.fit import (
    COMING,
    FILLED,
    HELD_BACK,
    NO_ROOM,
    PROMISED,
    UNCLAIMED,
    Case,
    answerable,
    claims,
    drop,
    no_room,
    unread,
)
from extender.preempt.evict import Evictions
from extender.preempt.handler import Preempting
from extender.prioritize import scores
from extender.protocol import (
    ExtenderArgs,
    FilterResult,
    HostPriority,
    Names,
)
from extender.rooms import Rooms

log = logging.getLogger(__name__)

REPLAY_SECONDS: Final = 0.5
"""The same pod in the same version so soon is the same scheduling cycle; a failed attempt comes back after a second."""

LOOKS: Final = 32
"""How many nodes one call looks at before it gives up for now; the next call goes on from there (`crowded_nodes`)."""
WARY_SECONDS: Final = 300.0
"""For how long, after a claimed node turned out to be full of others' pods, nodes are looked at before they are
claimed: a claim that is of no use brings an atelet, and that may cost somebody a pod."""

GONE: Final = "the pod has been deleted"


class Verbs:
    def __init__(self, kube: Kube, view: View, settings: Settings) -> None:
        extender = settings.extender
        self._rooms = Rooms()
        self._cases = Cases(kube, view, settings, self._rooms)
        self._view = view
        self._pool_label = settings.substrate.pool_label
        self._deadline = extender.deadline
        self.hold = Hold(extender.hold_warm_seconds if extender.placement == "hold-warm" else 0.0, self._open_for)
        self._waiting = Waiting(self._waits, self._wake)
        self._refusals = Refusals()
        self._tight = Tight()
        self._under_way: dict[str, asyncio.Event] = {}
        """Filter's calls by pod UID."""
        self._wary = -math.inf
        """Until when."""
        self.ring = decision_log.Ring(extender.decisions)
        self.claims = Claims(kube, view.ledger, settings.substrate, deadline=extender.deadline)
        evictions = Evictions(kube, view, self._rooms)
        self.preempt = Preempting(self._cases, self.claims, evictions, self.ring, settings).preempt
        self.blind = self._cases.blind

    async def close(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        self.hold.close()
        self._waiting.close()
        await self.claims.close()

    async def filter(self, args: ExtenderArgs) -> FilterResult:
        """One node (or, for a pod with preferences, several), each claimed; or why not."""
        pod, sent = args.pod, args.names
        if pod is None or not pod.metadata.uid:
            return _bad("the call has no Pod")
        if sent is None:
            return _bad("the call has no NodeNames: set nodeCacheCapable")
        record = pod_record(pod, self._pool_label)
        if record is None:
            metrics.CALLS.labels("filter", "passed").inc()
            return FilterResult(node_names=sent.all())
        until = asyncio.get_running_loop().time() + self._deadline
        while before := self._under_way.get(record.uid):
            # Two at once would take each other's pick for one that failed.
            async with asyncio.timeout_at(until):
                await before.wait()
        over = self._under_way[record.uid] = asyncio.Event()
        try:
            return await self._filter(pod, record, sent, until)
        except BaseException as error:
            self._view.ledger.forget(pod.metadata.uid)
            if not isinstance(error, Unfit | errors.KubeError | TimeoutError):
                raise
            reason = str(error) or f"the API server took longer than {self._deadline:g} s"
            metrics.CALLS.labels("filter", "error").inc()
            self.ring.add(_key(record), "filter", f"error: {reason}")
            log.warning("filter failed", extra={"pod": _key(record), "reason": reason})
            return FilterResult(error=f"ateplace: {reason}")
        finally:
            del self._under_way[record.uid]
            over.set()

    async def _filter(self, pod: Pod, record: PodRecord, sent: Names, until: float) -> FilterResult:
        ledger = self._view.ledger
        begun = boottime()
        ledger.expire(time.monotonic())
        known = record.uid in ledger.pods
        wanted = demand(pod, record, await self._cases.pool(record, until))
        case = self._cases.make(wanted, begun)
        if node := self._replayed(case, sent):
            return self._answer(case, record, Choice(node))
        ledger.failed(wanted.uid)
        tried: set[str] = set()
        refused = ""
        looks = 0
        hold = self.hold.may(case)
        if not hold and (before := self._refusals.again(case, sent)):
            ledger.refused(record.uid, case.now)
            return self._say(record, before)
        tight = self._tight.unread(case)
        while choice := (
            choose(case, sent, excluded={*tried, *tight}, hold=hold)
            or (choose(case, sent, excluded=tried, hold=hold) if tight else None)
        ):
            if known and record.uid not in ledger.pods:
                raise Unfit(GONE)  # it was deleted while we waited: nobody would speak of its pick again
            node = choice.node
            wary = case.now < self._wary
            if wary and unread(case, node):
                looks += 1
                if looks > LOOKS and node.name in tight:
                    break  # all others were looked at lately
                if looks > LOOKS:
                    raise Unfit(f"no room beside atelet on the {LOOKS} nodes looked at; there are more")
                await self.claims.open(node, wanted.pool, write=False, read=True, until=until)
                case = self._cases.make(wanted, begun)
                tight.discard(node.name)
                if no_room(case, node) in FILLED:
                    self._tight.found(node.name, case.now)
                continue
            self._assume(case, node)
            ahead = self.claims.ahead(choice.ahead, wanted.pool, read=partial(unread, case), wary=wary)
            write, read = not answerable(case, node), unread(case, node)
            also = [one for name in choice.also if not answerable(case, one := ledger.nodes[name])]
            if not (write or read or also):
                return self._place(case, record, choice, ahead)
            tried.add(node.name)
            try:
                await self.claims.open(node, wanted.pool, write=write, read=read, until=until, also=also)
            except (errors.NotFound, errors.Conflict, errors.Invalid) as error:
                refused = f"{node.name} cannot be claimed: {error}"
                log.info("node cannot be claimed", extra={"node": node.name, "reason": str(error)})
                ledger.forget(wanted.uid)
                continue
            # Time has passed: decide on this node again, by what is known now, without the pick itself.
            ledger.forget(wanted.uid)
            case = self._cases.make(wanted, begun)
            full = no_room(case, node)
            if known and record.uid not in ledger.pods:
                raise Unfit(GONE)
            if _fits(case, node) and not full:
                self._assume(case, node)
                return self._place(case, record, choice, ahead)
            if full in FILLED:
                self._wary = case.now + WARY_SECONDS
                self._tight.found(node.name, case.now)
        if refused:
            raise Unfit(refused)  # a refusal would let the scheduler preempt somebody elsewhere
        return self._refuse(case, record, sent, hold=hold, pure=not (tried or looks), tight=tight)

    async def prioritize(self, args: ExtenderArgs) -> list[HostPriority]:
        """Errors are swallowed by the scheduler, so when in doubt all are equal."""
        sent = args.names.all() if args.names else []
        record = pod_record(args.pod, self._pool_label) if args.pod else None
        if args.pod is None or record is None or self._view.reason() or not self._view.ledger.templates:
            metrics.CALLS.labels("prioritize", "passed").inc()
            return [HostPriority(name, 0) for name in sent]
        metrics.CALLS.labels("prioritize", "answered").inc()
        return scores(self._cases.make(demand(args.pod, record, self._view.ledger.pool_of(record))), sent)

    def _assume(self, case: Case, node: Node) -> None:
        wanted = case.demand
        case.ledger.assume(
            wanted.uid,
            wanted.pool,
            node.name,
            wanted.shape,
            placeholder=wanted.placeholder,
            version=wanted.version,
            now=case.now,
        )

    def _replayed(self, case: Case, sent: Names) -> Node | None:
        """The node we have just answered, when the scheduler asks again within the same cycle."""
        attempt = case.ledger.attempts.get(case.demand.uid)
        if attempt is None or not attempt.node or attempt.version != case.demand.version:
            return None
        if case.now - attempt.at > REPLAY_SECONDS or attempt.node not in sent:
            return None
        node = case.ledger.nodes[attempt.node]
        return node if _fits(case, node) else None

    def _open_for(self, wanted: Demand, sent: Sent) -> None:
        """Claim the node that a pod of this pool would get now, if an ateom still waits for one."""
        pool = self._cases.claimant(wanted)
        if pool is None or not pool.pending:
            return
        case = self._cases.make(wanted)
        if choice := choose(case, sent):
            wary = case.now < self._wary
            self.claims.ahead((choice.node, *choice.ahead), wanted.pool, read=partial(unread, case), wary=wary)

    def _waits(self, wanted: Demand) -> bool:
        """Whether this pod, or one that wants the same, was refused and is still there."""
        ledger = self._view.ledger
        return ledger.is_adrift(wanted.uid) or ledger.waits(wanted.pool, wanted.shape, placeholder=wanted.placeholder)

    def _wake(self, wanted: Demand, sent: Sent) -> bool:
        """Claim the node that a refused pod would get now, if there is one. One whose other pods must be read first is
        read, and claimed the next time."""
        if self._cases.claimant(wanted) is None:
            return False
        case = self._cases.make(wanted)
        choice = choose(case, sent, hold=self.hold.may(case))
        if choice is None:
            return False
        read = unread(case, choice.node)
        self.claims.ahead((choice.node,), wanted.pool, read=lambda _: read, wary=True)
        return not read

    def _place(self, case: Case, record: PodRecord, choice: Choice, ahead: Collection[str]) -> FilterResult:
        if not record.placeholder:
            self._rooms.taken(choice.node.name)
        return self._answer(case, record, choice, ahead)

    def _answer(self, case: Case, record: PodRecord, choice: Choice, ahead: Collection[str] = ()) -> FilterResult:
        self.hold.placed(case.demand.uid)
        node, nodes = choice.node, case.ledger.nodes
        also = [name for name in choice.also if name in nodes and _fits(case, nodes[name])]
        warmth = Warmth.READY if node.atelet_ready else Warmth.CLAIMED if node.atelets else Warmth.COLD
        metrics.CALLS.labels("filter", "answered").inc()
        if not record.placeholder:
            metrics.PICKS.labels(warmth.name.lower()).inc()
        notes = (
            *(f"{name}: {warmth.name.lower()}, {fullness:.0%} full" for name, warmth, fullness in choice.ranking),
            *((f"claimed ahead: {', '.join(ahead)}",) if ahead else ()),
            *((f"also answered: {', '.join(also)}",) if also else ()),
        )
        self.ring.add(_key(record), "filter", f"picked {node.name}", notes)
        return FilterResult(node_names=[node.name, *also])

    def _refuse(
        self, case: Case, record: PodRecord, sent: Names, *, hold: bool, pure: bool, tight: Collection[str]
    ) -> FilterResult:
        """`pure`: nothing was tried, so the same question has the same answer. `tight`: nodes that had no room lately,
        and were not looked at again."""
        case.ledger.forget(case.demand.uid)
        reasons = refusals(case, dict.fromkeys(sent.all()), hold=hold)
        if not reasons:
            raise Unfit("the call names no node")
        reasons |= {name: NO_ROOM for name in tight if reasons.get(name) == UNCLAIMED}
        # No reason to preempt anybody; nor has a placeholder that claims nothing a claim that would bring it back.
        for passing in (COMING, UNCLAIMED, *(() if claims(case) else (PROMISED,))):
            if passing in reasons.values():
                raise Unfit(passing)
        said = refusal(reasons)
        if hold and HELD_BACK in reasons.values():
            self.hold.refused(case, sent)
        elif claims(case):
            self._waiting.refused(case.demand, Among(said.reasons))
        if pure and not hold and PROMISED not in reasons.values():
            self._refusals.give(case, said)
        if not hold:
            case.ledger.refused(case.demand.uid, case.now)
        return self._say(record, said)

    def _say(self, record: PodRecord, said: Refusal) -> FilterResult:
        metrics.CALLS.labels("filter", "refused").inc()
        for reason, count in said.counts:
            metrics.DROPPED.labels(reason).inc(count)
        self.ring.add(_key(record), "filter", f"refused all {len(said.reasons)} nodes", said.notes)
        return FilterResult(node_names=[], unresolvable=said.reasons)


def _fits(case: Case, node: Node) -> bool:
    """Whether the node may be answered, and is one where a pod of this pool may go."""
    return answerable(case, node) and not drop(case, node)


def _bad(reason: str) -> FilterResult:
    metrics.CALLS.labels("filter", "bad").inc()
    return FilterResult(error=reason)


def _key(record: PodRecord) -> str:
    return f"{record.namespace}/{record.name}"
