"""The reconciler's role: stand by, lead, work.

Every process keeps its view; only the leader writes. Taking over means looking at every node and pool once.
"""

import asyncio
import contextlib
import logging
import os
import platform
import uuid
from collections.abc import AsyncIterator
from typing import Final

from ateplace import names
from ateplace.certs.controller import Keeper
from ateplace.cluster.feed import View
from ateplace.cluster.state import Pool
from ateplace.process.runtime import Runtime
from ateplace.reconciler import metrics
from ateplace.reconciler.claims.atelet_late import AteletLate
from ateplace.reconciler.claims.release import NodeClaims
from ateplace.reconciler.events import Events
from ateplace.reconciler.gating import Gating
from ateplace.reconciler.headroom.controller import Headroom
from ateplace.reconciler.headroom.metrics import Workers
from ateplace.reconciler.leader import Election
from ateplace.reconciler.pools import Pools
from ateplace.reconciler.quotas import Quotas
from ateplace.reconciler.resync import Compare, WatchDiffers
from ateplace.reconciler.strays import Strays
from ateplace.reconciler.workqueue import Queue

log = logging.getLogger(__name__)

CLAIMS_FIRST: Final = 10.0
"""Seconds for which a new leader looks at nodes only, unless it has seen all of them sooner."""
SHOWN_SECONDS: Final = 60.0
"""How long a process that has missed something, and decides nothing any more, can still be asked how much."""


class Reconciler:
    """Puts the parts together; `run` stands by, and leads when it is this process's turn."""

    def __init__(self, runtime: Runtime) -> None:
        settings = runtime.settings
        kube = runtime.kube
        self._runtime = runtime
        self._settings = settings
        self._view = view = View.of(runtime)
        identity = f"{platform.node()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self._events = Events(kube, identity)
        self._claims = NodeClaims(kube, view, settings, self._events)
        self._late = AteletLate(kube, view.ledger, settings, self._events)
        self._gating = Gating(kube, view.ledger, settings, self._events)
        self._headroom = Headroom(kube, view, settings, self._events, lambda: self.election.leading)
        self._workers = Workers(
            view.ledger,
            self._headroom.wanted,
            view.placeholders.store,
            ateoms_per_node=settings.extender.ateoms_per_node,
        )
        view.follow_pods(self._workers.changed)
        workers = settings.reconciler.workers
        self._nodes = Queue("nodes", self._node, workers=workers)
        # Few at a time: a finalizer can wait for a moment, a pod that waits for its atelet should not.
        self._pools = Queue("pools", self._pool, workers=max(1, workers // 2), lane=view.ledger.namespace_of)
        self._finalizers = Pools(kube, view.ledger, settings, self._events, look_at=self._nodes.add)
        self._quotas = Quotas(view.ledger, self._events)
        self._strays = Strays(kube, view.ledger, self._claims.unbound, settings.substrate.pool_label)
        self._compare = Compare(view, {self._nodes: self._due_nodes, self._pools: self._due_pools})
        self.election = Election(kube, settings.cluster.namespace, identity, seconds=settings.reconciler.lease_seconds)
        view.ledger.subscribe(node=self._nodes.add, pool=self._pools.add)
        metrics.NODES_CLAIMED.set_function(lambda: len(view.ledger.claims.nodes))
        for queue in (self._nodes, self._pools, self._headroom.queue):
            metrics.QUEUE_DEPTH.labels(queue.name).set_function(queue.__len__)

    async def run(self) -> None:
        """Until cancelled, or until our copy turns out wrong: then the process ends, to start from a full list."""
        await self._view.synced()
        try:
            await self.election.run(self._lead)
        except* WatchDiffers:
            self._view.distrust("a watch has missed changes")
            await asyncio.sleep(SHOWN_SECONDS)
            raise

    async def _lead(self) -> None:
        self._claims.begin()
        try:
            await self._work()
        finally:
            for part in (self._claims, self._late, self._gating, self._finalizers, self._quotas, self._events):
                part.forget()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run(lambda: self._view.ledger.nodes))
            group.create_task(self._gating.run())
            # Ateoms wait for their nodes' claims; what follows only competes with them for the API server.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._nodes.seen(), CLAIMS_FIRST)
            group.create_task(self._pools.run(lambda: self._view.ledger.pools))
            group.create_task(self._events.run())
            group.create_task(self._headroom.run())
            group.create_task(self._workers.run())
            group.create_task(self._compare.run(self._settings.reconciler.resync))
            if self._settings.certs.managed:
                group.create_task(Keeper(self._runtime.kube, self._settings).run())

    async def _node(self, name: str) -> float | None:
        if not self.election.leading:
            return 1.0
        looks = (await self._claims.reconcile(name), await self._late.look(name))
        return min((look for look in looks if look is not None), default=None)

    async def _pool(self, uid: str) -> float | None:
        if not self.election.leading:
            return 1.0
        self._quotas.look(uid)
        looks = (await self._finalizers.reconcile(uid), await self._strays.look(uid))
        return min((look for look in looks if look is not None), default=None)

    def _due_nodes(self) -> list[str]:
        return [name for name in self._view.ledger.nodes if self._claims.due(name)]

    def _due_pools(self) -> list[str]:
        return [uid for uid, pool in self._view.ledger.pools.items() if _due(pool)]


def _due(pool: Pool) -> bool:
    """Whether a pool lacks our finalizer, or waits for us to take it off."""
    return pool.record is not None and (names.FINALIZER in pool.record.finalizers) == pool.record.deleting


@contextlib.asynccontextmanager
async def role(runtime: Runtime) -> AsyncIterator[None]:
    """Entered: standing by. Left: stopped, the lease handed back (already when the process begins to stop)."""
    reconciler = Reconciler(runtime)
    work = runtime.spawn(_until_stopping(runtime, reconciler), "reconciler")
    try:
        yield
    finally:
        work.cancel()
        await asyncio.wait({work})


async def _until_stopping(runtime: Runtime, reconciler: Reconciler) -> None:
    work = asyncio.ensure_future(reconciler.run())
    stopping = asyncio.ensure_future(runtime.stopping.wait())
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
    finally:
        stopping.cancel()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
