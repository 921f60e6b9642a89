"""The placement as it is, kept up to date object by object (pure).

Whose pod it is says the ledger, as it does for every role. What is shown of nodes and pools are the rows of
`ateplace status` (`ateplace.cli.snapshot`), and the words are its words; here they are only kept by counting, because
a whole look for every change would be too slow for 5,000 nodes.

    pod_changed, node_changed, ...  ->  what may be different is marked  ->  flush(at): what is different, as one Change
"""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from ateplace import names
from ateplace.cli.map import wire
from ateplace.cli.map.bursts import Bursts
from ateplace.cli.snapshot import (
    NOWHERE,
    NodeRow,
    Picture,
    PoolOnNode,
    PoolRow,
    atelet_state,
    changes,
    is_ready,
    pool_shown,
)
from ateplace.cli.tables import shown_rules
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.pool_rules import PoolRules
from ateplace.cluster.records import AteletRecord, NodeRecord, PodRecord, PoolRecord, pod_record
from ateplace.kube.objects import Pod
from ateplace.reconciler.headroom.size import quota
from ateplace.settings import Headroom

ZONE = "topology.kubernetes.io/zone"
SENTENCES = 40
"""Most of one moment: what is more is a number."""


class PodSeen(Struct, frozen=True, gc=False):
    """An ateom or a placeholder as the watch shows it."""

    record: PodRecord
    ready: bool

    @property
    def uid(self) -> str:
        return self.record.uid


def pod_seen(pod: Pod, pool_label: str = names.POOL_LABEL) -> PodSeen | None:
    """None for any other pod, and for one that has finished."""
    record = pod_record(pod, pool_label)
    return None if record is None or record.finished else PodSeen(record, is_ready(pod))


