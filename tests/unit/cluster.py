"""A small cluster in a ledger, of the records that `bench.records` makes, and a case to decide."""

from collections.abc import Iterable

from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import AteletRecord, AteletTemplate, NodeRecord, PodRecord, PoolRecord
from ateplace.cluster.resources import Shape
from ateplace.extender.context import Case, Rules
from ateplace.extender.demand import Demand
from bench.records import CORE, MIB, SMALL, atelet, node, pod, pool, template

__all__ = ["CORE", "MIB", "SMALL", "atelet", "node", "pod", "pool", "template"]

NOTHING = Shape((), (("cpu", 100), ("memory", 200 * MIB)))
EMPTY_TEMPLATE = template()


def ledger(*records: NodeRecord | PodRecord | PoolRecord | AteletRecord, now: float = 0.0) -> Ledger:
    """A ledger in which all of these were seen, and a DaemonSet of atelet that fits every node."""
    made = Ledger()
    made.daemonset_seen(EMPTY_TEMPLATE, now)
    for record in records:
        match record:
            case NodeRecord():
                made.node_seen(record, now)
            case PodRecord():
                made.pod_seen(record, now)
            case PoolRecord():
                made.pool_seen(record, now)
            case AteletRecord():
                made.atelet_seen(record, now)
    return made


def ready(name: str, *claims: str, pods: Iterable[PodRecord] = ()) -> tuple[NodeRecord | PodRecord | AteletRecord, ...]:
    """A claimed node whose atelet is Ready."""
    return (node(name, *claims), atelet(name), *pods)


def case(
    known: Ledger,
    *,
    uid: str = "new",
    pool_uid: str = "A",
    shape: Shape = SMALL,
    placeholder: bool = False,
    choosy: bool = False,
    atelet_template: AteletTemplate = EMPTY_TEMPLATE,
    rules: Rules | None = None,
    now: float = 0.0,
) -> Case:
    wanted = Demand(uid=uid, pool=pool_uid, shape=shape, placeholder=placeholder, choosy=choosy)
    rules = rules or Rules()
    known.daemonset_seen(atelet_template, now)
    return Case(wanted, known, rules, now, now - rules.window)
