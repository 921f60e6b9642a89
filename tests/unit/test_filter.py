"""Filter's decision: which node, which ones ahead, and why not."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import AteletRecord, NodeRecord, PodRecord, PoolRecord
from ateplace.cluster.resources import Shape
from ateplace.cluster.state import Node, Reading
from extender import fit as why
from extender.context import Case, Rules
from extender.filter.choose import _ranked, choose, refusals
from extender.protocol import Names
from tests.unit.cluster import CORE, MIB, NOTHING, SMALL, atelet, case, ledger, node, pod, pool, ready, template

Seen = NodeRecord | PodRecord | PoolRecord | AteletRecord


def sent(*names: str) -> Names:
    return Names(json.dumps(names).encode())


def picked(decided: Case, *names: str, hold: bool = False) -> str | None:
    choice = choose(decided, sent(*names), hold=hold)
    return choice.node.name if choice else None


def others(known: Ledger, name: str, *, cpu: int = 0, pods: int = 1, port: int = 0) -> None:
    """Somebody else's pods were read there."""
    ports = frozenset({("TCP", port)} if port else ())
    known.others_read(name, f"{name}-uid", Reading((("cpu", cpu),), pods, ports, 0.0))


FULLER = [*ready("a", "A", pods=[pod("1", "a")]), *ready("b", "A", pods=[pod("2", "b"), pod("3", "b")])]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param([node("a"), *ready("b", "A")], "b", id="Ready before cold"),
        pytest.param([node("a"), node("b", "A")], "b", id="claimed before cold"),
        pytest.param([node("a", "A"), *ready("b", "A")], "b", id="Ready before claimed"),
        pytest.param([node("a", "A"), *ready("b", "B")], "b", id="Ready for another pool before claimed for this one"),
        pytest.param(FULLER, "b", id="the fuller of equals"),
        pytest.param(
            [*ready("a", "B", pods=[pod("1", "a", "B"), pod("2", "a", "B")]), *ready("b", "A", pods=[pod("3", "b")])],
            "b",
            id="the pool's own node before a fuller one of another's",
        ),
        pytest.param([node("b"), node("a")], "a", id="the first name of equals"),
        pytest.param([], None, id="no node known"),
    ],
)
def test_the_best_node_is(seen: list[Seen], expected: str | None) -> None:
    assert picked(case(ledger(*seen)), "a", "b") == expected


def test_only_nodes_that_the_scheduler_sent_are_chosen() -> None:
    known = ledger(*ready("a", "A"), node("b"), node("c"))
    assert picked(case(known), "c") == "c"


def test_a_burst_fills_a_node_before_it_opens_the_next() -> None:
    known = ledger(node("a", cpu=3000), node("b", cpu=3000), node("c", cpu=3000))
    chosen: list[str] = []
    for number in range(7):
        free = [name for name in "abc" if sum(one == name for one in chosen) < 3]
        name = picked(case(known, uid=str(number)), *free)
        assert name
        known.claims.acknowledge(name, f"{name}-uid", "A", value="t", version=number + 2, sent=0, now=0)
        known.picks.assume(str(number), "A", name, SMALL, now=0)
        chosen.append(name)
    assert "".join(chosen) == "aaabbbc"


def test_a_resource_that_the_scheduler_ignores_and_no_node_has_fills_none() -> None:
    """The gating resource of the kube-scheduler-config mode: without this rule every node looks full by our books, so
    that nodes are opened ahead for nothing, and picked in the order in which they were claimed."""
    gated = Shape((*CORE, ("gate", 1)), (*CORE, ("gate", 1)))
    known = ledger(
        pool(), node("b", "A"), node("a", "A"), node("c"), *(pod(str(each), shape=gated) for each in range(4))
    )
    chosen: list[str] = []
    for number in range(4):
        choice = choose(case(known, uid=str(number), shape=gated), sent("a", "b", "c"))
        assert choice and choice.ahead == ()
        known.claims.acknowledge(choice.node.name, f"{choice.node.name}-uid", "A", value="t", version=9, sent=0, now=0)
        known.picks.assume(str(number), "A", choice.node.name, gated, now=0)
        chosen.append(choice.node.name)
    assert chosen == ["a"] * 4


def test_a_node_that_failed_this_pod_comes_last_even_behind_cold_ones() -> None:
    known = ledger(*ready("a", "A"), *ready("b", "A"), node("c"))
    for failed, expected in ((None, "a"), ("a", "b"), ("b", "c"), ("c", "a")):
        if failed:
            known.picks.assume("new", "A", failed, SMALL, now=0)
            known.picks.failed("new")
        assert picked(case(known), "a", "b", "c") == expected


