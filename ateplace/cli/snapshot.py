"""A cluster with ateplace at one moment: made from what the API shows (pure), and compared."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ateplace import names
from ateplace.cluster import records
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.pool_rules import PoolRules
from ateplace.cluster.records import AteletRecord, PodRecord
from ateplace.kube.objects import Node, Pod, WorkerPool
from ateplace.reconciler.pool_pods import seconds_left

NOWHERE = "–"


@dataclass
class PoolOnNode:
    """One pool on one node."""

    claimed: str | None = None
    """The claim's value: an RFC 3339 time, or empty; None without a claim."""
    ateoms: int = 0
    ready: int = 0
    placeholders: int = 0
    in_flight: int = 0
    """Picks that an extender has answered and that are not bound yet."""


@dataclass
class NodeRow:
    """One node."""

    name: str
    labelled: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    atelet: str = NOWHERE
    """`ready`, `starting`, `terminating`, or what keeps it from running."""
    pools: dict[str, PoolOnNode] = field(default_factory=dict)
    """By the pool's name, or by its UID when there is no such pool any more."""

    @property
    def zone(self) -> str:
        return self.labels.get(names.ZONE_LABEL, "")

    @property
    def claims(self) -> list[str]:
        return sorted(pool for pool, tenant in self.pools.items() if tenant.claimed is not None)

    @property
    def ateoms(self) -> Counter[str]:
        return Counter({pool: tenant.ateoms for pool, tenant in self.pools.items() if tenant.ateoms})

    @property
    def placeholders(self) -> int:
        return sum(tenant.placeholders for tenant in self.pools.values())


@dataclass
class PoolRow:
    """One WorkerPool."""

    name: str
    uid: str
    replicas: int = 0
    deleting: bool = False
    ateoms: int = 0
    ready: int = 0
    waiting: int = 0
    """Ateoms that are on no node yet."""
    placeholders: int = 0
    unplaced: int = 0
    """Placeholders that are on no node yet."""
    nodes: int = 0
    """Nodes with its claim."""
    draining: int = 0
    """Ateoms that are being deleted, within their grace, which may be an hour."""
    overdue: int = 0
    """Those that are over it."""


@dataclass
class Picture:
    """The cluster at one moment."""

    nodes: dict[str, NodeRow]
    pools: dict[str, str]
    """UID to `namespace/name`."""
    rows: dict[str, PoolRow]
    waiting: int
    """Ateoms that are on no node yet."""
    rules: dict[str, PoolRules] = field(default_factory=dict)
    """By the pool's name."""

    @property
    def claimed(self) -> set[str]:
        return {name for name, row in self.nodes.items() if row.claims}

    def zones(self, pool: str) -> Counter[str]:
        """How many ateoms a pool has in each zone; empty where there are no two zones."""
        zones = Counter(dict.fromkeys((row.zone for row in self.nodes.values()), 0))
        for row in self.nodes.values():
            if there := row.pools.get(pool):
                zones[row.zone] += there.ateoms
        return zones if len(zones) > 1 else Counter()

    @property
    def with_atelet(self) -> set[str]:
        return {name for name, row in self.nodes.items() if row.atelet != NOWHERE}

    @property
    def with_ateoms(self) -> set[str]:
        return {name for name, row in self.nodes.items() if row.ateoms}


def compose(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    atelets: Iterable[Pod],
    pools: Iterable[WorkerPool],
    *,
    pool_label: str = names.POOL_LABEL,
    in_flight: Mapping[str, Mapping[str, int]] | None = None,
    now: datetime | None = None,
) -> Picture:
    """Put together what was read. `pods`: ateoms and placeholders; `in_flight`: node to pool UID to count."""
    rows, rules, ledger = {}, {}, Ledger()
    for pool in pools:
        seen = records.pool_record(pool)
        ledger.pool_seen(seen, 0.0)
        meta = pool.metadata
        name = f"{meta.namespace}/{meta.name}"
        replicas = pool.spec.replicas if pool.spec else 0
        rows[name] = PoolRow(name, meta.uid, replicas, deleting=meta.deletion_timestamp is not None)
        rules[name] = seen.rules
    by_uid = {row.uid: name for name, row in rows.items()}
    found = {}
    for node in nodes:
        record = records.node_record(node)
        claims = {by_uid.get(uid, uid): PoolOnNode(value) for uid, value in record.claims.items()}
        found[record.name] = NodeRow(record.name, record.labelled, record.labels, pools=claims)
        for pool_name in claims:
            if pool_name in rows:
                rows[pool_name].nodes += 1
    picture = Picture(found, by_uid, rows, 0, rules)
    for pod in pods:
        _count(picture, pod, pool_label, ledger, now or datetime.now(UTC))
    by_node: dict[str, list[AteletRecord]] = {}
    for pod in atelets:
        if atelet := records.atelet_record(pod):
            by_node.setdefault(atelet.node, []).append(atelet)
    for name in by_node.keys() & found.keys():
        found[name].atelet = atelet_state(by_node[name])
    for node_name, counts in (in_flight or {}).items():
        for uid, count in counts.items():
            if node_name in found:
                found[node_name].pools.setdefault(by_uid.get(uid, uid), PoolOnNode()).in_flight += count
    return picture


