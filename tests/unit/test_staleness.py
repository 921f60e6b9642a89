"""The measure of broken rules finds those that are broken, and how old the binding was that made them so."""

import pytest

from tests.staleness import Binding, Rules, staleness

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
