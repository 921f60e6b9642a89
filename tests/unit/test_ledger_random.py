"""The ledger against a naive model that recounts everything, in any order of events."""

from collections import Counter
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from ateplace.cluster import claims as claims_
from ateplace.cluster.ledger import EXPIRY, Ledger
from ateplace.cluster.records import AteletRecord, NodeRecord, PodRecord, PoolRecord
from ateplace.cluster.resources import Shape
from ateplace.cluster.state import State
from tests.unit import cluster
from tests.unit.ledgers import LARGE, REPLY, SMALL, atelet, node, pod, pool

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
        self.nominated: set[str] = set()
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

    @rule(uid=st.sampled_from(PODS), pool_uid=st.sampled_from(POOLS), on=st.sampled_from(NODES), early=st.booleans())
    def a_pod_is_picked_a_node(self, uid: str, pool_uid: str, on: str, early: bool) -> None:
        self.picks.pop(uid, None)
        self.refused.discard(uid)
        if uid not in self.pods or not self.pods[uid].node:
            self.picks[uid] = (pool_uid, on, SMALL, False)
            self.nominated = {*self.nominated, uid} if early else self.nominated - {uid}
        self.ledger.picks.assume(uid, pool_uid, on, SMALL, nominated=early, now=self.tick())

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
            assert set(found.waiting if found else ()) == {p.uid for p in waiting if p.uid not in self.refused}
        assert ledger.picks.nominated == len(self.nominated & self.picks.keys())

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
