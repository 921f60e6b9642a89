"""How far rules of a pool were broken by replicas that do not see each other's answers (pure).

A rule that is broken by a binding was kept by what had been bound a moment before: the last binding that made it a
breach had not been seen by the replica that answered. The time between the two is how long it took to be known
(`staleness`). And by how many a rule is broken is at most what the other replicas had in flight (`breaches`).
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


@dataclass(frozen=True)
class Placed:
    """An ateom that a replica was asked about, and the node that it was bound to."""

    node: str
    replica: int
    asked: float
    bound: float


@dataclass(frozen=True)
class Breach:
    rule: str
    over: int
    """By how many the limit was exceeded with this answer."""
    in_flight: int
    """What counts for the rule and had been answered by other replicas, without being known to be bound."""


def breaches(found: Sequence[Placed], rules: Rules, *, lag: float) -> list[Breach]:
    """Each answer that broke a rule, in their order. `lag`: seconds in which a binding reaches every replica."""
    broken = []
    there: dict[str, list[Placed]] = {}
    for one in sorted(found, key=lambda placed: placed.asked):

        def flying(other: Placed, one: Placed = one) -> bool:
            return other.replica != one.replica and other.bound > one.asked - lag

        before = there.setdefault(one.node, [])
        if len(before) >= rules.max_per_node:
            over = len(before) + 1 - rules.max_per_node
            broken.append(Breach("max-per-node", over, sum(map(flying, before))))
        opened = [placed for placed in there.values() if placed]
        if not before and len(opened) >= rules.max_nodes:
            unknown = sum(all(map(flying, placed)) for placed in opened)
            broken.append(Breach("max-nodes", len(opened) + 1 - rules.max_nodes, unknown))
        before.append(one)
    return broken
