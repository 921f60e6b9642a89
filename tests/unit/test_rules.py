"""Rules of pools: what is read, what is refused and why, and what comes after."""

import json

import pytest
from msgspec import structs

from ateplace import names
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.pool_rules import NONE, PoolRules, Quota, pool_rules, quota
from ateplace.cluster.records import AteletRecord, NodeRecord, PodRecord, PoolRecord
from ateplace.extender.context import Case
from ateplace.extender.filter.choose import choose, refusals
from ateplace.extender.preempt.decide import decide, for_the_next
from ateplace.extender.protocol import MetaPod, MetaVictims, Names
from ateplace.extender.rules import kind, limits
from tests.unit.cluster import SMALL, atelet, case, ledger, node, pod, pool

LOW, HIGH, SAME = names.MIN_NODES_ANNOTATION, names.MAX_PER_NODE_ANNOTATION, names.SAME_ANNOTATION
TYPE = "node.kubernetes.io/instance-type"


def ruled(**rules: int | str) -> PoolRecord:
    return structs.replace(pool(), rules=PoolRules(**rules))  # type: ignore[arg-type]


def asked(known: Ledger, uid: str = "new", *, placeholder: bool = False, template: str = "") -> Case:
    made = case(known, uid=uid, placeholder=placeholder)
    demand = structs.replace(made.demand, template=template)
    return structs.replace(made, demand=demand, limits=limits(known, demand))


def picked(decided: Case, *sent: str) -> str | None:
    choice = choose(decided, Names(json.dumps(sent).encode()))
    return choice.node.name if choice else None


def labelled(name: str, *claims: str, zone: str = "", kind: str = "") -> NodeRecord:
    found = {names.ZONE_LABEL: zone, TYPE: kind}
    return node(name, *claims, labels={key: value for key, value in found.items() if value})


@pytest.mark.parametrize(
    ("said", "rules"),
    [
        ({}, NONE),
        ({LOW: "", HIGH: "", SAME: ""}, NONE),
        ({LOW: "2"}, PoolRules(min_nodes=2)),
        ({LOW: "1000", HIGH: "1"}, PoolRules(1000, 1)),
        ({SAME: TYPE}, PoolRules(same=TYPE)),
        ({SAME: "disk"}, PoolRules(same="disk")),
    ],
)
def test_rules_are_read_from_annotations(said: dict[str, str], rules: PoolRules) -> None:
    assert pool_rules(lambda key: said.get(key, "")) == rules


@pytest.mark.parametrize("key", [LOW, HIGH])
@pytest.mark.parametrize(
    "value", ["0", "-1", "1001", "99999", "two", "1.5", " 2", "2 ", "1e2", "٢", "0x2", "2\n", "02"]
)
def test_a_number_that_is_nonsense_is_refused_in_a_sentence(key: str, value: str) -> None:
    wrong = pool_rules(lambda asked: value if asked == key else "").wrong
    assert wrong.startswith(f"{key} must be a whole number from 1 to 1000, not ") and wrong.isprintable()


@pytest.mark.parametrize("value", ["/", "a/b/c", "-a", "a-", "A.example/x", "x" * 64, "a b", "a/", "\x1b[31m", "é"])
def test_a_label_key_that_is_nonsense_is_refused_in_a_sentence(value: str) -> None:
    wrong = pool_rules(lambda asked: value if asked == SAME else "").wrong
    assert wrong.startswith(f"{SAME} must be the key of a label, not ") and wrong.isprintable()


def test_every_wrong_rule_is_named_and_a_long_value_is_cut() -> None:
    wrong = pool_rules({LOW: "x" * 300, HIGH: "0", SAME: "!"}.__getitem__).wrong
    assert all(key in wrong for key in (LOW, HIGH, SAME)) and len(wrong) < 300


def test_nothing_is_placed_while_a_rule_cannot_be_read() -> None:
    known = ledger(ruled(wrong="it is nonsense"), node("a", "A"), atelet("a"), pod("1", "a"))
    for placeholder in (False, True):
        decided = asked(known, placeholder=placeholder)
        assert picked(decided, "a") is None
        assert refusals(decided, ["a"]) == {"a": "rule of the pool cannot be read: it is nonsense"}
    known.pool_seen(pool(), 0)
    assert picked(asked(known), "a") == "a", "mended"


def test_a_pool_without_rules_has_no_limits() -> None:
    assert limits(ledger(pool()), case(ledger()).demand) is None
    assert limits(ledger(), case(ledger()).demand) is None


# min-nodes


