"""Claimed before bound, for any interleaving: an extender and a reconciler that are frozen, deaf or late at any point.

Both work from ledgers of their own, to which events come when they come. The rules under test are the real ones:
`claims.answerable` and `plan.decide`. The API server, the scheduler and the steps between them are a few lines.
"""

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from msgspec import structs

from ateplace.cluster.claims import answerable
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import NodeRecord, PodRecord, PoolRecord
from ateplace.reconciler.claims.plan import Plan, decide
from ateplace.reconciler.claims.unbound import Unbound
from ateplace.settings import Reconciler, Settings
from tests.unit import cluster

LINGER = 8.0
PODS = ["p0", "p1"]
RULES = Settings(reconciler=Reconciler(linger=LINGER, unbound_wait=1000.0))


class Call(NamedTuple):
    """One of filter's, which waits for its write."""

    pod: str
    begun: float
    sent: float
    value: str


Event = NodeRecord | PodRecord | PoolRecord | str
"""What there is now; a UID that is gone."""


class Machine(RuleBasedStateMachine):
    """One node, one pool. Time passes only where a rule says so: nothing that is under way is in a hurry.

    Pods are made for the pool also when it is being deleted or gone: an admission webhook may be late, too.
    """

    window = LINGER / 2
    """For how long the extender answers by a write of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.version = 0.0, 1
        self.node = cluster.node("n1")
        self.pods: dict[str, PodRecord] = {}
        self.extender, self.reconciler = Ledger(), Ledger()
        for ledger in (self.extender, self.reconciler):
            ledger.pool_seen(cluster.pool(), 0)
            ledger.node_seen(self.node, 0)
        self.pool: PoolRecord | None = cluster.pool()
        self.events: dict[str, list[Event]] = {"extender": [], "reconciler": []}
        self.call: Call | None = None
        self.written: NodeRecord | None = None
        self.answered: set[str] = set()
        self.release: Plan | None = None
        self.backup: tuple[int, NodeRecord, dict[str, PodRecord], PoolRecord | None]
        self.etcd_is_backed_up()

    def tell(self, event: Event) -> None:
        for queue in self.events.values():
            queue.append(event)

    def write(self, value: str | None) -> None:
        self.version += 1
        claims = {} if value is None else {"A": value}
        self.node = structs.replace(self.node, version=self.version, claims=claims, labelled=bool(claims))
        self.tell(self.node)

    @rule(seconds=st.sampled_from([1.0, LINGER / 2, LINGER, 10 * LINGER]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(who=st.sampled_from(["extender", "reconciler"]), most=st.sampled_from([1, 2, 99]))
    def events_arrive(self, who: str, most: int) -> None:
        queue, ledger = self.events[who], self.extender if who == "extender" else self.reconciler
        for event in queue[:most]:
            if isinstance(event, NodeRecord):
                ledger.node_seen(event, self.now)
            elif isinstance(event, PodRecord):
                ledger.pod_seen(event, self.now)
            elif isinstance(event, PoolRecord):
                ledger.pool_seen(event, self.now)
            elif event == "A":
                ledger.pool_gone(event, self.now)
            else:
                ledger.pod_gone(event, self.now)
        del queue[:most]

    @rule()
    def etcd_is_backed_up(self) -> None:
        self.backup = (self.version, self.node, dict(self.pods), self.pool)

    @rule()
    def etcd_is_restored_and_every_process_starts_anew(self) -> None:
        """Versions are given out a second time, and what was written since the backup is gone."""
        self.version, self.node, pods, self.pool = self.backup
        self.pods = dict(pods)
        self.extender, self.reconciler = Ledger(), Ledger()
        for ledger in (self.extender, self.reconciler):
            if self.pool:
                ledger.pool_seen(self.pool, self.now)
            ledger.node_seen(self.node, self.now)
            for pod in self.pods.values():
                ledger.pod_seen(pod, self.now)
        self.events = {"extender": [], "reconciler": []}
        self.call = self.written = self.release = None
        self.answered = set()

    @rule(uid=st.sampled_from(PODS))
    def a_pod_comes_or_goes(self, uid: str) -> None:
        if self.pods.pop(uid, None):
            self.answered.discard(uid)
            self.tell(uid)
        else:
            self.pods[uid] = cluster.pod(uid)
            self.tell(self.pods[uid])

    @precondition(lambda self: self.pool)
    @rule(who=st.sampled_from([None, "reconciler"]))
    def the_pool_is_deleted_and_then_gone(self, who: str | None) -> None:
        assert self.pool
        self.pool = None if self.pool.deleting else structs.replace(self.pool, deleting=True)
        self.tell(self.pool or "A")
        if who:
            self.events_arrive(who, 99)

    @rule(seconds=st.sampled_from([0.0, LINGER / 2 - 1, LINGER]))
    def all_pods_go_and_the_reconciler_has_time_for_everything(self, seconds: float) -> None:
        """A sequence of other rules that chance alone would rarely make."""
        for uid in list(self.pods):
            self.a_pod_comes_or_goes(uid)
        self.events_arrive("reconciler", 99)
        self.time_passes(seconds)
        if not self.release:
            self.the_reconciler_decides_to_release_and_reads()
        if self.release:
            self.the_reconcilers_removal_arrives()

    @precondition(lambda self: not self.call)
    @rule(heard=st.booleans())
    def a_pod_is_placed_at_once(self, heard: bool) -> None:
        """The same."""
        self.filter_is_asked(self.a_new_pod())
        if self.call:
            self.the_extenders_write_is_taken()
            self.the_extender_hears_that_it_was_and_answers()
        if self.answered:
            self.the_scheduler_binds()
        if heard:
            self.events_arrive("extender", 99)

    def a_new_pod(self) -> str:
        uid = PODS[0]
        if uid in self.pods:
            self.a_pod_comes_or_goes(uid)
        self.a_pod_comes_or_goes(uid)
        return uid

    @precondition(lambda self: not self.call)
    @rule(uid=st.sampled_from(PODS))
    def filter_is_asked(self, uid: str) -> None:
        pool = self.extender.pools.get("A")
        if uid not in self.pods or self.pods[uid].node or not (pool and pool.record) or pool.record.deleting:
            return
        if not self.answer(uid, self.now):
            self.call = Call(uid, self.now, self.now, f"{self.now}-{self.version}")

    def answer(self, uid: str, begun: float) -> bool:
        tenant = self.extender.nodes["n1"].pools.get("A")
        if answerable(tenant, min(begun, self.now - self.window)):
            self.answered.add(uid)
            return True
        return False

    @precondition(lambda self: self.call and not self.written)
    @rule()
    def the_extenders_write_is_taken(self) -> None:
        assert self.call
        self.write(self.call.value)
        self.written = self.node

    @precondition(lambda self: self.written)
    @rule()
    def the_extender_hears_that_it_was_and_answers(self) -> None:
        call, node = self.call, self.written
        assert call and node
        self.extender.claims.acknowledge(
            "n1", "n1-uid", "A", value=call.value, version=node.version, sent=call.sent, now=self.now
        )
        self.call = self.written = None
        if call.pod in self.pods and not self.pods[call.pod].node:
            self.answer(call.pod, call.begun)

    @precondition(lambda self: self.answered)
    @rule()
    def the_scheduler_binds(self) -> None:
        uid = min(self.answered)
        self.answered.discard(uid)
        assert self.node.claims and self.node.labelled, f"{uid} is bound to a node that was released"
        self.pods[uid] = structs.replace(self.pods[uid], node="n1")
        self.tell(self.pods[uid])

    @precondition(lambda self: not self.release)
    @rule()
    def the_reconciler_decides_to_release_and_reads(self) -> None:
        plan = decide(self.reconciler, Unbound(0.0), "n1", self.now, RULES)
        if plan and plan.release and not self.pods:  # none on the node and none unbound, by a consistent read
            self.release = plan

    @precondition(lambda self: self.release)
    @rule()
    def the_reconcilers_removal_arrives(self) -> None:
        assert self.release
        if self.release.version == self.node.version:
            self.write(None)
        self.release = None


TestClaimedBeforeBound = pytest.mark.timeout(180)(Machine.TestCase)
TestClaimedBeforeBound.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


class LingersThatDiffer(Machine):
    """The extender's linger is almost twice the reconciler's: as far apart as neither the alert nor doctor minds."""

    window = LINGER - 0.5


TestLingersThatDiffer = pytest.mark.timeout(180)(LingersThatDiffer.TestCase)
TestLingersThatDiffer.settings = TestClaimedBeforeBound.settings


@pytest.mark.parametrize(("window", "holds"), [(LINGER - 0.5, True), (LINGER + 0.5, False)])
def test_an_extenders_linger_of_more_than_twice_the_reconcilers_breaks_the_rule(window: float, holds: bool) -> None:
    """Why doctor fails, and an alert fires, from there on: the extender stood still while its claim was released."""
    machine = Machine()
    machine.window = window
    machine.a_pod_is_placed_at_once(heard=True)
    machine.all_pods_go_and_the_reconciler_has_time_for_everything(LINGER)
    assert not machine.node.claims, "released"
    machine.filter_is_asked(machine.a_new_pod())
    assert bool(machine.call) is holds, "it writes first"
    if machine.answered:
        with pytest.raises(AssertionError, match="bound to a node that was released"):
            machine.the_scheduler_binds()
