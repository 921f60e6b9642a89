"""Records for ledgers, and what is asked of one."""

from msgspec import structs

from ateplace.cluster import claims as claims_
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import AteletRecord, NodeRecord, PodRecord, PoolRecord
from ateplace.cluster.resources import MEMORY, Shape
from tests.unit import cluster

SMALL = Shape((("cpu", 100),), (("cpu", 100), ("memory", 200)))
LARGE = Shape((("cpu", 1000), ("gpu", 1)), (("cpu", 1000), ("gpu", 1), ("memory", 200)))
REPLY = 5.0
"""Half a linger, where every step takes a second."""


def node(name: str = "n1", uid: str = "", version: int = 1, **claims: str) -> NodeRecord:
    made = cluster.node(name, *claims, uid=uid, version=version)
    return structs.replace(made, claims=claims, allocatable=(("cpu", 8000), (MEMORY, 8000)))


def pod(uid: str = "p1", on: str = "", pool_uid: str = "A", *, shape: Shape = SMALL, **facts: bool) -> PodRecord:
    return structs.replace(cluster.pod(uid, on, pool_uid, shape=shape), **facts)


def pool(uid: str = "A", name: str = "pool", *, warm: bool = True) -> PoolRecord:
    return structs.replace(cluster.pool(uid, warm=warm), name=name)


def atelet(
    uid: str = "a1", on: str = "n1", *, ready: bool = False, bound: bool = True, daemonset: str = "ds"
) -> AteletRecord:
    return cluster.atelet(on, uid=uid, bound=bound, ready=ready, daemonset=daemonset)


def acknowledge(ledger: Ledger, version: int, *, sent: float = 0.0, value: str = "t", opened: bool = False) -> None:
    ledger.claims.acknowledge("n1", "n1-uid", "A", value=value, version=version, sent=sent, now=sent, opened=opened)


def answerable(ledger: Ledger, after: float) -> bool:
    return claims_.answerable(ledger.nodes["n1"].pools.get("A"), after)


def idle(ledger: Ledger, now: float) -> float | None:
    """Seconds that pool A's claim on n1 has been unused and unchanged; None when it is in use or there is none."""
    tenant = ledger.nodes["n1"].pools.get("A")
    if tenant is None or tenant.value is None or ledger.claims.live("n1", "A"):
        return None
    return now - max(tenant.changed, tenant.unused)


def missing(ledger: Ledger, name: str) -> list[str]:
    """Pools that have live pods on a node and no claim there."""
    node = ledger.nodes.get(name)
    return (
        [uid for uid, one in node.pools.items() if one.value is None and ledger.claims.live(name, uid)] if node else []
    )
