"""How old a binding was that an extender did not know of when it broke a rule (pure).

A rule that is broken by a binding was kept by what had been bound a moment before: the last binding that made it a
breach had not been seen by the replica that answered. The time between the two is how long it took to be known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Binding:
    at: float
    node: str


@dataclass(frozen=True)
class Rules:
    """Of one pool, alone in its namespace."""

    min_nodes: int
    max_per_node: int
    max_nodes: int


def staleness(found: Sequence[Binding], rules: Rules, values: Mapping[str, str]) -> dict[str, float]:
    """By rule that was broken: the greatest number of seconds. `values`: what nodes have for the label of `same`."""
    oldest: dict[str, float] = {}
    there: dict[str, list[float]] = {}
    opened: list[float] = []
    first: Binding | None = None

    def broken(rule: str, since: float, at: float) -> None:
        oldest[rule] = max(oldest.get(rule, 0.0), at - since)

    for one in sorted(found, key=lambda binding: binding.at):
        before = there.setdefault(one.node, [])
        if len(before) >= rules.max_per_node:
            broken("max-per-node", before[rules.max_per_node - 1], one.at)
        if not before and len(opened) >= rules.max_nodes:
            broken("max-nodes", opened[rules.max_nodes - 1], one.at)
        if before and len(opened) < rules.min_nodes:
            broken("min-nodes", before[0], one.at)
        first = first or one
        if values[one.node] != values[first.node]:
            broken("same", first.at, one.at)
        if not before:
            opened.append(one.at)
        before.append(one.at)
    return oldest
