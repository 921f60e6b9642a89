"""The ledger against a naive model that recounts everything, and the rules that the roles lean on."""

from collections import Counter
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from ateplace.cluster import claims as claims_
from ateplace.cluster.ledger import EXPIRY, UNSEEN, Ledger
from ateplace.cluster.records import AteletRecord, NodeRecord, PodRecord, PoolRecord
from ateplace.cluster.resources import MEMORY, Shape
from ateplace.cluster.state import Reading, State, Warmth
from tests.unit import cluster

SMALL = Shape((("cpu", 100),), (("cpu", 100), ("memory", 200)))
LARGE = Shape((("cpu", 1000), ("gpu", 1)), (("cpu", 1000), ("gpu", 1), ("memory", 200)))
REPLY = 5.0
"""Half a linger, where every step takes a second."""


def node(name: str = "n1", uid: str = "", version: int = 1, **claims: str) -> NodeRecord:
    made = cluster.node(name, *claims, uid=uid, version=version)
    return structs.replace(made, claims=claims, allocatable=(("cpu", 8000), (MEMORY, 8000)))


def pod(uid: str = "p1", on: str = "", pool_uid: str = "A", *, shape: Shape = SMALL, **facts: bool) -> PodRecord:
    return structs.replace(cluster.pod(uid, on, pool_uid, shape=shape), **facts)


def pool(uid: str = "A", name: str = "pool", *, warm: bool = True) -> PoolRecord:
    return structs.replace(cluster.pool(uid, warm=warm), name=name)


def atelet(
    uid: str = "a1", on: str = "n1", *, ready: bool = False, bound: bool = True, daemonset: str = "ds"
) -> AteletRecord:
    return cluster.atelet(on, uid=uid, bound=bound, ready=ready, daemonset=daemonset)


def acknowledge(ledger: Ledger, version: int, *, sent: float = 0.0, value: str = "t") -> None:
    ledger.claims.acknowledge("n1", "n1-uid", "A", value=value, version=version, sent=sent, now=sent)


def answerable(ledger: Ledger, after: float) -> bool:
    return claims_.answerable(ledger.nodes["n1"].pools.get("A"), after)


def idle(ledger: Ledger, now: float) -> float | None:
    """Seconds that pool A's claim on n1 has been unused and unchanged; None when it is in use or there is none."""
    tenant = ledger.nodes["n1"].pools.get("A")
    if tenant is None or tenant.value is None or ledger.claims.live("n1", "A"):
        return None
    return now - max(tenant.changed, tenant.unused)


def missing(ledger: Ledger, name: str) -> list[str]:
    """Pools that have live pods on a node and no claim there."""
    node = ledger.nodes.get(name)
    return (
        [uid for uid, one in node.pools.items() if one.value is None and ledger.claims.live(name, uid)] if node else []
    )


def test_a_claim_goes_from_none_to_fresh_to_held_to_lingering_to_none() -> None:
    ledger = Ledger()
    ledger.node_seen(node(), 0)
    states = [ledger.claims.state("n1", "A")]
    acknowledge(ledger, 2, sent=1)
    states.append(ledger.claims.state("n1", "A"))
    ledger.pod_seen(pod(on="n1"), 2)
    states.append(ledger.claims.state("n1", "A"))
    ledger.pod_gone("p1", 3)
    states.append(ledger.claims.state("n1", "A"))
    ledger.node_seen(node(version=9), 4)
    states.append(ledger.claims.state("n1", "A"))
    assert states == [State.NONE, State.FRESH, State.HELD, State.LINGERING, State.NONE]
    assert not ledger.pools and not ledger.claims.nodes


def test_a_claim_is_idle_since_it_was_last_used_or_last_changed_whichever_is_later() -> None:
    ledger = Ledger()
    ledger.node_seen(node(A="1"), 10)
    assert idle(ledger, 15) == 5
    ledger.pod_seen(pod(on="n1"), 20)
    assert idle(ledger, 25) is None
    ledger.pod_gone("p1", 30)
    assert idle(ledger, 35) == 5
    ledger.node_seen(node(version=2, A="2"), 40)
    assert idle(ledger, 45) == 5
    ledger.node_seen(node(version=3, A="2"), 50)
    assert idle(ledger, 60) == 20