def test_placeholders_go_where_the_fewest_of_their_pool_are() -> None:
    there = [pod("1", "a", placeholder=True), pod("2", "a", placeholder=True), pod("3", "b", placeholder=True)]
    known = ledger(*ready("a", "A"), *ready("b", "A"), *there)
    assert picked(case(known, placeholder=True), "a", "b") == "b"


@pytest.mark.parametrize(
    ("seen", "options", "reason"),
    [
        pytest.param([], {}, why.UNKNOWN, id="unknown"),
        pytest.param([node("a", deleting=True)], {}, why.DELETING, id="being deleted"),
        pytest.param([node("a", annotation_bytes=262_000)], {}, why.ANNOTATIONS, id="annotations near the limit"),
        pytest.param(
            [node("a", "A"), atelet("a", ready=False, trouble="CrashLoopBackOff")],
            {},
            why.CRASHING,
            id="atelet crash-loops",
        ),
        pytest.param([node("a", "A"), atelet("a", ready=False)], {"now": 61.0}, why.UNREADY, id="atelet long un-Ready"),
        pytest.param(
            [node("a", "A"), pod("1", "a"), pod("2", "a")],
            {"rules": Rules(ateoms_per_node=2)},
            why.CROWDED,
            id="as many ateoms as allowed",
        ),
        pytest.param(
            [node("a", cpu=1500)],
            {"atelet_template": template(cpu=501)},
            why.NO_ROOM,
            id="no room for atelet beside this pod",
        ),
        pytest.param([node("a", slots=1)], {}, why.NO_SLOT, id="no slot for atelet beside this pod"),
        pytest.param(
            [node("a", "A", cpu=1499), atelet("a")],
            {"atelet_template": template(cpu=500)},
            why.NO_ROOM,
            id="atelet is bound, but the scheduler may not know that yet",
        ),
        pytest.param(
            [*ready("a", "A"), *(pod(str(number), "a", shape=NOTHING) for number in range(80))],
            {"shape": NOTHING},
            why.PACKED,
            id="full of pods without requests",
        ),
    ],
)
def test_a_node_is_dropped_with_its_reason(seen: list[Seen], options: dict[str, object], reason: str) -> None:
    decided = case(ledger(*seen), **options)  # type: ignore[arg-type]
    assert choose(decided, sent("a")) is None
    assert refusals(decided, ["a"]) == {"a": reason}


@pytest.mark.parametrize(
    ("seen", "options"),
    [
        pytest.param([node("a", annotation_bytes=262_000), node("a", "A", annotation_bytes=262_000)], {}, id="claimed"),
        pytest.param([node("a", "A"), atelet("a", ready=False)], {"now": 59.0}, id="atelet un-Ready for a moment"),
        pytest.param([node("a", cpu=1500)], {"atelet_template": template(cpu=500)}, id="room for both exactly"),
        pytest.param([node("a", slots=2)], {}, id="two slots"),
        pytest.param(
            [node("a", "A", cpu=1500), atelet("a"), pod("1", "a", placeholder=True)],
            {"atelet_template": template(cpu=500)},
            id="a placeholder that is being preempted",
        ),
        pytest.param(
            [*ready("a", "A"), *(pod(str(number), "a", shape=NOTHING) for number in range(79))],
            {"shape": NOTHING},
            id="the 80th of 100m on 8 cores",
        ),
        pytest.param(
            [*ready("a", "A"), *(pod(str(number), "a", placeholder=True) for number in range(8))],
            {"shape": NOTHING},
            id="placeholders do not stand in the way of pods without requests",
        ),
    ],
)
def test_a_node_is_not_dropped_when(seen: list[Seen], options: dict[str, object]) -> None:
    assert picked(case(ledger(*seen), **options), "a") == "a"  # type: ignore[arg-type]


def test_a_crash_looping_atelet_is_not_trusted_in_the_short_life_between_two_crashes() -> None:
    known = ledger(node("a", "A"), atelet("a", ready=False, trouble="CrashLoopBackOff"))
    known.atelet_seen(atelet("a"), 10.0)
    assert refusals(case(known, now=20.0), ["a"]) == {"a": why.CRASHING}
    assert picked(case(known, now=70.1), "a") == "a"
    known.atelet_gone("atelet-a", 71.0)
    known.atelet_seen(structs.replace(atelet("a"), uid="another"), 72.0)
    assert picked(case(known, now=72.0), "a") == "a"