def test_the_first_ateoms_go_to_different_nodes_and_the_rest_are_packed() -> None:
    known = ledger(ruled(min_nodes=3), *(node(name) for name in "abcd"))
    where = ""
    for number in range(9):
        name = picked(asked(known, str(number)), *"abcd")
        assert name
        known.claims.sending(name, "A", "t")
        known.claims.acknowledge(name, f"{name}-uid", "A", value="t", version=2, sent=0, now=0, opened=True)
        known.picks.assume(str(number), "A", name, SMALL, now=0)
        where += name
    assert sorted(where[:3]) == ["a", "b", "c"] and len(set(where[3:])) == 1


def test_they_go_to_different_zones_first_even_if_that_opens_a_node() -> None:
    known = ledger(
        ruled(min_nodes=2),
        *(labelled("a1", "A", zone="a"), atelet("a1"), pod("1", "a1")),
        *(labelled("a2", "A", zone="a"), atelet("a2")),
        labelled("b1", zone="b"),
    )
    assert picked(asked(known), "a1", "a2", "b1") == "b1"
    assert picked(asked(known), "a1", "a2") == "a2", "another node of the same zone is better than none"
    assert picked(asked(known), "a1") is None
    assert refusals(asked(known), ["a1"]) == {"a1": "rule min-nodes=2: the pool is on 1, this one included"}


def test_in_a_rolling_update_only_ateoms_that_stay_count() -> None:
    def made(uid: str, on: str, template: str, *, terminating: bool = False) -> None:
        known.pod_seen(structs.replace(pod(uid, on), template=template, terminating=terminating), 0)

    known = ledger(ruled(min_nodes=2), *(one for name in "ab" for one in (node(name, "A"), atelet(name))))
    made("old-1", "a", "old")
    made("old-2", "b", "old")
    made("new-1", "a", "new")
    assert picked(asked(known, template="new"), "a", "b") == "b"
    made("new-2", "b", "new", terminating=True)
    assert picked(asked(known, template="new"), "a", "b") == "b", "that one is on its way out"
    made("new-3", "b", "new")
    assert picked(asked(known, template="new"), "a", "b") == "b", "packed from here on: the fuller"


def test_a_pods_own_pick_does_not_count_when_it_is_asked_about_again() -> None:
    known = ledger(ruled(min_nodes=2, max_per_node=1), node("a", "A"), atelet("a"))
    known.picks.assume("new", "A", "a", SMALL, now=0)
    assert refusals(asked(known), ["a"]) != refusals(asked(known, "another"), ["a"])
    assert picked(asked(known), "a") == "a"


# max-per-node


def test_no_more_ateoms_than_allowed_go_to_a_node_placeholders_counted_for_placeholders_only() -> None:
    there = [pod("1", "a"), pod("2", "a", placeholder=True)]
    known = ledger(ruled(max_per_node=2), node("a", "A"), atelet("a"), *there)
    assert picked(asked(known), "a") == "a"
    assert refusals(asked(known, placeholder=True), ["a"]) == {"a": "rule max-per-node=2: the node has 2 of the pool"}
    known.picks.assume("x", "A", "a", SMALL, placeholder=True, now=0)
    assert picked(asked(known), "a") == "a", "nor do picks of placeholders"
    known.picks.assume("y", "A", "a", SMALL, now=0)
    assert refusals(asked(known), ["a"]) == {"a": "rule max-per-node=2: the node has 2 of the pool"}
    known.picks.forget("x")
    known.picks.forget("y")
    assert known.nodes["a"].pools["A"].placeholder_picks == 0
    known.pod_seen(pod("other", "a", "B"), 0)
    assert picked(asked(known), "a") == "a", "other pools do not count"


def test_nodes_are_claimed_ahead_for_as_many_as_the_rule_lets_go_there() -> None:
    waiting = [pod(str(each)) for each in range(6)]
    known = ledger(ruled(max_per_node=2), *(node(name) for name in "abcdef"), *waiting)
    choice = choose(asked(known, "0"), Names(json.dumps([*"abcdef"]).encode()))
    assert choice and [one.name for one in (choice.node, *choice.ahead)] == ["a", "b", "c"]


# same


def test_the_first_ateom_chooses_the_value_and_the_others_follow() -> None:
    known = ledger(
        ruled(same=TYPE), labelled("a", kind="m5"), labelled("b", kind="m6"), labelled("c", kind="m5"), labelled("d")
    )
    assert picked(asked(known), "d") is None
    assert refusals(asked(known), ["d"]) == {"d": f"rule same={TYPE}: the node has no such label"}
    assert picked(asked(known), "b") == "b"
    known.picks.assume("1", "A", "b", SMALL, now=0)
    assert picked(asked(known), "a", "c") is None
    assert refusals(asked(known), ["a"]) == {"a": f"rule same={TYPE}: the pool is on nodes with m6"}
    known.picks.forget("1")
    assert picked(asked(known), "a", "c") == "a", "nothing holds the value any more"


