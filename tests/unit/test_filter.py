"""Filter's decision: which node, which ones ahead, and why not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from ateplace.cluster.records import PodRecord
from ateplace.cluster.resources import Shape
from ateplace.cluster.state import Node
from ateplace.extender import fit as why
from ateplace.extender.context import Rules
from ateplace.extender.filter.choose import _ranked, choose, refusals
from tests.unit.cluster import CORE, MIB, NOTHING, SMALL, atelet, case, ledger, node, pod, pool, ready, template
from tests.unit.filtering import FULLER, HALF, Seen, half, opened, others, picked, restarted, sent


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


def test_a_node_whose_atelet_is_not_bound_is_not_answered_beside_another() -> None:
    known = ledger(node("a", "A"), pod("1", "a"), node("d"))
    choice = choose(case(known, choosy=True), sent("a", "d"))
    assert choice and (choice.node.name, choice.also) == ("d", ())


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


def test_with_thousands_of_names_the_first_cold_one_that_will_do_is_found() -> None:
    known = ledger(*(node(f"n{number:04d}", deleting=number < 600) for number in range(1000)))
    names = [f"n{number:04d}" for number in reversed(range(1000))]
    assert picked(case(known), *names) == "n0600"


def test_memory_counts_for_atelets_room_too() -> None:
    known = ledger(node("a"))
    assert picked(case(known, atelet_template=template(memory=31 * 1024 * MIB)), "a") == "a"
    assert picked(case(known, atelet_template=template(memory=31 * 1024 * MIB + 1)), "a") is None


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