def test_what_others_take_on_a_node_counts_for_a_while_after_it_was_opened() -> None:
    known = ledger(node("a", cpu=2000))
    decided = case(known, atelet_template=template(cpu=500))
    assert picked(decided, "a") == "a"
    others(known, "a", cpu=501)
    assert refusals(decided, ["a"]) == {"a": why.NO_ROOM}
    others(known, "a", cpu=500, port=8085)
    assert refusals(decided, ["a"]) == {"a": why.PORT_TAKEN}
    others(known, "a", pods=109)
    assert refusals(decided, ["a"]) == {"a": why.NO_SLOT}
    assert picked(case(known, atelet_template=template(cpu=500), now=61.0), "a") == "a", "that was too long ago"


def test_picks_in_flight_count_against_the_room_beside_atelet() -> None:
    known = ledger(node("a", cpu=2500))
    decided = case(known, atelet_template=template(cpu=500))
    known.picks.assume("1", "A", "a", SMALL, now=0)
    assert picked(decided, "a") == "a"
    known.picks.assume("2", "A", "a", SMALL, now=0)
    assert refusals(decided, ["a"]) == {"a": why.NO_ROOM}


def opened(known: Ledger, name: str, version: int = 2) -> None:
    """This process has opened the node for pool A."""
    known.claims.sending(name, "A", "t")
    known.claims.acknowledge(name, f"{name}-uid", "A", value="t", version=version, sent=0, now=0, opened=True)


def ahead(decided: Case, names: list[str]) -> list[str]:
    choice = choose(decided, sent(*names))
    assert choice
    return [one.name for one in choice.ahead]


def burst(pending: int, **options: object) -> Case:
    nodes = [node(f"n{number:02d}", cpu=4000) for number in range(20)]
    known = ledger(pool(), *nodes, *(pod(str(number)) for number in range(pending)))
    return case(known, uid="0", **{"rules": Rules(open_ahead=8), **options})  # type: ignore[arg-type]


NAMES = [f"n{number:02d}" for number in range(20)]


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


def test_a_node_whose_atelet_is_not_bound_is_not_answered_beside_another() -> None:
    known = ledger(node("a", "A"), pod("1", "a"), node("d"))
    choice = choose(case(known, choosy=True), sent("a", "d"))
    assert choice and (choice.node.name, choice.also) == ("d", ())


def test_a_burst_of_pods_with_preferences_takes_as_many_nodes_as_it_needs() -> None:
    known = ledger(pool(), *(node(name, cpu=8000) for name in NAMES), *(pod(str(each)) for each in range(30)))
    used: dict[str, int] = {}
    for each in range(30):
        full = {name for name, count in used.items() if count == 8}
        choice = choose(case(known, uid=str(each), choosy=True), sent(*(name for name in NAMES if name not in full)))
        assert choice
        for one in (choice.node, *choice.ahead):
            if not one.claims:
                opened(known, one.name)
        known.picks.assume(str(each), "A", choice.node.name, SMALL, now=0)
        used[choice.node.name] = used.get(choice.node.name, 0) + 1
    assert sorted(used.values()) == [6, 8, 8, 8]


def test_holding_warm_room_opens_no_cold_node_while_placeholders_are_large_enough() -> None:
    known = ledger(*ready("w", "A", pods=[pod("1", "w", placeholder=True)]), node("c"))
    assert picked(case(known), "c", hold=True) is None
    assert refusals(case(known), ["c"], hold=True) == {"c": why.HELD_BACK}
    assert picked(case(known), "c") == "c"
    known.pod_gone("1", 0)
    assert picked(case(known), "c", hold=True) == "c"


def test_a_node_that_looks_full_is_taken_when_the_scheduler_knows_better_and_nothing_warm_is_left() -> None:
    full = ready("full", "A", pods=[pod(str(number), "full") for number in range(8)])
    known = ledger(*full, node("coming", "A"), node("cold"))
    assert picked(case(known), "full", "coming", "cold") == "coming"
    assert picked(case(known), "full", "cold") == "full"


def test_nodes_that_look_full_are_ranked_like_others() -> None:
    def filled(name: str, owner: str) -> list[PodRecord]:
        return [pod(f"{name}{number}", name, owner) for number in range(8)]

    known = ledger(
        node("coming", "A"),
        *filled("coming", "A"),
        *ready("other", "B", pods=filled("other", "B")),
        *ready("own2", "A", pods=filled("own2", "A")),
        *ready("own1", "A", pods=filled("own1", "A")),
    )
    order = ["own1", "own2", "other", "coming"]
    for number, best in enumerate(order):
        assert picked(case(known), *order[number:]) == best


def test_a_pod_with_preferences_gets_a_node_that_looks_full_once() -> None:
    known = ledger(*ready("a", "A", pods=[pod(str(number), "a") for number in range(8)]), node("d"))
    choice = choose(case(known, choosy=True), sent("a", "d"))
    assert choice and (choice.node.name, choice.also) == ("d", ("a",))