def _count(picture: Picture, pod: Pod, pool_label: str, ledger: Ledger, now: datetime) -> None:
    record = records.pod_record(pod, pool_label)
    if record is None or record.finished:
        return
    pool = pool_shown(record, ledger, picture.pools)
    row = picture.rows.get(pool)
    node = picture.nodes.get(record.node)
    if node is None:
        if not record.placeholder:
            picture.waiting += 1
        if row:
            row.waiting += not record.placeholder
            row.unplaced += record.placeholder
        return
    tenant = node.pools.setdefault(pool, PoolOnNode())
    if record.placeholder:
        tenant.placeholders += 1
    else:
        tenant.ateoms += 1
        tenant.ready += is_ready(pod)
    if row:
        row.placeholders += record.placeholder
        row.ateoms += not record.placeholder
        row.ready += not record.placeholder and is_ready(pod)
        left = None if record.placeholder else seconds_left(pod.metadata, now)
        row.draining += left is not None and left >= 0
        row.overdue += left is not None and left < 0


def pool_shown(record: PodRecord, ledger: Ledger, pools: Mapping[str, str]) -> str:
    """Under which name a pod is counted; `pools`: UID to `namespace/name`.

    A pool that is gone has no name any more, even if another one has got it; the UID stands for it, and for the pool
    that a forged label names.
    """
    uid = ledger.owners.pool_of(record)
    return pools.get(uid) or record.pool_uid or f"{record.namespace}/{record.pool}"


def is_ready(pod: Pod) -> bool:
    """Whether its condition says so."""
    conditions = pod.status.conditions if pod.status else None
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions or ())


def atelet_state(atelets: Iterable[AteletRecord]) -> str:
    """What `NodeRow.atelet` says of a node's atelets.

    During an upgrade one version's ends while the next one's waits for its host port: that one counts.
    """
    one = min(atelets, key=lambda one: (one.terminating, not one.ready, one.name), default=None)
    if one is None:
        return NOWHERE
    if one.terminating:
        return "terminating"
    return "ready" if one.ready else one.trouble or "starting"


def changes(old: Picture, new: Picture) -> list[str]:
    """What happened between two moments, a line each."""
    lines = [f"pool {name} created" for uid, name in new.pools.items() if uid not in old.pools]
    lines += [f"pool {name} is gone" for uid, name in old.pools.items() if uid not in new.pools]
    for name, pool in new.rows.items():
        was = old.rows.get(name)
        if was and was.uid == pool.uid and was.replicas != pool.replicas:
            lines.append(f"pool {name} wants {pool.replicas} ateoms, no longer {was.replicas}")
        if was and was.uid == pool.uid and pool.deleting and not was.deleting:
            lines.append(f"pool {name} is being deleted")
    for name, row in new.nodes.items():
        before = old.nodes.get(name)
        if before is None:
            lines.append(f"{name} joined")
            continue
        lines += [f"{name} claimed for {pool}" for pool in row.claims if pool not in before.claims]
        lines += [f"{name} released by {pool}" for pool in before.claims if pool not in row.claims]
        if row.atelet != before.atelet:
            lines.append(f"{name}: atelet {row.atelet if row.atelet != NOWHERE else 'gone'}")
        came = row.ateoms.total() - before.ateoms.total()
        if came:
            lines.append(f"{name}: {came:+d} ateoms, now {row.ateoms.total()}")
        if row.placeholders != before.placeholders:
            lines.append(f"{name}: {row.placeholders - before.placeholders:+d} placeholders, now {row.placeholders}")
    lines += [f"{name} left" for name in old.nodes if name not in new.nodes]
    return lines


def as_data(picture: Picture) -> dict[str, Any]:
    """The same for machines; names as in the API, stable."""
    return {
        "nodes": [
            {
                "name": row.name,
                "labelled": row.labelled,
                "atelet": None if row.atelet == NOWHERE else row.atelet,
                "pools": [
                    {
                        "pool": pool,
                        "claimed": tenant.claimed is not None,
                        "claim": tenant.claimed,
                        "ateoms": tenant.ateoms,
                        "ready": tenant.ready,
                        "placeholders": tenant.placeholders,
                        "inFlight": tenant.in_flight,
                    }
                    for pool, tenant in sorted(row.pools.items())
                ],
            }
            for row in picture.nodes.values()
        ],
        "pools": [
            {
                "pool": row.name,
                "uid": row.uid,
                "replicas": row.replicas,
                "deleting": row.deleting,
                "ateoms": row.ateoms,
                "ready": row.ready,
                "waiting": row.waiting,
                "placeholders": row.placeholders,
                "placeholdersWaiting": row.unplaced,
                "nodes": row.nodes,
                "draining": row.draining,
                "overdue": row.overdue,
            }
            for row in picture.rows.values()
        ],
    }