def test_a_node_may_be_answered_only_when_we_wrote_its_claim_lately() -> None:
    ledger = Ledger()
    ledger.node_seen(node(A="1"), 0)
    assert not answerable(ledger, -60), "a claim that another process wrote"
    ledger.pod_seen(pod(on="n1"), 0)
    assert not answerable(ledger, -60), "nor one that a watch shows to be held"
    acknowledge(ledger, 2, sent=5, value="2")
    assert answerable(ledger, 5.0), "our own write"
    assert not answerable(ledger, 5.1), "our own write, too long ago"
    ledger.pod_gone("p1", 6)
    assert answerable(ledger, 4.9), "whoever uses it"


def test_an_event_from_before_our_write_does_not_undo_it_and_a_later_one_does() -> None:
    ledger = Ledger()
    ledger.node_seen(node(version=1), 0)
    acknowledge(ledger, 5)
    ledger.node_seen(node(version=4), 1)
    assert answerable(ledger, -1)
    ledger.node_seen(node(version=6), 2)
    assert not answerable(ledger, -1)


def test_an_acknowledgement_that_arrives_after_the_removal_was_watched_is_ignored() -> None:
    ledger = Ledger()
    ledger.node_seen(node(version=6), 0)
    acknowledge(ledger, 5)
    assert not answerable(ledger, -1)
    assert ledger.claims.state("n1", "A") is State.NONE
    assert not ledger.pools and not ledger.nodes["n1"].pools, "nothing speaks for it"


@pytest.mark.parametrize("quicker", [True, False], ids=["watched before the acknowledgement", "watched after it"])
def test_our_own_write_is_not_answered_once_somebody_has_removed_the_label(quicker: bool) -> None:
    ledger = Ledger()
    ledger.node_seen(node(version=1), 0)
    removed = structs.replace(node(version=6, A="t"), labelled=False)
    if quicker:
        ledger.node_seen(removed, 1)
    acknowledge(ledger, 5)
    if not quicker:
        assert answerable(ledger, -1)
        ledger.node_seen(removed, 1)
    assert not answerable(ledger, -1)


def test_another_node_under_the_same_name_has_none_of_the_old_ones_claims() -> None:
    ledger = Ledger()
    ledger.node_seen(node(), 0)
    acknowledge(ledger, 5)
    ledger.others_read("n1", "n1-uid", Reading((), 0, frozenset(), 0))
    ledger.node_seen(node(uid="other", version=7), 1)
    assert ledger.claims.state("n1", "A") is State.NONE
    assert ledger.nodes["n1"].reading is None
    acknowledge(ledger, 8)
    assert ledger.claims.state("n1", "A") is State.NONE, "the write was to the old node"


def test_succeeded_and_failed_pods_hold_nothing_and_terminating_ones_do() -> None:
    ledger = Ledger()
    ledger.node_seen(node(A="1"), 0)
    ledger.pod_seen(pod(on="n1", terminating=True), 0)
    assert ledger.claims.state("n1", "A") is State.HELD
    ledger.pod_seen(pod(on="n1", finished=True), 1)
    assert ledger.claims.state("n1", "A") is State.LINGERING
    assert ledger.nodes["n1"].pods == 0


def test_a_pod_without_the_uid_label_follows_the_pool_that_has_its_name() -> None:
    ledger = Ledger()
    ledger.pod_seen(pod(on="n1", pool_uid=""), 0)
    assert missing(ledger, "n1") == []
    ledger.pool_seen(pool("A"), 1)
    assert missing(ledger, "n1") == ["A"]
    ledger.pool_seen(pool("B"), 2)
    ledger.pool_gone("A", 3)
    assert missing(ledger, "n1") == ["B"]
    ledger.pool_gone("B", 4)
    assert missing(ledger, "n1") == [] and not ledger.pools


@pytest.mark.parametrize("pool_first", [True, False])
def test_a_pod_with_the_uid_of_a_pool_in_another_namespace_holds_nothing(pool_first: bool) -> None:
    ledger = Ledger()
    forged, real = structs.replace(pod("f", on="n1"), namespace="evil"), pod("r", on="n2")
    if pool_first:
        ledger.pool_seen(pool(), 0)
    ledger.pod_seen(forged, 0)
    ledger.pool_seen(pool(), 0)
    ledger.pod_seen(real, 0)
    assert (ledger.claims.live("n1", "A"), ledger.claims.live("n2", "A"), ledger.pools["A"].pods) == (0, 1, 1)
    assert ledger.owners.pool_of(forged) == "" and ledger.nodes["n1"].pods == 1
    ledger.pool_gone("A", 1)
    for uid in ("f", "r"):
        ledger.pod_gone(uid, 2)
    assert not (ledger.pools or ledger.nodes or ledger.pods)


