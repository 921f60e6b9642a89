"""Zones: a pool that needs another node gets one where it has the fewest ateoms, and no node more than before."""

import json
import random
from collections import Counter

import pytest

from ateplace import names
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import NodeRecord
from ateplace.extender.filter.choose import choose
from ateplace.extender.preempt.decide import best
from ateplace.extender.protocol import MetaPod, MetaVictims, Names
from ateplace.extender.victims import Victims
from tests.unit.cluster import SMALL, atelet, case, ledger, node, pod, pool, ready

PER_NODE = 8


def in_zone(name: str, zone: str, *claims: str, version: int = 1) -> NodeRecord:
    return node(name, *claims, version=version, labels={names.ZONE_LABEL: zone} if zone else {})


def zones(count: int, per_zone: int) -> list[NodeRecord]:
    """Zones a, b, c…; the names of nodes follow the zones, as those of many clouds do."""
    return [in_zone(f"{zone}{number}", zone) for zone in "abcdef"[:count] for number in range(per_zone)]


class Growing:
    """Pods that come one after another, each bound before the next; claims ahead are acknowledged."""

    def __init__(self, known: Ledger) -> None:
        self.known = known
        self.on: Counter[str] = Counter()

    def zone(self, name: str) -> str:
        return self.known.nodes[name].zone

    def place(self, uid: str) -> str:
        free = [name for name in self.known.nodes if self.on[name] < PER_NODE and self.known.nodes[name].record]
        choice = choose(case(self.known, uid=uid), Names(json.dumps(free).encode()))
        assert choice is not None
        for version, each in enumerate((choice.node, *choice.ahead), 2):
            opened = not each.claim_count
            self.known.claims.sending(each.name, "A", "t")
            self.known.claims.acknowledge(
                each.name, f"{each.name}-uid", "A", value="t", version=version, sent=0, now=0, opened=opened
            )
        self.known.pod_seen(pod(uid, choice.node.name), 0)
        self.on[choice.node.name] += 1
        return choice.node.name

    def ateoms(self) -> list[int]:
        found = Counter(dict.fromkeys(self.known.zones, 0))
        for name, count in self.on.items():
            found[self.zone(name)] += count
        return sorted(found.values())


