"""Nodes that are claimed ahead, and pods with preferences of their own."""

import pytest

from ateplace.cluster.records import pod_record
from ateplace.cluster.resources import Shape
from ateplace.extender.context import Rules
from ateplace.extender.filter.choose import choose
from tests.unit import objects
from tests.unit.cluster import NOTHING, SMALL, atelet, case, ledger, node, pod, pool, ready
from tests.unit.filtering import HALF, NAMES, ahead, burst, opened, picked, sent


@pytest.mark.parametrize(
    ("pending", "expected"),
    [
        pytest.param(1, [], id="nobody else is waiting"),
        pytest.param(4, [], id="one node takes them all"),
        pytest.param(5, ["n01"], id="one more than it takes"),
        pytest.param(13, ["n01", "n02", "n03"], id="as many nodes as are needed"),
        pytest.param(1000, NAMES[1:9], id="never more than the setting allows"),
    ],
)
def test_nodes_are_claimed_ahead_by_need_and_within_the_setting(pending: int, expected: list[str]) -> None:
    assert ahead(burst(pending), NAMES) == expected


@pytest.mark.parametrize(
    ("open_already", "expected"),
    [
        pytest.param(3, ["n00", "n04", "n05", "n06", "n07", "n08"], id="the pick, two more that are open, and six"),
        pytest.param(7, [], id="more than half of them are unused yet"),
    ],
)
def test_what_is_open_and_unused_counts_as_claimed_ahead(open_already: int, expected: list[str]) -> None:
    decided = burst(1000)
    for name in NAMES[1 : open_already + 1]:
        opened(decided.ledger, name)
    assert ahead(decided, NAMES) == expected


def test_nothing_is_claimed_ahead_for_pods_that_are_stuck_or_for_placeholders_that_wait() -> None:
    decided = burst(13)
    known = decided.ledger
    for number in range(20):
        known.pod_seen(pod(f"ph{number}", placeholder=True), 0)
        known.pod_seen(pod(f"stuck{number}"), 0)
        known.picks.note_refusal(f"stuck{number}", 0)
    assert ahead(decided, NAMES) == ["n01", "n02", "n03"]
    known.node_seen(node("n99"), 1)
    assert len(ahead(decided, NAMES)) == 8, "it may be what they waited for"


def test_nothing_is_claimed_ahead_for_pods_with_scheduling_gates() -> None:
    """One ateom and ten gated ones once claimed eleven nodes."""
    decided = burst(1)
    for number in range(40):
        made = objects.pod(f"gated{number}", of="a", uid="A", schedulingGates=[{"name": "example.com/wait"}])
        made.metadata.namespace = "ns"
        record = pod_record(made)
        assert record is not None and record.gated
        decided.ledger.pod_seen(record, 0)
    assert ahead(decided, NAMES) == []
    for number in range(40):
        decided.ledger.pod_seen(pod(f"waits{number}"), 0)
    assert ahead(decided, NAMES) != [], "those wait"


def test_nothing_is_claimed_ahead_for_placeholders_or_with_the_setting_at_zero() -> None:
    assert ahead(burst(1000, placeholder=True), NAMES) == []
    assert ahead(burst(1000, rules=Rules(open_ahead=0)), NAMES) == []


def test_a_pod_with_preferences_is_answered_some_of_many_nodes_from_the_fullest_to_the_emptiest() -> None:
    held = [f"n{number:02d}" for number in range(20)]
    there = (pod(f"{name}-{each}", name, shape=HALF) for each in range(20) for name in held[each:])
    known = ledger(pool(), *(one for name in held for one in (node(name, "A", cpu=20_000), atelet(name))), *there)
    choice = choose(case(known, choosy=True), sent(*held))
    assert choice and (choice.node.name, choice.also) == ("n19", ("n01", "n04", "n07", "n10", "n13", "n16"))


def test_a_pod_with_preferences_gets_what_its_pool_holds_and_one_fresh_node() -> None:
    known = ledger(
        *ready("a", "A", pods=[pod("1", "a")]),
        *ready("b", "A", pods=[pod("2", "b")]),
        *ready("c", "B", pods=[pod("3", "c", "B")]),
        node("d"),
    )
    choice = choose(case(known, choosy=True), sent("a", "b", "c", "d"))
    assert choice and (choice.node.name, choice.also) == ("c", ("a", "b"))
    choice = choose(case(known, choosy=True), sent("a", "b", "d"))
    assert choice and (choice.node.name, choice.also) == ("d", ("a", "b"))
    choice = choose(case(known, choosy=True), sent("b"))
    assert choice and (choice.node.name, choice.also) == ("b", ())


def test_a_pod_with_preferences_does_not_get_a_node_that_failed_it_while_there_is_another() -> None:
    known = ledger(node("a"), node("b"))
    known.picks.assume("new", "A", "a", SMALL, now=0)
    known.picks.failed("new")
    assert picked(case(known, choosy=True), "a", "b") == "b"
    assert picked(case(known, choosy=True), "a") == "a"


@pytest.mark.parametrize(
    ("shape", "rules", "cpu"),
    [
        pytest.param(SMALL, Rules(ateoms_per_node=3), 8000, id="the cap"),
        pytest.param(NOTHING, Rules(), 300, id="pods without requests"),
    ],
)
def test_pods_with_preferences_do_not_fill_a_node_beyond_what_no_scheduler_counts(
    shape: Shape, rules: Rules, cpu: int
) -> None:
    """A scheduler may send each of them to a node where we have not counted it."""
    known = ledger(pool(), node("a", "A", cpu=cpu), atelet("a"), pod("1", "a", shape=shape), *map(node, "bcdefg"))
    there = 1
    for number in range(6):
        uid = f"new{number}"
        choice = choose(case(known, uid=uid, shape=shape, rules=rules, choosy=True), sent(*"abcdefg"))
        assert choice
        there += "a" in {choice.node.name, *choice.also}
        known.picks.assume(uid, "A", choice.node.name, shape, now=0)
    assert there == 3


def test_a_burst_of_pods_with_preferences_takes_as_many_nodes_as_it_needs() -> None:
    known = ledger(pool(), *(node(name, cpu=8000) for name in NAMES), *(pod(str(each)) for each in range(30)))
    used: dict[str, int] = {}
    for each in range(30):
        full = {name for name, count in used.items() if count == 8}
        choice = choose(case(known, uid=str(each), choosy=True), sent(*(name for name in NAMES if name not in full)))
        assert choice
        for one in (choice.node, *choice.ahead):
            if not one.claim_count:
                opened(known, one.name)
        known.picks.assume(str(each), "A", choice.node.name, SMALL, now=0)
        used[choice.node.name] = used.get(choice.node.name, 0) + 1
    assert sorted(used.values()) == [6, 8, 8, 8]


def test_a_pod_with_preferences_gets_a_node_that_looks_full_once() -> None:
    known = ledger(*ready("a", "A", pods=[pod(str(number), "a") for number in range(8)]), node("d"))
    choice = choose(case(known, choosy=True), sent("a", "d"))
    assert choice and (choice.node.name, choice.also) == ("d", ("a",))