def test_placeholders_hold_a_claim_only_while_their_pool_is_warm() -> None:
    ledger = Ledger()
    ledger.pool_seen(pool(), 0)
    ledger.node_seen(node(A="1"), 0)
    ledger.pod_seen(pod(on="n1", placeholder=True), 0)
    assert ledger.claims.state("n1", "A") is State.HELD
    ledger.pool_seen(pool(warm=False), 5)
    assert ledger.claims.state("n1", "A") is State.LINGERING
    assert idle(ledger, 7) == 2


def test_a_pick_counts_until_the_watch_shows_where_the_pod_is() -> None:
    ledger = Ledger()
    ledger.node_seen(node(), 0)
    ledger.node_seen(node("n2"), 0)
    ledger.pod_seen(pod(), 0)
    ledger.picks.assume("p1", "A", "n1", SMALL, now=0)
    assert (ledger.nodes["n1"].ateoms, ledger.pools["A"].pending) == (1, 0)
    ledger.pod_seen(pod(on="n2"), 1)
    assert (ledger.nodes["n1"].ateoms, ledger.nodes["n2"].ateoms) == (0, 1)
    assert not ledger.picks.attempts


def test_a_node_that_failed_a_pod_is_remembered_for_it_until_it_is_bound() -> None:
    ledger = Ledger()
    ledger.picks.assume("p1", "A", "n1", SMALL, now=0)
    ledger.picks.failed("p1")
    ledger.picks.assume("p1", "A", "n2", SMALL, now=1)
    ledger.picks.failed("p1")
    ledger.picks.forget("p1")
    assert ledger.picks.attempts["p1"].avoid == ("n1", "n2")
    assert not ledger.pools, "nothing in flight"
    ledger.pod_seen(pod(on="n3"), 2)
    assert not ledger.picks.attempts


def test_a_pick_that_nobody_speaks_of_again_expires() -> None:
    ledger = Ledger()
    ledger.pod_seen(pod("p1"), 0)
    ledger.picks.assume("p1", "A", "n1", SMALL, now=0)
    ledger.picks.assume("p2", "A", "n1", SMALL, now=EXPIRY - 1)
    ledger.picks.assume("p3", "A", "n1", SMALL, now=EXPIRY)
    assert list(ledger.picks.attempts) == ["p2", "p3"]


def test_a_pick_for_a_pod_that_the_watch_never_showed_expires_soon_and_with_any_event() -> None:
    ledger = Ledger()
    ledger.pod_seen(pod("p1"), 0)
    for uid in ("p1", "p2", "p3"):
        ledger.picks.assume(uid, "A", "n1", SMALL, now=0)
    ledger.pod_seen(pod("p3"), UNSEEN - 1)
    ledger.node_seen(node(), UNSEEN)
    assert list(ledger.picks.attempts) == ["p1", "p3"]
    assert ledger.nodes["n1"].pods == 2


def test_an_ateom_that_becomes_a_placeholder_counts_as_one() -> None:
    ledger = Ledger()
    ledger.pool_seen(pool(warm=False), 0)
    ledger.pod_seen(pod(on="n1"), 0)
    ledger.pod_seen(pod(on="n1", placeholder=True), 1)
    assert (ledger.claims.live("n1", "A"), ledger.nodes["n1"].placeholders) == (0, 1)
    ledger.pod_gone("p1", 2)
    assert not ledger.nodes


def test_placeholders_of_a_pool_that_nobody_has_seen_hold_nothing_and_ateoms_do() -> None:
    ledger = Ledger()
    ledger.node_seen(node(A="1"), 0)
    ledger.pod_seen(pod(on="n1", placeholder=True), 0)
    assert ledger.claims.state("n1", "A") is State.FRESH
    ledger.pool_seen(pool(), 5)
    assert ledger.claims.state("n1", "A") is State.HELD
    ledger.pool_gone("A", 10)
    assert idle(ledger, 12) == 2
    ledger.pod_seen(pod("p2", on="n1"), 13)
    assert ledger.claims.state("n1", "A") is State.HELD, "an ateom that its pool has left behind"