@pytest.mark.parametrize("placeholder", [False, True])
def test_live_ateoms_and_placeholders_keep_the_value(placeholder: bool) -> None:
    kept = pod("1", "b", placeholder=placeholder)
    known = ledger(ruled(same=TYPE), labelled("a", "A", kind="m5"), atelet("a"), labelled("b", kind="m6"), kept)
    assert picked(asked(known), "a") is None
    assert picked(asked(known, placeholder=True), "a", "b") == "b"


def test_a_claim_that_another_replica_has_just_written_chooses_too() -> None:
    known = ledger(ruled(same=TYPE), labelled("a", kind="m5"), labelled("b", "A", kind="m6"), atelet("b"))
    assert picked(asked(known), "a") is None
    known.pod_seen(pod("1", "b"), 1)
    known.pod_gone("1", 2)
    assert picked(asked(known), "a") == "a", "one that lingers does not"


def test_nodes_that_are_claimed_ahead_have_the_value_that_was_just_chosen() -> None:
    kinds = {"a": "m5", "b": "m6", "c": "m5", "d": "m6", "e": "m5"}
    waiting = [pod(str(each)) for each in range(20)]
    known = ledger(ruled(same=TYPE), *(labelled(name, kind=each) for name, each in kinds.items()), *waiting)
    choice = choose(asked(known, "0"), Names(json.dumps([*kinds]).encode()))
    assert choice and [one.name for one in (choice.node, *choice.ahead)] == ["a", "c", "e"]


def test_a_pool_that_was_split_before_the_rule_grows_where_most_of_it_is() -> None:
    there = [pod("1", "a"), pod("2", "b"), pod("3", "b")]
    known = ledger(ruled(same=TYPE), labelled("a", kind="m5"), labelled("b", kind="m6"), *there)
    assert picked(asked(known), "a") is None and picked(asked(known), "b") == "b"


# Together.


def test_rules_that_contradict_each_other_place_nothing_and_each_node_says_which() -> None:
    known = ledger(
        ruled(same=TYPE, min_nodes=2),
        labelled("a", "A", kind="m5"),
        atelet("a"),
        pod("1", "a"),
        labelled("b", kind="m6"),
    )
    assert picked(asked(known), "a", "b") is None
    assert {name: kind(reason) for name, reason in refusals(asked(known), ["a", "b"]).items()} == {
        "a": "rule min-nodes",
        "b": "rule same",
    }


def test_preempting_follows_the_same_rules() -> None:
    there = [pod("1", "a"), pod("pa", "a", placeholder=True), pod("pb", "b", placeholder=True)]
    known = ledger(ruled(min_nodes=2), node("a", "A"), atelet("a"), node("b", "A"), atelet("b"), *there)
    named = {"a": MetaVictims([MetaPod("pa")]), "b": MetaVictims([MetaPod("pb")])}
    verdict = decide(asked(known), named, others=False)
    assert set(verdict.keep) == {"b"} and kind(verdict.dropped["a"]) == "rule min-nodes"
    more = [pod(f"p{each}", "b", placeholder=True) for each in range(3)]
    assert for_the_next(asked(known), verdict.keep, more, 3, "b") == [], "the next one goes elsewhere"


def test_a_reason_without_its_numbers_labels_a_metric() -> None:
    assert kind("rule max-per-node=2: the node has 2 of the pool") == "rule max-per-node"
    assert kind("rule of the pool cannot be read: x") == "rule that cannot be read"
    assert kind("no room beside atelet") == "no room beside atelet"


# Quotas of a namespace.


@pytest.mark.parametrize(
    ("nodes", "headroom", "expected"),
    [
        ("", "", None),
        ("3", "", Quota(max_nodes=3)),
        ("0", "0", Quota(0, 0)),
        ("", "1000", Quota(max_headroom=1000)),
    ],
)
def test_a_quota_is_read_from_a_namespaces_annotations(nodes: str, headroom: str, expected: Quota | None) -> None:
    said = {names.MAX_NODES_ANNOTATION: nodes, names.MAX_HEADROOM_ANNOTATION: headroom}
    assert quota(said.__getitem__) == expected


@pytest.mark.parametrize("value", ["-1", "1001", "three", "1.0", "00", " 1", "∞"])
def test_a_quota_that_is_nonsense_is_refused_in_a_sentence(value: str) -> None:
    for key in (names.MAX_NODES_ANNOTATION, names.MAX_HEADROOM_ANNOTATION):
        found = quota(lambda asked, key=key: value if asked == key else "")  # type: ignore[misc]
        assert found and found.max_nodes is None and found.max_headroom is None
        assert found.wrong == f'{key} must be a whole number from 0 to 1000, not "{value}"'