@pytest.mark.parametrize("burst", [False, True], ids=["one after another", "at once"])
def test_a_growing_pool_is_balanced_at_every_step_and_uses_as_few_nodes_as_possible(burst: bool) -> None:
    """With all pods waiting from the beginning, nodes are claimed ahead; these are balanced as well."""
    grown = Growing(ledger(pool(), *zones(3, 10)))
    count = 240 if burst else 200
    for number in range(count if burst else 0):
        grown.known.pod_seen(pod(str(number)), 0)
    for number in range(count):
        grown.place(str(number))
        ateoms = grown.ateoms()
        assert ateoms[-1] - ateoms[0] <= PER_NODE
        assert len(+grown.on) == -(-(number + 1) // PER_NODE)


@pytest.mark.parametrize("seed", range(60))
def test_it_stays_balanced_whichever_atelet_is_ready_first(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    count, each, quick = chance.choice([2, 3]), chance.choice([2, 3, 5]), chance.random() / 5
    grown = Growing(ledger(pool(), *zones(count, each)))
    total = chance.randint(1, count * each * PER_NODE)
    for number in range(total):
        grown.known.pod_seen(pod(str(number)), 0)
    for number in range(total):
        grown.place(str(number))
        for name in sorted(grown.known.claims.nodes):
            if chance.random() < quick:
                grown.known.atelet_seen(atelet(name), 0)
        ateoms = grown.ateoms()
        assert ateoms[-1] - ateoms[0] <= PER_NODE
    assert len(+grown.on) == -(-total // PER_NODE)


def test_a_zone_that_is_lost_does_not_count_and_one_that_comes_back_is_filled_first() -> None:
    grown = Growing(ledger(pool(), *zones(3, 4)))
    for number in range(6 * PER_NODE):
        grown.place(str(number))
    assert grown.ateoms() == [2 * PER_NODE] * 3
    lost = [name for name in grown.known.nodes if name.startswith("a")]
    for uid, record in list(grown.known.pods.items()):
        if record.node in lost:
            grown.known.pod_gone(uid, 1)
    for name in lost:
        grown.known.node_gone(name, 1)
        del grown.on[name]
    assert set(grown.known.zones) == {"b", "c"}
    for number in range(2 * PER_NODE):
        grown.place(f"again-{number}")
    assert grown.ateoms() == [3 * PER_NODE] * 2
    for name in lost:
        grown.known.node_seen(in_zone(name, "a", version=9), 2)
    for number in range(2 * PER_NODE):
        assert grown.place(f"back-{number}").startswith("a")


def test_nodes_that_serve_the_pool_are_filled_before_another_zone_is_looked_at() -> None:
    known = ledger(pool(), in_zone("a1", "a", "A"), atelet("a1"), pod("1", "a1"), in_zone("b1", "b"))
    choice = choose(case(known), Names(b'["a1","b1"]'))
    assert choice and choice.node.name == "a1"


def test_of_others_warm_nodes_the_one_in_the_emptier_zone_comes_before_the_fuller() -> None:
    known = ledger(
        pool(),
        in_zone("a1", "a", "A"),
        atelet("a1"),
        *(pod(f"a1-{each}", "a1") for each in range(8)),
        *(in_zone("a2", "a", "B"), atelet("a2"), pod("2", "a2", "B"), pod("3", "a2", "B")),
        *(in_zone("b1", "b", "B"), atelet("b1"), pod("4", "b1", "B")),
        in_zone("c1", "c"),
    )
    choice = choose(case(known), Names(b'["a2","b1","c1"]'))
    assert choice and choice.node.name == "b1", "and a warm node before a cold one in an empty zone"


def test_nodes_without_the_label_are_a_zone_of_their_own_and_a_cluster_without_zones_has_one() -> None:
    known = ledger(node("n1"), node("n2"))
    assert known.zones == {"": 2}
    known.node_seen(in_zone("n2", "a", version=2), 0)
    assert known.zones == {"": 1, "a": 1}
    known.node_seen(in_zone("n2", "b", version=3), 0)
    known.node_gone("n1", 0)
    assert known.zones == {"b": 1}
    known.node_gone("n2", 0)
    assert not known.zones and not known.nodes


def test_a_node_that_pods_named_before_it_was_seen_counts_in_its_zone_once() -> None:
    known = ledger(pod("1", "n1"), in_zone("n1", ""), in_zone("n1", "", version=2))
    assert known.zones == {"": 1}
    known.node_gone("n1", 0)
    known.node_gone("n1", 0)
    assert not known.zones


def test_placeholders_go_to_the_zone_with_the_fewest_of_them() -> None:
    known = ledger(
        pool(),
        *(in_zone("a1", "a", "A"), atelet("a1"), pod("1", "a1", placeholder=True)),
        *(in_zone("a2", "a", "A"), atelet("a2")),
        *(in_zone("b1", "b", "A"), atelet("b1")),
    )
    choice = choose(case(known, placeholder=True), Names(b'["a1","a2","b1"]'))
    assert choice and choice.node.name == "b1"


def test_placeholders_end_in_the_zone_where_the_pool_has_fewest_ateoms() -> None:
    known = ledger(
        pool(),
        *(in_zone("a1", "a", "A"), atelet("a1"), pod("1", "a1"), pod("p1", "a1", placeholder=True)),
        *(in_zone("b1", "b", "A"), atelet("b1"), pod("p2", "b1", placeholder=True)),
    )
    keep = {"a1": MetaVictims([MetaPod("p1")]), "b1": MetaVictims([MetaPod("p2")])}
    assert best(case(known), keep, Victims()) == "b1"


def test_a_cold_zone_is_chosen_among_thousands_of_names() -> None:
    known = ledger(pool(), *ready("z", "A", pods=[pod("1", "z")]))
    for number in range(3000):
        known.node_seen(in_zone(f"n{number:04}", "abc"[number % 3]), 0)
    known.picks.assume("x", "A", "n0000", SMALL, now=0)
    names_sent = Names(json.dumps([f"n{number:04}" for number in range(1, 3000)]).encode())
    choice = choose(case(known), names_sent)
    assert choice and choice.node.name == "n0001", "zone a has one on its way"
