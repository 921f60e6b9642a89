"""The rules of a pool, applied to one pod and one node (pure; filter and preempt ask through `extender.fit`).

What is counted is what this process knows: pods that its watches show on nodes, and its own picks in flight. What
another replica has answered and the scheduler has not bound yet is not among that, so a rule can be exceeded by as much
as is in flight there at that moment, and by no more (docs/rules.md).

A reason begins with `rule`, the rule's name and its value, and has the numbers that it was decided by.
"""

import copy
from collections import Counter
from math import inf
from typing import Final

from msgspec import Struct, structs

from ateplace.cluster.ledger import Ledger
from ateplace.cluster.pool_rules import NONE, PoolRules, Quota
from ateplace.cluster.state import Node, Pool, PoolOnNode, State
from ateplace.extender.demand import Demand

PREFIX: Final = "rule "
UNREADABLE: Final = "rule that cannot be read"


class Limits(Struct, gc=False):
    """What the rules of a pod's pool allow now. The pod's own pick, if it has one, does not count."""

    rules: PoolRules
    placeholder: bool
    there: dict[str, int]
    """By node, how many of the pool's ateoms are there; for a placeholder, its placeholders too."""
    alike: set[str]
    """Nodes with an ateom that stays: one of the pod's own generation that is not on its way out."""
    value: str | None = None
    """The value that all its nodes must have for the label `rules.same`; None while nothing has chosen one."""
    zones: frozenset[str] = frozenset()
    """Zones to keep out of, as long as others will do."""
    namespace: str = ""
    quota: Quota | None = None
    held: frozenset[str] = frozenset()
    """Nodes that the pools of its namespace hold, if that has a quota."""

    @property
    def spreads(self) -> bool:
        """Whether the pod must go to a node that has no ateom like it yet."""
        return not self.placeholder and len(self.alike) < self.rules.min_nodes

    def refuses(self, node: Node) -> str:
        """Why no pod like this one may go to the node; empty when it may."""
        rules = self.rules
        if rules.wrong:
            return f"{PREFIX}of the pool cannot be read: {rules.wrong}"
        labels = node.record.labels if node.record else {}
        if rules.same and rules.same not in labels:
            return f"{PREFIX}same={rules.same}: the node has no such label"
        if rules.same and self.value is not None and labels[rules.same] != self.value:
            return f"{PREFIX}same={rules.same}: the pool is on nodes with {self.value or 'an empty value'}"
        if rules.max_per_node and self.there.get(node.name, 0) >= rules.max_per_node:
            return f"{PREFIX}max-per-node={rules.max_per_node}: the node has {self.there[node.name]} of the pool"
        if self.spreads and node.name in self.alike:
            return f"{PREFIX}min-nodes={rules.min_nodes}: the pool is on {len(self.alike)}, this one included"
        if self.quota and node.name not in self.held:
            if self.quota.wrong_nodes:
                return f"{PREFIX}max-nodes of namespace {self.namespace} cannot be read: {self.quota.wrong_nodes}"
            if self.quota.max_nodes is not None and len(self.held) >= self.quota.max_nodes:
                return f"{PREFIX}max-nodes={self.quota.max_nodes}: namespace {self.namespace} holds {len(self.held)}"
        return f"{PREFIX}min-nodes: its zone has some of the pool" if node.zone in self.zones else ""

    def room(self, name: str) -> float:
        """How many more of the pool's pods the rules let go to a node at once."""
        if self.spreads:
            return 1
        return self.rules.max_per_node - self.there.get(name, 0) if self.rules.max_per_node else inf

    def take(self, node: Node) -> "Limits":
        """The same once this pod is on the node: for those that come after it."""
        after = structs.replace(self, there=copy.copy(self.there), alike={*self.alike, node.name}, zones=frozenset())
        after.there[node.name] = self.there.get(node.name, 0) + 1
        after.held = self.held | {node.name}
        if self.rules.same and self.value is None and node.record:
            after.value = node.record.labels.get(self.rules.same)
        return after

    def apart(self, ledger: Ledger) -> "Limits | None":
        """The same, kept out of the zones where the pool is; None when that is no other question."""
        if not self.spreads or self.zones or len(ledger.zones) < 2:
            return None
        zones = frozenset(ledger.nodes[name].zone for name in self.alike)
        return structs.replace(self, zones=zones) if zones else None