class Board:
    """`at` is the wall clock's time, `now` the ledger's."""

    def __init__(self, headroom: Headroom) -> None:
        self._ledger = Ledger()
        self._headroom = headroom
        self._bursts = Bursts()
        self._following = False
        self._pods: dict[str, PodSeen] = {}
        self._shown_pods: dict[str, wire.Pod] = {}
        self._bound: dict[str, set[str]] = {}
        """Node to the pods that are bound to it, whether or not it exists."""
        self._nodes: dict[str, NodeRecord] = {}
        self._atelets: dict[str, dict[str, AteletRecord]] = {}
        self._pools: dict[str, PoolRecord] = {}
        self._names: dict[str, str] = {}
        self._in_flight: Mapping[str, Mapping[str, int]] = {}
        self._tenants: dict[str, dict[str, PoolOnNode]] = {}
        """Node to pool to its counts; claims and picks are not in these."""
        self._counts: dict[str, Counter[str]] = {}
        """Pool to its counts."""
        self._rows: dict[str, NodeRow] = {}
        self._pool_rows: dict[str, PoolRow] = {}
        self._shown_pools: dict[str, wire.Pool] = {}
        self._totals = wire.Totals()
        self._notes: list[str] = []
        self._notes_changed = False
        self._dirty_pods: set[str] = set()
        self._dirty_nodes: set[str] = set()
        self._dirty_pools: set[str] = set()

    # What the watches show.

    def pod_changed(self, key: str, new: PodSeen | None, at: float) -> None:
        old = self._pods.pop(key, None)
        if old and (new is None or new.uid != old.uid):
            self._ledger.pod_gone(old.uid, at)
            self._bursts.gone(old.uid)
        if old and old.record.node:
            self._bound[old.record.node].discard(key)
        if new:
            self._pods[key] = new
            self._ledger.pod_seen(new.record, at)
            if new.record.node:
                self._bound.setdefault(new.record.node, set()).add(key)
            if not new.record.placeholder:
                self._time(old, new, at)
        self._dirty_pods.add(key)

    def _time(self, old: PodSeen | None, new: PodSeen, at: float) -> None:
        if (old is None or old.uid != new.uid) and not new.record.node and self._following:
            self._bursts.created(self._pool_name(new.record), new.uid, at)
        elif new.record.node and old and not old.record.node:
            self._bursts.bound(new.uid, at)

    def node_changed(self, name: str, new: NodeRecord | None, at: float) -> None:
        if (new is None) != (name not in self._nodes):
            self._dirty_pods |= self._bound.get(name, set())
        if new is None:
            self._nodes.pop(name, None)
            self._ledger.node_gone(name, at)
        else:
            self._nodes[name] = new
            self._ledger.node_seen(new, at)
        self._dirty_nodes.add(name)

    def atelet_changed(self, old: AteletRecord | None, new: AteletRecord | None) -> None:
        if old:
            self._atelets[old.node].pop(old.uid, None)
            self._dirty_nodes.add(old.node)
        if new:
            self._atelets.setdefault(new.node, {})[new.uid] = new
            self._dirty_nodes.add(new.node)

    def pool_changed(self, old: PoolRecord | None, new: PoolRecord | None, at: float) -> None:
        for gone in (old,) if old and (new is None or new.uid != old.uid) else ():
            del self._pools[gone.uid], self._names[gone.uid]
            self._ledger.pool_gone(gone.uid, at)
            self._rename(gone)
        if new:
            fresh = new.uid not in self._pools
            self._pools[new.uid], self._names[new.uid] = new, _named(new)
            self._ledger.pool_seen(new, at)
            self._dirty_pools.add(_named(new))
            if fresh:
                self._rename(new)

    def _rename(self, pool: PoolRecord) -> None:
        """A pool came or went: what belongs to it has another name from now on."""
        self._dirty_pools |= {_named(pool), pool.uid}
        self._dirty_nodes |= {name for name, node in self._nodes.items() if pool.uid in node.claims}
        self._dirty_nodes |= {name for name, counts in self._in_flight.items() if pool.uid in counts}
        self._dirty_pods |= {
            key
            for key, seen in self._pods.items()
            if seen.record.pool_uid == pool.uid
            or (seen.record.pool == pool.name and seen.record.namespace == pool.namespace)
        }

    # What else was asked.

    def in_flight_changed(self, picks: Mapping[str, Mapping[str, int]]) -> None:
        """Node to pool UID to picks that are not bound yet."""
        either = self._in_flight.keys() | picks.keys()
        self._dirty_nodes |= {name for name in either if self._in_flight.get(name) != picks.get(name)}
        self._in_flight = picks

    def noted(self, notes: list[str]) -> None:
        """What cannot be seen."""
        self._notes_changed = self._notes_changed or notes != self._notes
        self._notes = notes

    # What is different.

    @property
    def waiting(self) -> bool:
        """Whether ateoms or placeholders wait for a node, so that there may be picks."""
        return bool(self._totals.waiting or self._totals.in_flight) or any(
            row.unplaced for row in self._pool_rows.values()
        )

    def start(self, at: float, source: str) -> wire.Placement:
        """The first picture; everything from now on is a change, and new ateoms are timed."""
        first = self.flush(at)
        self._following = True
        return wire.Placement(
            id="",
            at=at,
            source=source,
            live=True,
            nodes={name: node for name, node in first.nodes.items() if node},
            pods={key: pod for key, pod in first.pods.items() if pod},
            pools={key: pool for key, pool in first.pools.items() if pool},
            totals=first.totals,
            notes=self._notes,
        )

    def changed(self, at: float) -> wire.Change | None:
        """What became different since the last time; None when nothing did."""
        change = self.flush(at)
        same = not (change.nodes or change.pods or change.pools or change.bursts or change.notes is not None)
        return None if same else change

    def flush(self, at: float) -> wire.Change:
        """The same, whether or not there is something."""
        pods = self._flush_pods()
        rows_before = {name: self._rows.get(name) for name in self._dirty_nodes}
        nodes = self._flush_nodes()
        pools_before = {name: self._pool_rows.get(name) for name in self._dirty_pools}
        pools = self._flush_pools()
        after = _picture(self._rows, self._pool_rows, rows_before, pools_before)
        said = changes(_picture(rows_before, pools_before), after)
        if len(said) > SENTENCES:
            said = [*said[:SENTENCES], f"and {len(said) - SENTENCES} more changes in this moment"]
        bursts = list(self._bursts.changed(at))
        for burst in bursts:
            if burst.over:
                said.append(
                    f"burst of {burst.created} in {burst.pool}: {burst.bound} bound, "
                    f"P50 {burst.p50 or 0:.2f} s, P99 {burst.p99 or 0:.2f} s"
                )
        notes = self._notes if self._notes_changed else None
        self._notes_changed = False
        self._dirty_nodes, self._dirty_pools = set(), set()
        # Totals of earlier changes are others' now: each change has its own.
        return wire.Change("", at, nodes, pods, pools, wire.Totals(**_fields(self._totals)), said, bursts, notes)

    def _flush_pods(self) -> dict[str, wire.Pod | None]:
        found: dict[str, wire.Pod | None] = {}
        for key in self._dirty_pods:
            seen = self._pods.get(key)
            new = self._show_pod(seen) if seen else None
            old = self._shown_pods.get(key)
            if new == old:
                continue
            if old:
                self._count(old, -1)
                del self._shown_pods[key]
            if new:
                self._count(new, 1)
                self._shown_pods[key] = new
            found[key] = new
        self._dirty_pods = set()
        return found

    def _show_pod(self, seen: PodSeen) -> wire.Pod:
        record = seen.record
        # A pod on a node that does not exist is on none, as `status` counts it.
        node = record.node if record.node in self._nodes else ""
        return wire.Pod(self._pool_name(record), node, seen.ready, record.placeholder, record.terminating)

    def _pool_name(self, record: PodRecord) -> str:
        return pool_shown(record, self._ledger, self._names)

    def _count(self, pod: wire.Pod, times: int) -> None:
        counts = self._counts.setdefault(pod.pool, Counter())
        self._dirty_pools.add(pod.pool)
        if not pod.node:
            counts["unplaced" if pod.placeholder else "waiting"] += times
            if not pod.placeholder:
                self._totals.waiting += times
            return
        self._dirty_nodes.add(pod.node)
        tenants = self._tenants.setdefault(pod.node, {})
        tenant = tenants.setdefault(pod.pool, PoolOnNode())
        if pod.placeholder:
            tenant.placeholders += times
            counts["placeholders"] += times
            self._totals.placeholders += times
        else:
            tenant.ateoms += times
            tenant.ready += times * pod.ready
            counts["ateoms"] += times
            counts["ready"] += times * pod.ready
            if pod.ready:
                self._totals.ready += times
            else:
                self._totals.starting += times
        if not (tenant.ateoms or tenant.placeholders):
            del tenants[pod.pool]

    def _flush_nodes(self) -> dict[str, wire.Node | None]:
        found: dict[str, wire.Node | None] = {}
        for name in self._dirty_nodes:
            record, old = self._nodes.get(name), self._rows.get(name)
            new = self._row(record) if record else None
            if old:
                self._total_node(old, -1)
                del self._rows[name]
            if new and record:
                self._total_node(new, 1)
                self._rows[name] = new
            if new != old:
                found[name] = _node(new, record) if new and record else None
        return found

    def _row(self, record: NodeRecord) -> NodeRow:
        row = NodeRow(record.name, record.labelled)
        for uid, value in record.claims.items():
            row.pools[self._names.get(uid, uid)] = PoolOnNode(value)
        for pool, counts in self._tenants.get(record.name, {}).items():
            tenant = row.pools.setdefault(pool, PoolOnNode())
            tenant.ateoms, tenant.ready, tenant.placeholders = counts.ateoms, counts.ready, counts.placeholders
        for uid, count in self._in_flight.get(record.name, {}).items():
            row.pools.setdefault(self._names.get(uid, uid), PoolOnNode()).in_flight += count
        row.atelet = atelet_state(self._atelets.get(record.name, {}).values())
        return row

    def _total_node(self, row: NodeRow, times: int) -> None:
        for pool in row.claims:
            self._counts.setdefault(pool, Counter())["nodes"] += times
            self._dirty_pools.add(pool)
        totals, state = self._totals, _state(row)
        setattr(totals, state, getattr(totals, state) + times)
        totals.in_flight += times * sum(tenant.in_flight for tenant in row.pools.values())

    def _flush_pools(self) -> dict[str, wire.Pool | None]:
        found: dict[str, wire.Pool | None] = {}
        by_name = {_named(pool): pool for pool in self._pools.values()}
        for name in self._dirty_pools:
            record, counts = by_name.get(name), self._counts.get(name, Counter())
            if not any(counts.values()):
                self._counts.pop(name, None)
            self._pool_rows.pop(name, None)
            new = None
            if record:
                row = PoolRow(name, record.uid, record.replicas, record.deleting, **_pool_counts(counts))
                self._pool_rows[name] = row
                present = row.placeholders + row.unplaced
                wanted = quota(record.headroom, present, record.replicas, self._headroom).count
                new = _pool(row, wanted, record.rules)
            if new != self._shown_pools.pop(name, None):
                found[name] = new
            if new:
                self._shown_pools[name] = new
        return found


