"""Placeholders go to warm nodes, where they are fewest, and never all to one."""

import pytest

from ateplace.cluster.ledger import Ledger
from ateplace.extender.filter.choose import choose
from ateplace.extender.fit import answerable
from tests.unit.cluster import SMALL, atelet, case, ledger, node, pod, pool, ready


class Sent(list[str]):
    def all(self) -> list[str]:
        return self


def held(on: str, *uids: str, pool_uid: str = "A") -> list[object]:
    return [pod(uid, on, pool_uid, placeholder=True) for uid in uids]


def steered(known: Ledger, *names: str, **options: object) -> str:
    choice = choose(case(known, placeholder=True, **options), Sent(names))  # type: ignore[arg-type]
    assert choice is None or choice.ahead == ()
    return choice.node.name if choice else ""


@pytest.mark.parametrize(
    ("records", "sent", "expected"),
    [
        pytest.param([*ready("w", "A"), node("c")], "cw", "w", id="warm before cold"),
        pytest.param([*ready("w", "B"), node("c")], "cw", "w", id="warm by another pool's claim"),
        pytest.param([node("a", "A"), atelet("a", ready=False), *ready("b", "A")], "ab", "b", id="Ready before coming"),
        pytest.param(
            [*ready("a", "A"), *ready("b", "A"), *held("a", "1", "2"), *held("b", "3")], "ab", "b", id="the fewest"
        ),
        pytest.param(
            [*ready("a", "A"), *ready("b", "A"), *held("a", "1"), *held("b", "2", "3", pool_uid="B")],
            "ab",
            "b",
            id="other pools' placeholders do not count",
        ),
        pytest.param([*ready("a", "A"), *ready("b", "A")], "ba", "a", id="the first by name"),
        pytest.param([*ready("a", "A"), node("c"), *held("a", "1")], "ac", "c", id="not all on one node"),
        pytest.param([*ready("a", "A"), *held("a", "1")], "a", "a", id="all on one where there is no other"),
        pytest.param(
            [*ready("a", "A"), *ready("b", "A"), node("c"), *held("a", "1"), *held("b", "2")],
            "abc",
            "a",
            id="two nodes are enough",
        ),
        pytest.param([node("c"), node("d")], "dc", "c", id="a cold one when nothing is warm"),
        pytest.param([*ready("w", "A"), node("c")], "c", "c", id="only nodes that were sent"),
        pytest.param([], "x", "", id="none that we know"),
    ],
)
def test_where_a_placeholder_goes(records: list[object], sent: str, expected: str) -> None:
    assert steered(ledger(*records), *sent) == expected  # type: ignore[arg-type]


def test_picks_in_flight_count_as_there() -> None:
    known = ledger(*ready("a", "A"), *ready("b", "A"))
    known.picks.assume("first", "A", "a", SMALL, placeholder=True, now=0.0)
    assert steered(known, "a", "b") == "b"


def test_a_node_that_failed_it_comes_last() -> None:
    known = ledger(*ready("a", "A"), node("c"))
    known.picks.assume("new", "A", "a", SMALL, placeholder=True, version="1", now=0.0)
    known.picks.failed("new")
    assert steered(known, "a", "c") == "c"
    assert steered(known, "a") == "a"


def test_headroom_that_is_not_warm_claims_nothing_and_spreads() -> None:
    known = ledger(pool("A", warm=False), node("c"), node("d"), pod("1", "c", placeholder=True))
    assert steered(known, "c", "d") == "d"
    plain = case(known, placeholder=True)
    assert answerable(plain, known.nodes["d"])
    assert not answerable(case(known), known.nodes["d"])


def test_even_so_it_prefers_nodes_that_are_warm() -> None:
    known = ledger(pool("A", warm=False), *ready("w", "B"), node("c"))
    assert steered(known, "c", "w") == "w"
