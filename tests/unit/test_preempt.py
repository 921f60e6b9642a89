"""Preempt: placeholders first, strangers only when allowed, filter's drop rules always."""

import pytest

from ateplace.cluster.resources import Amounts, Shape
from ateplace.cluster.state import Reading
from ateplace.extender import fit as why
from ateplace.extender.context import Rules
from ateplace.extender.preempt import decide
from ateplace.extender.protocol import MetaPod, MetaVictims
from tests.unit.cluster import NOTHING, SMALL, atelet, case, ledger, node, pod, ready, template


def victims(*uids: str, violations: int = 0) -> MetaVictims:
    return MetaVictims([MetaPod(uid) for uid in uids], violations)


KNOWN = ledger(
    *ready("warm", "A", pods=[pod("ph1", "warm", placeholder=True), pod("ph2", "warm", placeholder=True)]),
    *ready("warm2", "A", pods=[pod("ph3", "warm2", placeholder=True)]),
    node("cold"),
    pod("ph4", "cold", placeholder=True),
    *ready("mixed", "A", pods=[pod("ateom", "mixed"), pod("ph5", "mixed", placeholder=True)]),
    node("crashing", "A"),
    atelet("crashing", ready=False, trouble="CrashLoopBackOff"),
    node("barred"),
)


@pytest.mark.parametrize(
    ("asked", "others", "kept", "dropped"),
    [
        pytest.param({}, True, [], {}, id="nothing asked, nothing answered"),
        pytest.param(
            {"warm": victims("ph1", "ph2"), "warm2": victims("ph3"), "cold": victims("ph4")},
            True,
            ["warm", "warm2"],
            {"cold": decide.COLDER},
            id="warm nodes before cold ones",
        ),
        pytest.param({"cold": victims("ph4")}, False, ["cold"], {}, id="a cold one when there is no other"),
        pytest.param(
            {"warm": victims("ph1"), "mixed": victims("ateom"), "cold": victims("stranger")},
            True,
            ["warm"],
            {"mixed": decide.WORSE, "cold": decide.WORSE},
            id="only placeholders where those alone make room",
        ),
        pytest.param(
            {"mixed": victims("ph5", "ateom"), "cold": victims("stranger")},
            False,
            [],
            {"mixed": decide.STRANGERS, "cold": decide.STRANGERS},
            id="never a stranger unless allowed",
        ),
        pytest.param(
            {"mixed": victims("ateom"), "cold": victims("stranger")},
            True,
            ["cold", "mixed"],
            {},
            id="strangers when allowed and nothing better is there",
        ),
        pytest.param({"crashing": victims("stranger")}, True, [], {"crashing": why.CRASHING}, id="filter's drop rules"),
        pytest.param({"nowhere": victims("ph1")}, True, [], {"nowhere": why.UNKNOWN}, id="an unknown node"),
        pytest.param(
            {"warm": victims("ph3"), "warm2": victims("ph3")},
            True,
            ["warm2"],
            {"warm": decide.ELSEWHERE},
            id="a victim that is not on that node",
        ),
        pytest.param(
            {"warm": None, "cold": victims("ph4")},
            True,
            ["cold"],
            {"warm": decide.NOTHING},
            id="null instead of victims",
        ),
        pytest.param(
            {"warm": victims("ph1"), "cold": victims(), "mixed": victims("ateom")},
            True,
            ["cold"],
            {"warm": decide.NEEDLESS, "mixed": decide.NEEDLESS},
            id="a cold node where nobody goes before a warm one where a placeholder does",
        ),
        pytest.param(
            {"warm": MetaVictims(None), "cold": victims()},
            False,
            ["warm"],
            {"cold": decide.COLDER},
            id="of two where nobody goes, the warm one",
        ),
        pytest.param(
            {"crashing": victims(), "warm2": victims("ph3")},
            True,
            ["warm2"],
            {"crashing": why.CRASHING},
            id="a node that filter refuses still is not answered because nobody would go there",
        ),
    ],
)
def test_what_may_be_preempted(
    asked: dict[str, MetaVictims | None], others: bool, kept: list[str], dropped: dict[str, str]
) -> None:
    verdict = decide.decide(case(KNOWN), asked, others=others)
    assert (sorted(verdict.keep), verdict.dropped) == (kept, dropped)
    assert all(verdict.keep[name] is asked[name] for name in kept), "victims are never changed"