def _named(pool: PoolRecord) -> str:
    return f"{pool.namespace}/{pool.name}"


def _pool_counts(counts: Counter[str]) -> dict[str, int]:
    return {key: counts[key] for key in ("ateoms", "ready", "waiting", "placeholders", "unplaced", "nodes")}


def _fields(totals: wire.Totals) -> dict[str, int]:
    return {name: getattr(totals, name) for name in wire.Totals.__slots__}


def _state(row: NodeRow) -> wire.NodeState:
    if not row.claims:
        return "cold"
    return "warm" if row.atelet == "ready" else "claimed"


def _node(row: NodeRow, record: NodeRecord) -> wire.Node:
    atelet = None if row.atelet == NOWHERE else row.atelet
    pools = [
        wire.PoolOnNode(
            pool,
            tenant.claimed is not None,
            tenant.claimed,
            tenant.ateoms,
            tenant.ready,
            tenant.placeholders,
            tenant.in_flight,
        )
        for pool, tenant in sorted(row.pools.items())
    ]
    return wire.Node(row.name, record.labels.get(ZONE, ""), _state(row), row.labelled, atelet, pools)


def _pool(row: PoolRow, headroom: int, rules: PoolRules) -> wire.Pool:
    return wire.Pool(
        row.name,
        row.uid,
        row.replicas,
        row.deleting,
        row.ateoms,
        row.ready,
        row.waiting,
        row.placeholders,
        row.unplaced,
        row.nodes,
        headroom,
        [f"rules cannot be read: {rules.wrong}"] if rules.wrong else shown_rules(rules),
    )


def _picture(
    nodes: Mapping[str, NodeRow | None],
    pools: Mapping[str, PoolRow | None],
    only_nodes: Mapping[str, object] | None = None,
    only_pools: Mapping[str, object] | None = None,
) -> Picture:
    """A picture of some rows: those that may differ are enough to say what does."""
    rows = {name: row for name in (nodes if only_nodes is None else only_nodes) if (row := nodes.get(name))}
    wanted = pools if only_pools is None else only_pools
    pool_rows = {name: pool for name in wanted if (pool := pools.get(name))}
    return Picture(rows, {pool.uid: name for name, pool in pool_rows.items()}, pool_rows, 0)