def tenant(max_nodes: int | None, *seen: NodeRecord | PodRecord | AteletRecord, wrong: str = "") -> Ledger:
    """Pools A and B in the namespace ns, which has this quota; X in another."""
    known = ledger(pool("A"), pool("B"), structs.replace(pool("X"), namespace="other"), *seen)
    known.quota_seen("ns", Quota(max_nodes, wrong_nodes=wrong))
    return known


@pytest.mark.parametrize("placeholder", [False, True])
def test_the_pools_of_a_namespace_hold_no_more_nodes_together_than_it_may(placeholder: bool) -> None:
    known = tenant(2, node("a", "A"), atelet("a"), node("b", "B"), atelet("b"), node("c", "X"), atelet("c"), node("d"))
    decided = asked(known, placeholder=placeholder)
    assert picked(decided, "c", "d") is None
    reason = "rule max-nodes=2: namespace ns holds 2"
    assert refusals(decided, ["c", "d"]) == {"c": reason, "d": reason}
    assert picked(decided, "b", "c", "d") == "b", "a node that another pool of it holds"
    known.quota_seen("ns", Quota(3))
    assert picked(asked(known, placeholder=placeholder), "c", "d") in {"c", "d"}
    known.quota_seen("ns", None)
    assert asked(known).limits is None


def test_a_node_is_held_by_a_claim_a_pod_or_a_pick_even_of_a_pool_that_is_gone() -> None:
    known = tenant(9, node("a", "A"), node("b"), node("c"), node("d"), pod("1", "b", placeholder=True))
    known.picks.assume("2", "A", "c", SMALL, now=0)
    known.pod_seen(structs.replace(pod("3", "d", "gone"), pool="gone"), 0)
    known.pool_gone("A", 0)
    assert known.held_nodes("ns") == {"a", "b", "c", "d"}
    assert known.held_nodes("other") == set()


def test_nodes_are_claimed_ahead_within_the_quota() -> None:
    known = tenant(3, *(node(name) for name in "abcdef"), *(pod(str(each)) for each in range(40)))
    choice = choose(asked(known, "0"), Names(json.dumps([*"abcdef"]).encode()))
    assert choice and [one.name for one in (choice.node, *choice.ahead)] == ["a", "b", "c"]


def test_a_quota_of_nothing_allows_nothing_and_a_pods_own_pick_holds_no_node() -> None:
    known = tenant(0, node("a"), node("b"))
    assert picked(asked(known), "a", "b") is None
    known.quota_seen("ns", Quota(1))
    known.picks.assume("new", "A", "a", SMALL, now=0)
    assert picked(asked(known), "b") == "b", "asked again, it may go elsewhere"
    assert picked(asked(known, "another"), "b") is None


def test_a_quota_that_cannot_be_read_allows_no_further_node_and_keeps_those_that_are_held() -> None:
    known = tenant(None, node("a", "A"), atelet("a"), node("b"), wrong="it is nonsense")
    assert picked(asked(known), "a") == "a"
    assert refusals(asked(known), ["b"]) == {"b": "rule max-nodes of namespace ns cannot be read: it is nonsense"}
    assert kind(refusals(asked(known), ["b"])["b"]) == "rule that cannot be read"


def test_a_pool_cannot_raise_its_namespaces_quota() -> None:
    said = {names.MAX_NODES_ANNOTATION: "1000", names.MAX_HEADROOM_ANNOTATION: "1000"}
    assert pool_rules(lambda key: said.get(key, "")) == NONE


def test_min_nodes_beyond_max_nodes_place_what_both_allow_and_say_both() -> None:
    known = tenant(1, node("a", "A"), atelet("a"), pod("1", "a"), node("b"))
    known.pool_seen(ruled(min_nodes=2), 0)
    assert {name: kind(reason) for name, reason in refusals(asked(known), ["a", "b"]).items()} == {
        "a": "rule min-nodes",
        "b": "rule max-nodes",
    }


def test_a_change_of_a_quota_is_told_to_its_pools_and_counts_as_a_change() -> None:
    told: list[str] = []
    known = tenant(1)
    known.subscribe(pool=told.append, namespace=told.append)
    before = known.generation
    known.quota_seen("ns", Quota(1))
    assert not told and known.generation == before
    known.quota_seen("ns", Quota(2))
    assert sorted(told) == ["A", "B", "ns"] and known.generation > before