def limits(ledger: Ledger, demand: Demand) -> Limits | None:
    """None when neither the pool nor its namespace has rules, as most have not."""
    pool = ledger.pools.get(demand.pool)
    if pool is None or pool.record is None:
        return None
    rules, quota = pool.record.rules, ledger.quotas.get(pool.namespace)
    if rules is NONE and quota is None:
        return None
    attempt = ledger.picks.attempts.get(demand.uid)
    own = attempt.node if attempt else ""
    counted = {name: _counted(there, demand, own=name == own) for name, there in pool.nodes.items()}
    return Limits(
        rules,
        demand.placeholder,
        {name: count for name, count in counted.items() if count},
        _alike(ledger, demand) if rules.min_nodes and not demand.placeholder else set(),
        _value(ledger, pool, rules.same, own) if rules.same else None,
        namespace=pool.namespace,
        quota=quota,
        held=_held(ledger, pool, own) if quota else frozenset(),
    )


def kind(reason: str) -> str:
    """A reason without its numbers, for a metric's label."""
    if not reason.startswith(PREFIX):
        return reason
    said = reason.partition("=")[0].partition(":")[0]
    return UNREADABLE if said.endswith("cannot be read") else said


def _counted(there: PoolOnNode, demand: Demand, *, own: bool) -> int:
    if demand.placeholder:
        return there.ateoms + there.placeholders + there.picks - own
    return there.ateoms + there.picks - there.placeholder_picks - own


def _held(ledger: Ledger, pool: Pool, own: str) -> frozenset[str]:
    """Without a node where nothing is but this pod's own pick."""
    held, there = ledger.held_nodes(pool.namespace), pool.nodes.get(own)
    alone = there is not None and there.value is None and there.picks == 1 and not (there.ateoms or there.placeholders)
    if alone and not any(own in one.nodes for one in ledger.pools_of(pool.namespace) if one is not pool):
        held.discard(own)
    return frozenset(held)


def _alike(ledger: Ledger, demand: Demand) -> set[str]:
    """In a rolling update the old ateoms are about to go: only those of the pod's own generation count."""
    pods, attempts = ledger.pods, ledger.picks.attempts
    bound = {
        one.node
        for one in pods.values()
        if one.node
        and one.pool_uid == demand.pool
        and one.template == demand.template
        and not (one.placeholder or one.terminating)
    }
    coming = {
        attempt.node
        for uid, attempt in attempts.items()
        if attempt.node
        and attempt.pool == demand.pool
        and not attempt.placeholder
        and uid != demand.uid
        and (uid not in pods or pods[uid].template == demand.template)
    }
    return {name for name in bound | coming if name in ledger.nodes and ledger.nodes[name].record}


def _value(ledger: Ledger, pool: Pool, key: str, own: str) -> str | None:
    """The value that most of the pool's pods have; without pods, the one of a node that was claimed for some to come:
    another replica may have answered it."""
    pods: Counter[str] = Counter()
    claims: Counter[str] = Counter()
    for name, there in pool.nodes.items():
        record = ledger.nodes[name].record
        value = record.labels.get(key) if record else None
        if value is not None:
            pods[value] += there.ateoms + there.placeholders + there.picks - (name == own)
            claims[value] += ledger.claims.state(name, pool.uid) is State.FRESH
    for counts in (pods, claims):
        found = [(-count, value) for value, count in counts.items() if count > 0]
        if found:
            return min(found)[1]
    return None
