"""Short words for what filter chooses from."""

import json

from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import AteletRecord, NodeRecord, PodRecord, PoolRecord
from ateplace.cluster.resources import Shape
from ateplace.cluster.state import Reading
from ateplace.extender.context import Case, Rules
from ateplace.extender.filter.choose import choose
from ateplace.extender.protocol import Names
from tests.unit.cluster import case, ledger, node, pod, pool, ready, template

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


HALF = Shape((("cpu", 500),), (("cpu", 500),))


def restarted(*more: Seen) -> Ledger:
    """13 of the 15 that fit beside atelet are bound; two that the process before us has answered are not."""
    bound = (pod(f"b{each}", "n1", shape=HALF) for each in range(13))
    flying = (pod(f"f{each}", shape=HALF) for each in range(2))
    return ledger(pool(), node("n1", "A"), *bound, *flying, pod("new", shape=HALF), *more)


def half(known: Ledger, uid: str = "new") -> Case:
    return case(known, uid=uid, shape=HALF, atelet_template=template(cpu=500))