def test_with_thousands_of_names_the_first_cold_one_that_will_do_is_found() -> None:
    known = ledger(*(node(f"n{number:04d}", deleting=number < 600) for number in range(1000)))
    names = [f"n{number:04d}" for number in reversed(range(1000))]
    assert picked(case(known), *names) == "n0600"


def test_memory_counts_for_atelets_room_too() -> None:
    known = ledger(node("a"))
    assert picked(case(known, atelet_template=template(memory=31 * 1024 * MIB)), "a") == "a"
    assert picked(case(known, atelet_template=template(memory=31 * 1024 * MIB + 1)), "a") is None


HALF = Shape((("cpu", 500),), (("cpu", 500),))


def restarted(*more: Seen) -> Ledger:
    """13 of the 15 that fit beside atelet are bound; two that the process before us has answered are not."""
    bound = (pod(f"b{each}", "n1", shape=HALF) for each in range(13))
    flying = (pod(f"f{each}", shape=HALF) for each in range(2))
    return ledger(pool(), node("n1", "A"), *bound, *flying, pod("new", shape=HALF), *more)


def half(known: Ledger, uid: str = "new") -> Case:
    return case(known, uid=uid, shape=HALF, atelet_template=template(cpu=500))


def test_after_a_restart_pods_that_may_be_on_their_way_to_a_node_count_until_its_atelet_is_there() -> None:
    known = restarted()
    assert refusals(half(known), ["n1"]) == {"n1": why.COMING}
    assert picked(half(known), "n1", "n2") is None
    known.node_seen(node("n2"), 0)
    assert picked(half(known), "n1", "n2") == "n2", "another node is opened meanwhile"
    known.pod_seen(pod("f0", "n1", shape=HALF), 1)
    assert refusals(half(known), ["n1"]) == {"n1": why.COMING}, "14, one on its way, and this one"
    known.pod_seen(pod("f1", "n2", shape=HALF), 1)
    assert picked(half(known), "n1") == "n1", "where they went is known now"


def test_once_atelet_is_there_the_scheduler_counts_for_us() -> None:
    known = restarted(atelet("n1", ready=False))
    assert picked(half(known), "n1") is None, "our watch may be ahead of the scheduler's"
    known.atelet_seen(atelet("n1"), 1)
    assert picked(half(known), "n1") == "n1"


def test_a_node_that_we_opened_is_filled_at_once_and_one_that_somebody_else_claims_too_is_not() -> None:
    known = ledger(pool(), node("n1"), *(pod(str(each), shape=HALF) for each in range(40)))
    opened(known, "n1")
    for each in range(15):
        assert picked(half(known, str(each)), "n1") == "n1"
        known.picks.assume(str(each), "A", "n1", HALF, now=0)
    assert refusals(half(known, "15"), ["n1"]) == {"n1": why.NO_ROOM}
    known.picks.failed("14")
    assert picked(half(known, "15"), "n1") == "n1"
    known.node_seen(node("n1", "A", version=3), 1)
    assert refusals(half(known, "15"), ["n1"]) == {"n1": why.COMING}, "the value is not ours"


def test_a_write_of_our_own_for_another_pool_leaves_the_node_ours() -> None:
    known = ledger(node("n1"))
    opened(known, "n1")
    known.claims.sending("n1", "B", "u")
    known.node_seen(structs.replace(node("n1", "A", "B", version=3), claims={"A": "t", "B": "u"}), 1)
    assert known.nodes["n1"].own, "the watch was quicker than the answer"
    known.node_seen(node("n1", version=4), 2)
    assert not known.nodes["n1"].own, "without a claim it is nobody's"


@settings(deadline=None)
@given(st.data())
def test_nodes_are_chosen_in_the_order_that_sorting_them_all_would_give(data: st.DataObject) -> None:
    known = ledger(pool("A"), pool("B"))
    for name in data.draw(st.permutations([f"n{number}" for number in range(8)])):
        claims = data.draw(st.sampled_from([(), ("A",), ("B",), ("A", "B")]))
        known.node_seen(node(name, *claims, cpu=4000), 0.0)
        if data.draw(st.booleans()):
            known.atelet_seen(atelet(name), 0.0)
        for number in range(data.draw(st.integers(0, 4))):
            known.pod_seen(pod(f"{name}-{number}", name, data.draw(st.sampled_from("AB"))), 0.0)

    def rank(one: Node) -> tuple[bool, bool, float, str]:
        return not one.atelet_ready, "A" not in (one.record.claims if one.record else ()), -one.fullness, one.name

    fitting = [one for one in known.claims.nodes.values() if one.used.get("cpu", 0) + 1000 <= 4000]
    assert list(_ranked(case(known))) == sorted(fitting, key=rank)
