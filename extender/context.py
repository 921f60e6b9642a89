"""All that is known when a pod is decided: the pod's demand and pool, the ledger, the settings, the time."""

import asyncio
import time
from collections.abc import Mapping
from math import inf
from typing import Protocol

from msgspec import Struct

from ateplace import errors, label_selectors
from ateplace.cluster.claims import boottime
from ateplace.cluster.feed import View
from ateplace.cluster.ledger import READ, Ledger
from ateplace.cluster.records import PodRecord, pool_record
from ateplace.extender import served
from ateplace.extender.demand import Demand
from ateplace.extender.rules import Limits, limits
from ateplace.extender.served import Wanted
from ateplace.extender.victims import Victims
from ateplace.kube import Kube, paths
from ateplace.kube.objects import WorkerPool
from ateplace.settings import Settings


class TryAgain(errors.AteplaceError):
    """Nothing can be decided now, and soon it can; the message is for the scheduler's event.

    It is answered as an error, after which the scheduler tries again in seconds. A refusal would let it preempt.
    """


class Sent(Protocol):
    """The nodes that the scheduler sent (`extender.protocol.Names`), or those that it would send."""

    def __contains__(self, name: str) -> bool: ...

    def all(self) -> list[str]: ...


class Rules(Struct, frozen=True, gc=False):
    """The settings that decisions depend on."""

    ateoms_per_node: int = 0
    atelet_unready_seconds: float = 60.0
    window: float = 60.0
    """Seconds for which a write of our own may be answered again: half the linger."""
    settled: float = 120.0
    """Seconds after which what others answered by their last claim is bound: the linger."""
    reading_seconds: float = READ
    """Seconds for which what we read about a node's other pods is believed."""
    open_ahead: int = 24

    @classmethod
    def of(cls, settings: Settings) -> "Rules":
        extender = settings.extender
        return cls(
            ateoms_per_node=extender.ateoms_per_node,
            atelet_unready_seconds=extender.atelet_unready_seconds,
            window=settings.reconciler.linger / 2,
            settled=settings.reconciler.linger,
            open_ahead=extender.open_ahead,
        )


class Case(Struct, frozen=True, gc=False):
    """One pod, and everything that is known at this moment. After an await it is made anew (`Context.case`)."""

    demand: Demand
    ledger: Ledger
    rules: Rules
    now: float
    reply_since: float = inf
    """A claim that this process wrote since this moment may be answered (`extender.fit.answerable`)."""
    made_room: Mapping[str, int] = {}
    """Nodes with room that was made for ateoms (`extender.victims`): placeholders do not go there."""
    limits: Limits | None = None
    """What the rules of its pool allow; None when it has none."""
    served: Wanted | None = None
    """What the pod asks for of the resources that atelet itself serves."""

    @property
    def claims_node(self) -> bool:
        """Whether this pod claims its node. Only placeholders of a pool whose headroom is not warm do not."""
        pool = self.ledger.pools.get(self.demand.pool)
        return not self.demand.placeholder or (pool is not None and pool.warm)


class Context:
    """What the three verbs ask before they decide."""

    def __init__(self, kube: Kube, view: View, settings: Settings, victims: Victims) -> None:
        self._kube = kube
        self._view = view
        self._victims = victims
        self._rules = Rules.of(settings)
        substrate = settings.substrate
        self._served = substrate.served
        self._served_nodes = label_selectors.parse(substrate.served_nodes) if substrate.served_nodes else None
        self._missing = f"there is no DaemonSet with {substrate.atelet_selector} in {substrate.atelet_namespace}"

    def unknown(self) -> str:
        """Why nothing can be decided here now; empty when it can. Another replica may see more."""
        return self._view.reason() or ("" if self._view.ledger.templates else self._missing)

    def is_blind(self) -> bool:
        """Whether our watches are behind, so that another replica may know more."""
        return bool(self._view.reason())

    async def pool(self, record: PodRecord, until: float) -> str:
        """The UID of the pod's pool, which must be alive. One that the watch has not shown yet is asked for once."""
        if reason := self._view.reason():
            raise TryAgain(reason)
        ledger = self._view.ledger
        pool = ledger.owners.pool_named(record.namespace, record.pool)
        if pool is None or pool.record is None or (record.pool_uid and pool.uid != record.pool_uid):
            try:
                path = paths.POOLS.named(record.pool, record.namespace)
                async with asyncio.timeout_at(until):
                    found = pool_record(await self._kube.get(path, WorkerPool))
            except errors.NotFound as error:
                raise TryAgain(f"there is no WorkerPool {record.namespace}/{record.pool}") from error
            if record.pool_uid and found.uid != record.pool_uid:
                raise TryAgain(f"the WorkerPool that this pod was made for is gone ({record.pool_uid})")
            pool = ledger.pools.get(found.uid)
            known = pool.record if pool else None
            if known is None and found.version <= self._view.pools.version:
                # The watch has shown it coming and going meanwhile, and will never speak of it again.
                raise TryAgain(f"there is no WorkerPool {record.namespace}/{record.pool} any more")
            if known is None or known.version < found.version:
                ledger.pool_seen(found, time.monotonic())  # else the watch was quicker, and knows more
            pool = ledger.pools[found.uid]
        if pool.record is None or pool.record.deleting:
            raise TryAgain(f"the WorkerPool {record.namespace}/{record.pool} is being deleted")
        return pool.uid

    def case(self, wanted: Demand, begun: float = inf) -> Case:
        """What is known now about this pod; raises TryAgain while there is no atelet to make room for. `begun`: when
        its call began (`boottime`); inf when it is in none."""
        if not self._view.ledger.templates:
            raise TryAgain(self._missing)
        now, reply_since = time.monotonic(), min(begun, boottime() - self._rules.window)
        self._victims.expire(now)
        ledger, room = self._view.ledger, self._victims.made_room()
        return Case(wanted, ledger, self._rules, now, reply_since, room, limits(ledger, wanted), self._asked(wanted))

    def _asked(self, wanted: Demand) -> Wanted | None:
        """What it asks for of the resources that atelet serves. Few pods do: only for those is every node looked at."""
        requests = wanted.shape.requests
        if not any(name in self._served for name, _ in requests):
            return None
        patience = self._rules.atelet_unready_seconds
        return served.wanted(requests, self._served, self._served_nodes, patience, self._view.ledger.nodes.values())

    def may_claim(self, wanted: Demand) -> bool:
        """Whether something can be decided now for this pod's pool, and claimed without being asked."""
        pool = self._view.ledger.pools.get(wanted.pool)
        return not self.unknown() and pool is not None and pool.record is not None and not pool.record.deleting
