"""The measures of broken rules find those that are broken, how old the binding was that made them so, and how much was
in flight elsewhere."""

import pytest

from tests.staleness import Binding, Breach, Placed, Rules, breaches, staleness

RULES = Rules(min_nodes=2, max_per_node=2, max_nodes=3)
VALUES = {"a": "m5", "b": "m5", "c": "m5", "d": "m5", "x": "m6"}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("abcabc", {}),
        ("abaa", {"max-per-node": 1.0}),
        ("abaab" + "a", {"max-per-node": 3.0}),
        ("abcd", {"max-nodes": 1.0}),
        ("abcad", {"max-nodes": 2.0}),
        ("aab", {"min-nodes": 1.0}),
        ("abx", {"same": 2.0}),
    ],
)
def test_a_broken_rule_is_found(nodes: str, expected: dict[str, float]) -> None:
    found = [Binding(float(number), node) for number, node in enumerate(nodes)]
    assert staleness(found, RULES, VALUES) == expected
    assert staleness(found[::-1], RULES, VALUES) == expected, "in whichever order they are told"


def placed(text: str, bound_after: float) -> list[Placed]:
    """`a0 b1`: one answer a second, of node a by replica 0, then of b by 1."""
    return [Placed(one[0], int(one[1]), float(at), at + bound_after) for at, one in enumerate(text.split())]


@pytest.mark.parametrize(
    ("answers", "bound_after", "expected"),
    [
        ("a0 b1 a0 b1", 9.0, []),
        ("a0 a0 a1", 9.0, [Breach("max-per-node", 1, 2)]),
        ("a0 a0 a1 a1", 9.0, [Breach("max-per-node", 1, 2), Breach("max-per-node", 2, 2)]),
        ("a0 a0 a1", 0.5, [Breach("max-per-node", 1, 0)]),
        ("a0 a0 a0", 9.0, [Breach("max-per-node", 1, 0)]),
        ("a0 b0 c0 d1", 9.0, [Breach("max-nodes", 1, 3)]),
        ("a0 b0 c1 d1", 9.0, [Breach("max-nodes", 1, 2)]),
        ("a0 b0 c0 d1", 2.0, [Breach("max-nodes", 1, 2)]),
    ],
)
def test_a_breach_is_compared_with_what_was_in_flight_at_the_other_replica(
    answers: str, bound_after: float, expected: list[Breach]
) -> None:
    assert breaches(placed(answers, bound_after), RULES, lag=0.25) == expected