def test_a_pick_for_a_pod_that_is_bound_already_counts_for_nothing() -> None:
    ledger = Ledger()
    ledger.pod_seen(pod(on="n1"), 0)
    ledger.picks.assume("p1", "A", "n2", SMALL, now=1)
    assert not ledger.picks.attempts and "n2" not in ledger.nodes


def test_fullness_is_the_largest_share_of_anything() -> None:
    ledger = Ledger()
    ledger.node_seen(node(), 0)
    ledger.pod_seen(pod("p1", on="n1"), 0)
    assert ledger.nodes["n1"].fullness == 200 / 8000
    ledger.pod_seen(pod("p2", on="n1", shape=LARGE), 0)
    assert ledger.nodes["n1"].fullness == 1100 / 8000


def test_atelet_on_its_way_is_warmer_than_none_and_ready_is_warmest() -> None:
    ledger = Ledger()
    ledger.daemonset_seen(cluster.template(), 0)
    ledger.node_seen(node(), 0)
    entry = ledger.nodes["n1"]
    seen = [entry.warmth()]
    acknowledge(ledger, 2)
    seen.append(entry.warmth())
    ledger.atelet_seen(atelet(bound=False), 1)
    assert not entry.atelet_bound
    ledger.atelet_seen(atelet(), 2)
    assert ledger.nodes["n1"].atelet_bound
    assert entry.unready_since == 1
    ledger.atelet_seen(atelet(ready=True), 3)
    seen.append(entry.warmth())
    assert entry.unready_since == inf
    ledger.atelet_gone("a1", 4)
    seen.append(entry.warmth())
    assert seen == [Warmth.COLD, Warmth.CLAIMED, Warmth.READY, Warmth.CLAIMED]


def test_an_atelet_that_fails_and_is_made_anew_does_not_begin_a_new_time() -> None:
    ledger = Ledger()
    ledger.daemonset_seen(cluster.template(), 0)
    ledger.node_seen(node(A="1"), 0)
    entry = ledger.nodes["n1"]
    ledger.atelet_seen(atelet("a1"), 1)
    ledger.atelet_gone("a1", 50)
    ledger.atelet_seen(atelet("a2"), 51)
    assert entry.unready_since == 1
    ledger.atelet_gone("a2", 60)
    ledger.node_seen(node(version=2), 61)
    assert entry.unready_since == inf, "without a claim nobody waits for it"


def test_listeners_hear_of_every_node_and_pool_that_changed() -> None:
    ledger = Ledger()
    heard: Counter[str] = Counter()
    ledger.subscribe(node=lambda name: heard.update([name]), pool=lambda uid: heard.update([uid]))
    ledger.node_seen(node(), 0)
    ledger.pod_seen(pod(on="n1"), 0)
    ledger.pool_seen(pool(), 0)
    assert heard["n1"] >= 2 and heard["A"] >= 2


NODES = ["n1", "n2", "n3"]
POOLS = ["A", "B", "C"]
PODS = [f"p{n}" for n in range(6)]


