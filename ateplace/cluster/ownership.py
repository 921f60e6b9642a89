"""Which pool a pod belongs to.

- A pod with our UID label belongs to that pool, whether or not we have seen the pool yet: it may be gone without its
  pods. If the pool is in another namespace the label is forged, and the pod belongs to none: a pool has no pods
  outside its namespace. Once found out it stays so, even without the pool, until the watch shows the pod changed.
- A pod without the label belongs to the pool that has its namespace and name now, or to none.
"""

from typing import NamedTuple, TypeVar

from ateplace.cluster.records import PodRecord, PoolRecord
from ateplace.cluster.state import Pool
from ateplace.cluster.tables import Tables

K = TypeVar("K")


class Move(NamedTuple):
    """A pod that belongs to another pool than before; empty: to none."""

    pod: PodRecord
    before: str
    after: str


class Ownership:
    def __init__(self, tables: Tables) -> None:
        self._pods = tables.pods
        self._pools = tables.pools
        self._named: dict[tuple[str, str], str] = {}
        self._unlabelled: dict[tuple[str, str], dict[str, None]] = {}
        """By namespace and pool name, in the order in which they came: `Pool.waiting` has the longest first."""
        self._adopted: dict[str, str] = {}
        self._unproven: dict[str, dict[str, None]] = {}
        """Pool UID to the pods that carry it and came before the pool itself."""
        self._forged: set[str] = set()

    def pool_named(self, namespace: str, name: str) -> Pool | None:
        """The live pool of that name."""
        uid = self._named.get((namespace, name))
        return self._pools[uid] if uid else None

    def pool_of(self, record: PodRecord) -> str:
        """The UID of the pool that a pod belongs to; empty when none is known."""
        if not record.pool_uid:
            return self._named.get((record.namespace, record.pool), "")
        if record.uid in self._forged:
            return ""
        pool = self._pools.get(record.pool_uid)
        known = pool.record if pool else None
        return "" if known and known.namespace != record.namespace else record.pool_uid

    def owner(self, pod: PodRecord) -> str:
        """The UID of the pool that a filed pod is counted for; empty when it is none."""
        if pod.uid in self._forged:
            return ""
        return pod.pool_uid or self._adopted[pod.uid]

    def file(self, record: PodRecord) -> str:
        """Remember a pod, and say who owns it."""
        if not record.pool_uid:
            key = (record.namespace, record.pool)
            self._unlabelled.setdefault(key, {})[record.uid] = None
            adopter = self._adopted[record.uid] = self._named.get(key, "")
            return adopter
        pool = self._pools.get(record.pool_uid)
        if pool is None or pool.record is None:
            self._unproven.setdefault(record.pool_uid, {})[record.uid] = None
        elif pool.record.namespace != record.namespace:
            self._forged.add(record.uid)
            return ""
        return record.pool_uid

    def unfile(self, record: PodRecord) -> str:
        """Remember a pod no longer, and say who owned it."""
        if not record.pool_uid:
            _discard(self._unlabelled, (record.namespace, record.pool), record.uid)
            return self._adopted.pop(record.uid)
        if record.uid in self._forged:
            self._forged.discard(record.uid)
            return ""
        if record.pool_uid in self._unproven:
            _discard(self._unproven, record.pool_uid, record.uid)
        return record.pool_uid

    def prove(self, pool: PoolRecord) -> list[PodRecord]:
        """A pool that pods may have spoken of is seen at last: those in other namespaces lied, and belong to none."""
        spoke = (self._pods[uid] for uid in self._unproven.pop(pool.uid, ()))
        liars = [pod for pod in spoke if pod.namespace != pool.namespace]
        self._forged.update(pod.uid for pod in liars)
        return liars

    def name(self, pool: PoolRecord) -> list[Move]:
        """A pool has this name now: pods without the label that have it as well move."""
        key = (pool.namespace, pool.name)
        if self._named.get(key) == pool.uid:
            return []
        self._named[key] = pool.uid
        return self._readopt(key)

    def unname(self, pool: PoolRecord) -> list[Move]:
        """A pool is gone, and so is its name, unless another has it by now."""
        key = (pool.namespace, pool.name)
        if self._named.get(key) != pool.uid:
            return []
        del self._named[key]
        return self._readopt(key)

    def _readopt(self, key: tuple[str, str]) -> list[Move]:
        after = self._named.get(key, "")
        moves = [Move(self._pods[uid], self._adopted[uid], after) for uid in self._unlabelled.get(key, ())]
        self._adopted.update((move.pod.uid, after) for move in moves)
        return moves


def _discard(known: dict[K, dict[str, None]], key: K, uid: str) -> None:
    known[key].pop(uid, None)
    if not known[key]:
        del known[key]
