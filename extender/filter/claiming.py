"""From a candidate to a claimed node: the best node that is left, claimed and read, or why the next one is tried.

What is learned about nodes on the way is remembered for minutes, for later calls:

    denied    the API server refuses to have the node claimed: it is not tried
    full      its other pods were read, and it had no room beside atelet: it is read again when all others were. What
              was read is believed for a minute, one call reads a few nodes only, and a pod that gets an error comes
              back every ten seconds: among hundreds of nodes that others have filled it would read the first for ever
    read first   a claimed node turned out to be full of others' pods: nodes are read before they are claimed, because
              a claim that is of no use brings an atelet, which may preempt another pod
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import partial
from math import inf
from typing import Final

from msgspec import Struct, field

from ateplace import errors
from ateplace.cluster.expiring import Expiring
from ateplace.cluster.records import PodRecord
from ateplace.cluster.state import Node
from ateplace.extender.claim_writer import ClaimWriter
from ateplace.extender.context import Case, Context, Sent, TryAgain
from ateplace.extender.demand import Demand
from ateplace.extender.filter.choose import Choice, choose
from ateplace.extender.filter.refused_pods import HoldWarm
from ateplace.extender.fit import FILLED, answerable, drop, must_read, no_room
from ateplace.extender.protocol import Names
from ateplace.kube.objects import Pod

log = logging.getLogger(__name__)

READS: Final = 32
"""How many nodes one call reads before it gives up for now; the next call goes on from there."""
FULL_SECONDS: Final = 600.0
READ_FIRST_SECONDS: Final = 300.0
DENIALS: Final = 4
"""How many claims that the API server denies one call tries."""
DENIED_SECONDS: Final = 60.0

GONE: Final = "the pod has been deleted"


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
    nominated: str = ""
    """The node that was chosen for the pod before it was asked about."""
    holds: bool = False
    """Whether the pod is to wait for room on a warm node (`hold-warm`)."""
    tried: set[str] = field(default_factory=set)
    full: set[str] = field(default_factory=set)
    """Nodes that had no room lately: read again when there are no others."""
    reads: int = 0
    denials: int = 0
    not_claimed: str = ""
    """Why a node could not be claimed, when that passes by itself."""
    ahead: list[str] = field(default_factory=list)
    """Nodes that are claimed for the pods that come next."""


class Claiming:
    def __init__(self, context: Context, writer: ClaimWriter, hold: HoldWarm, *, deadline: float) -> None:
        self._context = context
        self._writer = writer
        self._hold = hold
        self._deadline = deadline
        self.denied: Expiring[str, None] = Expiring(DENIED_SECONDS)
        self._full: Expiring[str, None] = Expiring(FULL_SECONDS)
        self._read_first_until = -inf

    def candidate(self, case: Case, call: Call) -> Choice | None:
        """The best node that is left; None when no node will do."""
        if call.watched and call.record.uid not in case.ledger.pods:
            raise TryAgain(GONE)  # deleted while we waited: no further event would remove its pick
        nominated = case.ledger.nodes.get(call.nominated)
        if nominated and call.nominated not in call.tried and not (drop(case, nominated) or no_room(case, nominated)):
            return Choice(nominated)
        self.denied.expire(case.now)
        if not call.tried and not call.reads:
            call.full = self._still_full(case)
        excluded = {*call.tried, *self.denied}
        choice = choose(case, call.sent, excluded={*excluded, *call.full}, hold=call.holds)
        if choice is None and call.full:
            choice = choose(case, call.sent, excluded=excluded, hold=call.holds)
        if choice and call.denials >= DENIALS:
            raise TryAgain(f"the API server refuses to have {call.denials} nodes claimed; there are more")
        if choice and self._reads_first(case) and must_read(case, choice.node) and call.reads >= READS:
            if choice.node.name in call.full:
                return None  # all others were read lately
            raise TryAgain(f"no room beside atelet on the {READS} nodes looked at; there are more")
        return choice

    async def claim(self, case: Case, call: Call, choice: Choice) -> tuple[Case, bool]:
        """Claim the node unless it may be answered as it is, and read its pods if they must be known; what is known
        afterwards, and whether it may be answered."""
        node, wanted = choice.node, case.demand
        if self._reads_first(case) and must_read(case, node):
            return await self._read(case, call, node), False
        _assume(case, node)
        call.ahead = self.ahead(case, choice.ahead)
        write, read = not answerable(case, node), must_read(case, node)
        also = [one for name in choice.also if not answerable(case, one := case.ledger.nodes[name])]
        if not (write or read or also):
            return case, True
        call.tried.add(node.name)
        try:
            await self._writer.open(
                node, wanted.pool, write=write, read=read, until=call.until, also=also, alone=case.served is not None
            )
        except (errors.NotFound, errors.Conflict, errors.Invalid, errors.Forbidden) as error:
            self._not_claimed(call, node.name, error)
            case.ledger.picks.forget(wanted.uid)
            return self._context.case(wanted, call.begun), False
        # Time has passed: decide on this node again, by what is known now, without the pick itself.
        case.ledger.picks.forget(wanted.uid)
        case = self._context.case(wanted, call.begun)
        full = no_room(case, node)
        if call.watched and wanted.uid not in case.ledger.pods:
            raise TryAgain(GONE)
        if full in FILLED:
            self._read_first_until = case.now + READ_FIRST_SECONDS
            self._full.put(node.name, None, case.now)
        if full or not may_answer(case, node):
            return case, False
        _assume(case, node)
        return case, True

    def ahead(self, case: Case, nodes: Iterable[Node]) -> list[str]:
        """Begin to claim nodes for the pods that come next; which ones are being claimed."""
        read, alone = partial(must_read, case), case.served is not None
        return self._writer.ahead(nodes, case.demand.pool, read=read, read_first=self._reads_first(case), alone=alone)

    async def again(self, wanted: Demand, sent: Sent) -> bool:
        """Claim the node that a pod like this one would get now; whether that was acknowledged. A node whose other
        pods must be known is read first."""
        until = asyncio.get_running_loop().time() + self._deadline
        for _ in range(2):
            if not self._context.may_claim(wanted):
                return False
            case = self._context.case(wanted)
            self.denied.expire(case.now)
            choice = choose(case, sent, excluded=self.denied, hold=self._hold.holds(case))
            if choice is None or not case.claims_node:
                return False
            read = must_read(case, choice.node)
            if not read:
                self.ahead(case, choice.ahead)
            await self._writer.open(
                choice.node, wanted.pool, write=not read, read=read, until=until, alone=case.served is not None
            )
            if not read:
                return True
        return False

    async def _read(self, case: Case, call: Call, node: Node) -> Case:
        """Learn what others have on a node before it is claimed."""
        call.reads += 1
        await self._writer.open(node, case.demand.pool, write=False, read=True, until=call.until)
        case = self._context.case(case.demand, call.begun)
        call.full.discard(node.name)
        if no_room(case, node) in FILLED:
            self._full.put(node.name, None, case.now)
        return case

    def _not_claimed(self, call: Call, name: str, error: errors.KubeError) -> None:
        log.info("node cannot be claimed", extra={"node": name, "reason": str(error)})
        if isinstance(error, errors.NotFound | errors.Conflict):
            call.not_claimed = f"{name} cannot be claimed: {error}"
        else:
            call.denials += 1
            self.denied.put(name, None, time.monotonic())

    def _still_full(self, case: Case) -> set[str]:
        """Nodes that had no room, and about which nothing more recent is known."""
        self._full.expire(case.now)
        nodes = case.ledger.nodes
        return {name for name in self._full if name in nodes and must_read(case, nodes[name])}

    def _reads_first(self, case: Case) -> bool:
        return case.now < self._read_first_until


def may_answer(case: Case, node: Node) -> bool:
    """Whether the node may be answered, and is one where a pod of this pool may go."""
    return answerable(case, node) and not drop(case, node)


def _assume(case: Case, node: Node) -> None:
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