class LedgerMachine(RuleBasedStateMachine):
    """A toy API server whose events arrive late, and a model that recounts from what has arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.now = 0.0
        self.version = 0
        self.births = 0
        self.server: dict[str, NodeRecord] = {}
        self.queue: dict[str, list[NodeRecord | None]] = {name: [] for name in NODES}
        self.seen: dict[str, NodeRecord] = {}
        self.acked: dict[tuple[str, str], tuple[str, int, str, float]] = {}
        self.pods: dict[str, PodRecord] = {}
        self.pools: dict[str, PoolRecord] = {}
        self.picks: dict[str, tuple[str, str, Shape, bool]] = {}
        self.refused: set[str] = set()
        self.atelets: dict[str, AteletRecord] = {}
        self.versions: dict[str, str] = {}
        """Of Agent Substrate, by node."""
        self.daemonsets: set[str] = set()
        self.forged: set[str] = set()

    def tick(self) -> float:
        self.now += 1
        return self.now

    def put(self, name: str, uid: str, claims: dict[str, str], *, labelled: bool = True) -> NodeRecord:
        self.version += 1
        record = structs.replace(node(name, uid, self.version, **claims), labelled=labelled and bool(claims))
        record = structs.replace(record, labels={"version": self.versions.get(name, "v1")})
        self.server[name] = record
        self.queue[name].append(record)
        return record

    @rule(name=st.sampled_from(NODES))
    def create_or_delete_a_node(self, name: str) -> None:
        if self.server.pop(name, None):
            self.queue[name].append(None)
        else:
            self.births += 1
            self.put(name, f"{name}-{self.births}", {})

    @rule(name=st.sampled_from(NODES), version=st.sampled_from(["v1", "v2"]))
    def a_node_gets_another_version_of_agent_substrate(self, name: str, version: str) -> None:
        if record := self.server.get(name):
            self.versions[name] = version
            self.put(name, record.uid, record.claims)

    @rule(name=st.sampled_from(["v1", "v2"]))
    def an_atelet_daemonset_comes_or_goes(self, name: str) -> None:
        if name in self.daemonsets:
            self.ledger.daemonset_gone(name, self.tick())
        else:
            self.ledger.daemonset_seen(cluster.template(uid=name, selector=(("version", name),)), self.tick())
        self.daemonsets ^= {name}

    @rule(name=st.sampled_from(NODES))
    def somebody_removes_the_label(self, name: str) -> None:
        if record := self.server.get(name):
            self.put(name, record.uid, record.claims, labelled=False)

    @rule(name=st.sampled_from(NODES), pool_uid=st.sampled_from(POOLS))
    def somebody_removes_a_claim(self, name: str, pool_uid: str) -> None:
        record = self.server.get(name)
        if record and pool_uid in record.claims:
            self.put(name, record.uid, {key: value for key, value in record.claims.items() if key != pool_uid})

    @rule(name=st.sampled_from(NODES), pool_uid=st.sampled_from(POOLS), acked=st.booleans())
    def somebody_writes_a_claim(self, name: str, pool_uid: str, acked: bool) -> None:
        record = self.server.get(name)
        if not record:
            return
        value = str(self.version)
        written = self.put(name, record.uid, {**record.claims, pool_uid: value})
        if acked:
            known = self.seen.get(name)
            now = self.tick()
            if known and known.uid == record.uid:
                self.acked[name, pool_uid] = (record.uid, written.version, value, now)
            self.ledger.claims.acknowledge(
                name, record.uid, pool_uid, value=value, version=written.version, sent=now, now=now
            )

    @rule(name=st.sampled_from(NODES))
    def a_node_event_arrives(self, name: str) -> None:
        if not self.queue[name]:
            return
        record = self.queue[name].pop(0)
        old = self.seen.pop(name, None)
        if record is None or (old and old.uid != record.uid):
            self.acked = {key: value for key, value in self.acked.items() if key[0] != name}
        elif record:
            for (on, pool_uid), (uid, version, value, _) in tuple(self.acked.items()):
                if on == name and record.version >= version and not (record.labelled and pool_uid in record.claims):
                    self.acked[on, pool_uid] = (uid, version, value, -inf)
        if record is None:
            self.ledger.node_gone(name, self.tick())
        else:
            if old is None:
                self.refused.clear()
            self.seen[name] = record
            self.ledger.node_seen(record, self.tick())

    @rule(
        uid=st.sampled_from(PODS),
        on=st.sampled_from(["", *NODES]),
        pool_uid=st.sampled_from(["", *POOLS]),
        shape=st.sampled_from([SMALL, LARGE]),
        placeholder=st.booleans(),
        finished=st.booleans(),
        namespace=st.sampled_from(["ns", "evil"]),
        gated=st.sampled_from([False, False, True]),
    )
    def a_pod_is_seen(  # noqa: PLR0917 - hypothesis passes them by keyword
        self,
        uid: str,
        on: str,
        pool_uid: str,
        shape: Shape,
        placeholder: bool,
        finished: bool,
        namespace: str,
        gated: bool,
    ) -> None:
        known = self.pods.get(uid)
        if known:
            pool_uid, shape, on, namespace = known.pool_uid, known.shape, known.node or on, known.namespace
        record = pod(uid, on, pool_uid, shape=shape, placeholder=placeholder, finished=finished)
        record = structs.replace(record, namespace=namespace, gated=gated and not on)
        if (
            known is None
            or finished
            or (known.node, known.placeholder, known.gated)
            != (
                on,
                placeholder,
                record.gated,
            )
        ):
            self.forged.discard(uid)
            if not finished and namespace == "evil" and pool_uid in self.pools:
                self.forged.add(uid)
        if finished:
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = record
        if finished or on:
            self.picks.pop(uid, None)
        if finished or on or (known and (known.placeholder, known.gated) != (placeholder, record.gated)):
            self.refused.discard(uid)
        self.ledger.pod_seen(record, self.tick())

    @rule(uid=st.sampled_from(PODS))
    def a_pod_is_gone(self, uid: str) -> None:
        self.pods.pop(uid, None)
        self.picks.pop(uid, None)
        self.refused.discard(uid)
        self.forged.discard(uid)
        self.ledger.pod_gone(uid, self.tick())

    @rule(uid=st.sampled_from(POOLS), name=st.sampled_from(["pool", "other"]), warm=st.booleans())
    def a_pool_is_seen(self, uid: str, name: str, warm: bool) -> None:
        name = self.pools[uid].name if uid in self.pools else name
        if any(other.name == name and other.uid != uid for other in self.pools.values()):
            return
        if uid not in self.pools:
            self.forged |= {p.uid for p in self.pods.values() if p.pool_uid == uid and p.namespace == "evil"}
        self.pools[uid] = pool(uid, name, warm=warm)
        self.ledger.pool_seen(self.pools[uid], self.tick())

    @rule(uid=st.sampled_from(POOLS))
    def a_pool_is_gone(self, uid: str) -> None:
        self.pools.pop(uid, None)
        self.ledger.pool_gone(uid, self.tick())

    @rule(uid=st.sampled_from(PODS), pool_uid=st.sampled_from(POOLS), on=st.sampled_from(NODES))
    def a_pod_is_picked_a_node(self, uid: str, pool_uid: str, on: str) -> None:
        self.picks.pop(uid, None)
        self.refused.discard(uid)
        if uid not in self.pods or not self.pods[uid].node:
            self.picks[uid] = (pool_uid, on, SMALL, False)
        self.ledger.picks.assume(uid, pool_uid, on, SMALL, now=self.tick())

    @precondition(lambda self: self.picks)
    @rule(how=st.sampled_from(["forget", "failed"]), data=st.data())
    def a_pick_comes_to_nothing(self, how: str, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.picks)))
        del self.picks[uid]
        getattr(self.ledger.picks, how)(uid)

    @rule(
        uid=st.sampled_from(["a1", "a2"]),
        on=st.sampled_from(NODES),
        ready=st.booleans(),
        bound=st.booleans(),
        version=st.sampled_from(["v1", "v2"]),
    )
    def an_atelet_is_seen(self, uid: str, on: str, ready: bool, bound: bool, version: str) -> None:
        self.atelets[uid] = atelet(uid, on, ready=ready and bound, bound=bound, daemonset=version)
        self.ledger.atelet_seen(self.atelets[uid], self.tick())

    @rule(uid=st.sampled_from(["a1", "a2"]))
    def an_atelet_is_gone(self, uid: str) -> None:
        self.atelets.pop(uid, None)
        self.ledger.atelet_gone(uid, self.tick())

    @rule(uid=st.sampled_from(PODS))
    def a_pod_is_refused(self, uid: str) -> None:
        if uid in self.pods and not (self.pods[uid].node or self.pods[uid].gated) and uid not in self.picks:
            self.refused.add(uid)
        self.ledger.picks.note_refusal(uid, self.tick())

    @rule()
    def a_long_time_passes(self) -> None:
        self.refused.clear()
        self.now += EXPIRY
        self.picks.clear()
        self.ledger.picks.expire(self.tick())

    def owner(self, record: PodRecord) -> str:
        if record.uid in self.forged or (record.namespace == "evil" and not record.pool_uid):
            return ""
        if record.pool_uid:
            return record.pool_uid
        return next((uid for uid, known in self.pools.items() if known.name == record.pool), "")

    def claim(self, name: str, pool_uid: str) -> str | None:
        """The newest of what the watch showed and what was acknowledged."""
        record = self.seen.get(name)
        if record is None:
            return None
        uid, version, value, _ = self.acked.get((name, pool_uid), ("", -1, "", -inf))
        if uid == record.uid and version > record.version:
            return value
        return record.claims.get(pool_uid)

    @invariant()
    def it_says_what_a_recount_says(self) -> None:
        ledger = self.ledger
        for name in NODES:
            entry = ledger.nodes.get(name)
            here = [(self.owner(p), p.shape, p.placeholder) for p in self.pods.values() if p.node == name]
            picked = [(owner, shape, ph) for owner, on, shape, ph in self.picks.values() if on == name]
            used: Counter[str] = Counter()
            for _, shape, _ in [*here, *picked]:
                used.update(dict(shape.counted))
            assert {k: v for k, v in (entry.used if entry else {}).items() if v} == dict(used)
            reserved: Counter[str] = Counter()
            for _, shape, ph in [*here, *picked]:
                reserved.update(dict(shape.counted) if ph else {})
            assert {k: v for k, v in (entry.reserved if entry else {}).items() if v} == dict(reserved)
            assert (entry.pods if entry else 0) == len(here) + len(picked)
            assert (entry.ateoms if entry else 0) == sum(not ph for _, _, ph in [*here, *picked])
            fitting = self.daemonsets & set(self.seen[name].labels.values()) if name in self.seen else set()
            there = [one for one in self.atelets.values() if one.node == name and one.daemonset in fitting]
            assert (entry.atelet.daemonsets if entry else frozenset()) == fitting
            assert (entry is not None and entry.atelet_ready) == any(one.ready for one in there)
            assert (entry is not None and entry.atelet_bound) == any(one.bound for one in there)
            claims = {uid: self.claim(name, uid) for uid in POOLS}
            assert (name in ledger.claims.nodes) == any(value is not None for value in claims.values())
            for uid in POOLS:
                warm = uid in self.pools and self.pools[uid].warm
                holders = sum(owner == uid and (warm or not ph) for owner, _, ph in here)
                assert ledger.claims.live(name, uid) == holders
                state = ledger.claims.state(name, uid)
                assert (state is State.NONE) == (claims[uid] is None)
                assert (state is State.HELD) == (claims[uid] is not None and holders > 0)
                acked, tenant = self.acked.get((name, uid)), entry.pools.get(uid) if entry else None
                wrote = acked is not None and acked[3] >= self.now - REPLY
                assert claims_.answerable(tenant, self.now - REPLY) == (claims[uid] is not None and wrote)
        for uid in POOLS:
            found = ledger.pools.get(uid)
            owned = [p for p in self.pods.values() if self.owner(p) == uid]
            assert (found.unbound if found else 0) == sum(not p.node for p in owned)
            placeholders = sum(not p.node and p.placeholder for p in owned)
            assert (found.unbound_placeholders if found else 0) == placeholders
            assert (found.pods if found else 0) == len(owned)
            assert (found.ateoms if found else 0) == sum(not p.placeholder for p in owned)
            assert (found.picks if found else 0) == sum(owner == uid for owner, *_ in self.picks.values())
            waiting = [p for p in owned if not (p.node or p.placeholder or p.gated) and p.uid not in self.picks]
            assert (found.pending if found else 0) == sum(p.uid not in self.refused for p in waiting)

    @invariant()
    def what_is_adrift_is_unbound_and_has_no_pick(self) -> None:
        adrift = [p for p in self.pods.values() if not (p.node or p.gated) and p.uid not in self.picks]
        used: Counter[str] = Counter()
        for record in adrift:
            used.update(dict(record.shape.counted))
        assert {k: v for k, v in self.ledger.picks.unpicked.used.items() if v} == dict(used)
        assert self.ledger.picks.unpicked.pods == len(adrift)
        assert all(self.ledger.picks.is_unpicked(uid) == (uid in {p.uid for p in adrift}) for uid in PODS)

    @invariant()
    def nothing_is_kept_for_what_is_gone(self) -> None:
        claimed = {(name, uid) for name in NODES for uid in POOLS if self.claim(name, uid) is not None}
        owners = {self.owner(p) for p in self.pods.values()}
        on = {p.node for p in self.pods.values()}
        picked = {owner for owner, *_ in self.picks.values()}
        assert set(self.ledger.pools) == ({*self.pools, *owners, *picked} | {uid for _, uid in claimed}) - {""}
        on |= {where for _, where, *_ in self.picks.values()} | {one.node for one in self.atelets.values()}
        assert set(self.ledger.nodes) == {*self.seen, *on} - {""}


TestLedgerMachine = pytest.mark.timeout(120)(LedgerMachine.TestCase)
TestLedgerMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_node_is_told_of_pods_that_belong_to_no_pool() -> None:
    ledger = Ledger()
    told: list[str] = []
    ledger.subscribe(node=told.append)
    ledger.pod_seen(pod("p1", on="n1", pool_uid=""), 0.0)
    assert told == ["n1"]
    ledger.pod_gone("p1", 1.0)
    assert told == ["n1", "n1"]
    ledger.pod_seen(pod("p2", pool_uid=""), 2.0)
    assert told == ["n1", "n1"]


def test_what_was_read_of_a_node_is_kept_no_longer_than_it_is_believed() -> None:
    """It has an entry for every pod there, and pods of others are to cost no memory."""
    known = cluster.ledger(cluster.node("n1"), cluster.node("n2"))
    for name, at in (("n1", 1.0), ("n2", 1.0), ("n1", 30.0)):
        known.others_read(name, f"{name}-uid", Reading((), 0, frozenset(), at))

    def kept(now: float) -> list[str]:
        known.picks.expire(now)
        return [name for name, one in known.nodes.items() if one.reading]

    assert kept(60.9) == ["n1", "n2"]
    assert kept(61.9) == ["n1"]
    known.others_changed("n1")
    assert kept(90.0) == [] and len(known._tables._readings) == 0


def test_what_was_read_of_a_node_goes_with_the_node() -> None:
    known = cluster.ledger(cluster.node("n1"))
    known.others_read("n1", "n1-uid", Reading((), 0, frozenset(), 1.0))
    known.node_gone("n1", 2.0)
    assert len(known._tables._readings) == 0


def test_ateoms_that_a_pool_is_still_to_have_are_awaited_for_some_seconds_after_it_was_scaled_up() -> None:
    known = cluster.ledger(cluster.pool(replicas=3), cluster.pod("1", "n1"), cluster.pod("2"))
    known.pod_seen(cluster.pod("ph", placeholder=True), 0.0)
    entry = known.pools["A"]
    assert entry.awaited(4.9) == 2, "one that waits, one that is to be made"
    assert entry.awaited(5.0) == 1, "it has not come: a quota, a paused Deployment, a controller that is down"
    for uid in ("3", "4"):
        known.pod_seen(cluster.pod(uid), 6.0)
    assert entry.awaited(6.0) == 3, "all that wait, however many it should have"
    known.pool_seen(cluster.pool(replicas=6), 7.0)
    assert entry.awaited(8.0) == 5
    known.pool_seen(cluster.pool(replicas=5), 20.0)
    assert entry.awaited(20.0) == 3, "fewer than before is no rise"
    known.pool_gone("A", 21.0)
    assert entry.awaited(21.0) == 3


def test_ateoms_that_a_pool_of_this_name_left_behind_are_not_awaited_twice() -> None:
    """`--cascade=orphan`, and the pool made again: its Deployment has its pods, which carry the old pool's UID."""
    known = cluster.ledger(cluster.pool("B", replicas=4), *(cluster.pod(str(each)) for each in range(4)))
    assert (known.pools["A"].awaited(9.0), known.pools["B"].awaited(9.0)) == (4, 0)


def test_pods_with_scheduling_gates_do_not_wait() -> None:
    gated = structs.replace(cluster.pod("g"), gated=True)
    known = cluster.ledger(cluster.pool(replicas=2), cluster.pod("1"), gated)
    entry = known.pools["A"]
    assert (entry.pending, entry.awaited(9.0), known.picks.unpicked.pods) == (1, 1, 1)
    assert not known.picks.is_unpicked("g")
    known.pod_seen(cluster.pod("g"), 1.0)
    assert (entry.pending, known.picks.unpicked.pods) == (2, 2), "the gates are gone"
    known.pod_gone("g", 2.0)
    assert (entry.pending, known.picks.unpicked.pods) == (1, 1)