@pytest.mark.parametrize(
    ("asked", "dropped"),
    [
        pytest.param(["large"], {}, id="what it takes is given back"),
        pytest.param(["small"], {"cold": why.NO_ROOM}, id="too little is given back"),
        pytest.param(["large", "nobody"], {"cold": decide.ELSEWHERE}, id="a UID that was not read there"),
    ],
)
@pytest.mark.parametrize("placeholder", [False, True])
def test_a_stranger_gives_back_what_was_read_of_it(
    asked: list[str], dropped: dict[str, str], placeholder: bool
) -> None:
    """Also beside a placeholder on a warm node, whose room does not count anyway."""
    more = (pod("ph", "cold", placeholder=True), atelet("cold")) if placeholder else ()
    known = ledger(node("cold", "A", cpu=4000), *more)
    each: dict[str, Amounts] = {"large": (("cpu", 2000),), "small": (("cpu", 700),), "other": (("cpu", 1000),)}
    known.others_read("cold", "cold-uid", Reading((("cpu", 3700),), 3, frozenset(), 0.0, each))
    tight = case(known, atelet_template=template(cpu=500))
    verdict = decide.decide(tight, {"cold": victims(*asked)}, others=True)
    assert verdict.dropped == dropped and bool(verdict.keep) is not bool(dropped)


def test_where_nobody_goes_there_must_be_room_beside_atelet() -> None:
    """The scheduler says that the pod fits, and does not know what atelet needs."""
    known = ledger(node("full", cpu=1500), node("free", cpu=3000))
    asked: dict[str, MetaVictims | None] = {"full": victims(), "free": victims()}
    verdict = decide.decide(case(known, atelet_template=template(cpu=1000)), asked, others=True)
    assert (list(verdict.keep), verdict.dropped) == (["free"], {"full": why.NO_ROOM})


def test_room_that_would_not_do_beside_atelet_is_not_made() -> None:
    known = ledger(node("cold", cpu=2000), pod("ph", "cold", placeholder=True))
    known.others_read("cold", "cold-uid", Reading((("cpu", 1000),), 3, frozenset(), 0.0))
    tight = case(known, atelet_template=template(cpu=100))
    assert decide.decide(tight, {"cold": victims("ph")}, others=False).dropped == {"cold": why.NO_ROOM}
    assert decide.decide(case(known), {"cold": victims("ph")}, others=False).keep


@pytest.mark.parametrize(
    ("shape", "rules"),
    [
        pytest.param(SMALL, Rules(ateoms_per_node=2), id="the cap"),
        pytest.param(NOTHING, Rules(), id="pods without requests"),
    ],
)
def test_ateoms_that_go_count_no_longer(shape: Shape, rules: Rules) -> None:
    """Else an important pool would never get a node that a lesser one has filled."""
    known = ledger(*ready("n1", "A", pods=[pod("1", "n1", shape=shape), pod("2", "n1", shape=shape)]))
    known.node_seen(node("n1", "A", version=2, cpu=2000 if shape is SMALL else 200), 0)
    crowded = case(known, shape=shape, rules=rules)
    assert decide.decide(crowded, {"n1": victims("1")}, others=True).dropped == {}
    placeholder = ledger(*ready("n1", "A", pods=[pod("1", "n1"), pod("2", "n1"), pod("3", "n1", placeholder=True)]))
    capped = case(placeholder, rules=Rules(ateoms_per_node=2))
    assert decide.decide(capped, {"n1": victims("3")}, others=True).dropped == {"n1": why.CROWDED}


def test_room_for_the_next_is_made_with_the_pools_own_large_enough_ones_and_within_the_cap() -> None:
    half = Shape((("cpu", 500),), (("cpu", 500),))
    placeholders = [
        *(pod(f"ph{number}", "n1", placeholder=True) for number in range(4)),
        pod("small", "n1", shape=half, placeholder=True),
        pod("foreign", "n1", "B", placeholder=True),
        pod("budget", "n2", placeholder=True),
        pod("unasked", "n3", placeholder=True),
    ]
    known = ledger(*ready("n1", "A", pods=[pod("a1", "n1")]), *ready("n2", "A"), *ready("n3", "A"), *placeholders)
    nodes = {"n1": victims("ph0"), "n2": victims("budget", violations=1)}

    def chosen(need: int, most: int = 0) -> list[str]:
        asked = case(known, rules=Rules(ateoms_per_node=most))
        return [one.uid for one in decide.for_the_next(asked, nodes, placeholders[1:], need)]

    assert (chosen(0), chosen(2), chosen(9)) == ([], ["ph1", "ph2"], ["ph1", "ph2", "ph3"])
    assert chosen(9, most=4) == ["ph1", "ph2"], "one is there, and one is for the pod that asks"
