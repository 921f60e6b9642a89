"""From a call to a case: the pod's pool, and whether anything can be decided now."""

import asyncio
import math
import time

from ateplace import errors
from ateplace.clock import boottime
from ateplace.cluster.feed import View
from ateplace.cluster.records import PodRecord, pool_record
from ateplace.cluster.state import Pool
from ateplace.kube import Kube, paths
from ateplace.kube.objects import WorkerPool
from ateplace.settings import Settings
from extender.demand import Demand
from extender.fit import Case, Rules
from extender.rooms import Rooms


class Unfit(Exception):
    """Nothing can be decided now; the message is for the scheduler's event."""


class Cases:
    def __init__(self, kube: Kube, view: View, settings: Settings, rooms: Rooms) -> None:
        self._kube = kube
        self._view = view
        self._rooms = rooms
        self._rules = Rules.of(settings)
        substrate = settings.substrate
        self._missing = f"there is no DaemonSet with {substrate.atelet_selector} in {substrate.atelet_namespace}"

    def blind(self) -> bool:
        """Whether nothing can be decided here now: another replica may see more."""
        return self._view.reason() is not None

    async def pool(self, record: PodRecord, until: float) -> str:
        """The UID of the pod's pool, which must be alive. One that the watch has not shown yet is asked for once."""
        if reason := self._view.reason():
            raise Unfit(reason)
        ledger = self._view.ledger
        pool = ledger.pool_named(record.namespace, record.pool)
        if pool is None or pool.record is None or (record.pool_uid and pool.uid != record.pool_uid):
            try:
                path = paths.POOLS.named(record.pool, record.namespace)
                async with asyncio.timeout_at(until):
                    found = pool_record(await self._kube.get(path, WorkerPool))
            except errors.NotFound as error:
                raise Unfit(f"there is no WorkerPool {record.namespace}/{record.pool}") from error
            if record.pool_uid and found.uid != record.pool_uid:
                raise Unfit(f"the WorkerPool that this pod was made for is gone ({record.pool_uid})")
            pool = ledger.pools.get(found.uid)
            known = pool.record if pool else None
            if known is None and found.version <= self._view.pools.version:
                # The watch has shown it coming and going meanwhile, and will never speak of it again.
                raise Unfit(f"there is no WorkerPool {record.namespace}/{record.pool} any more")
            if known is None or known.version < found.version:
                ledger.pool_seen(found, time.monotonic())  # else the watch was quicker, and knows more
            pool = ledger.pools[found.uid]
        if pool.record is None or pool.record.deleting:
            raise Unfit(f"the WorkerPool {record.namespace}/{record.pool} is being deleted")
        return pool.uid

    def make(self, wanted: Demand, begun: float = math.inf) -> Case:
        """What is known now about this pod; raises Unfit while there is no atelet to make room for. `begun`: when its
        call began (`ateplace.clock`); inf when it is in none."""
        if not self._view.ledger.templates:
            raise Unfit(self._missing)
        now, reply_since = time.monotonic(), min(begun, boottime() - self._rules.window)
        return Case(wanted, self._view.ledger, self._rules, now, reply_since, self._rooms.held(now))

    def claimant(self, wanted: Demand) -> Pool | None:
        """The pod's pool, if something can be decided for it now and claimed without being asked."""
        pool = self._view.ledger.pools.get(wanted.pool)
        known = pool.record if pool else None
        blind = self._view.reason() or not self._view.ledger.templates
        return None if blind or known is None or known.deleting else pool
