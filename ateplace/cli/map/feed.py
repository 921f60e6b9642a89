"""A live cluster as a source: five watches fill the board, and a few times a second what changed becomes history.

Reads what `ateplace status` reads. Where the operator may list but not watch, every watch falls back to listing again
every few seconds, which is slower and otherwise the same.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ateplace import names
from ateplace.cli import explain as explaining
from ateplace.cli.map import wire
from ateplace.cli.map.board import Board, PodSeen, pod_seen
from ateplace.cli.map.history import History, Kept
from ateplace.cli.map.source import Kind
from ateplace.cli.status import picks_in_flight
from ateplace.cluster.records import AteletRecord, NodeRecord, PoolRecord, atelet_record, node_record, pool_record
from ateplace.errors import AteplaceError, KubeError
from ateplace.kube import paths
from ateplace.kube.objects import Node, Pod, WorkerPool
from ateplace.kube.watch import Watch
from ateplace.settings import Settings

if TYPE_CHECKING:
    from ateplace.kube import Kube

TICK = 0.1
"""Seconds for which changes are gathered into one."""
ASK = 0.5
"""Seconds between two questions about picks while ateoms wait,"""
ASK_IDLE = 5.0
"""and while none does."""

Keep = Callable[[Kept], None]


class Feed:
    """Runs within `following()`."""

    def __init__(
        self, kube: "Kube", settings: Settings, urls: list[str], source: str, keep: "Callable[[History], Keep] | None"
    ) -> None:
        """`keep`: called with the history once it begins; what it returns is called with every change."""
        self._kube, self._settings, self._urls, self._source, self._keep = kube, settings, urls, source, keep
        self._board = Board(settings.headroom)
        self.history: History | None = None
        self.ready = asyncio.Event()
        self._silent: list[str] = []
        substrate = settings.substrate
        seen = partial(pod_seen, pool_label=substrate.pool_label)
        pods = paths.PODS.everywhere
        self._ateoms = Watch(kube, pods, Pod, seen, self._pod, label_selector=substrate.pool_label, name="ateoms")
        self._placeholders = Watch(
            kube, pods, Pod, seen, self._pod, label_selector=names.PLACEHOLDER_LABEL, name="placeholders"
        )
        self._watches: tuple[Watch[Any, Any], ...] = (
            Watch(
                kube,
                paths.POOLS.everywhere,
                WorkerPool,
                pool_record,
                self._pool,
                name="WorkerPools",
                may_be_absent=True,
            ),
            Watch(kube, paths.NODES.everywhere, Node, node_record, self._node, name="nodes"),
            Watch(
                kube,
                paths.PODS.within(substrate.atelet_namespace),
                Pod,
                atelet_record,
                self._atelet,
                label_selector=substrate.atelet_selector,
                name="atelets",
            ),
            self._ateoms,
            self._placeholders,
        )

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the cluster for the length of the block; a failure of ours ends the block."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(watch.run()) for watch in self._watches]
            tasks += [group.create_task(self._tick()), group.create_task(self._ask())]
            yield
            for task in tasks:
                task.cancel()

    def trouble(self) -> str:
        """Why there is no picture yet."""
        waiting = [watch for watch in self._watches if not watch.synced.is_set()]
        said = [f"{watch.name}: {watch.trouble}" for watch in waiting if watch.trouble]
        return "; ".join(said) or f"reading {', '.join(watch.name for watch in waiting)}"

    async def explain(self, kind: Kind, namespace: str, name: str) -> wire.Explanation:
        """As `ateplace explain` says it now."""
        if kind == "pod":
            found = await explaining.explain(self._kube, self._settings, namespace, name, self._urls)
        elif kind == "node":
            found = await explaining.explain_node(self._kube, self._settings, name, self._urls)
        else:
            found = await explaining.explain_pool(self._kube, self._settings, namespace, name)
        return wire.Explanation(
            kind=kind,
            name=found.name,
            findings=[wire.Finding(one.level, one.says, one.fix) for one in found.findings],
            decisions=[
                wire.Decision(one.at, one.replica, one.verb, one.outcome, list(one.notes)) for one in found.decisions
            ],
            events=[wire.Event(one.type, one.reason, one.message) for one in found.events],
            notes=found.notes,
        )

    # Handlers of the watches.

    def _pod(self, key: str, old: PodSeen | None, new: PodSeen | None) -> None:
        if old and new is None:
            # A pod with both labels is in both watches: one that loses a label has left one of them, and lives.
            other = self._ateoms.store.get(key) or self._placeholders.store.get(key)
            new = other if other and other.uid == old.uid else None
        self._board.pod_changed(key, new, time.time())

    def _node(self, key: str, _: NodeRecord | None, new: NodeRecord | None) -> None:
        self._board.node_changed(key, new, time.time())

    def _pool(self, _: str, old: PoolRecord | None, new: PoolRecord | None) -> None:
        self._board.pool_changed(old, new, time.time())

    def _atelet(self, _: str, old: AteletRecord | None, new: AteletRecord | None) -> None:
        self._board.atelet_changed(old, new)

    # Tasks.

    async def _tick(self) -> None:
        for watch in self._watches:
            await watch.synced.wait()
        history = self.history = History(self._board.start(time.time(), self._source))
        kept = self._keep(history) if self._keep else None
        self.ready.set()
        while True:
            await asyncio.sleep(TICK)
            stuck = [f"the watch of {watch.name}: {watch.trouble}" for watch in self._watches if watch.trouble]
            self._board.noted([*stuck, *self._silent])
            change = self._board.changed(time.time())
            if change:
                appended = history.append(change)
                if kept:
                    kept(appended)

    async def _ask(self) -> None:
        await self.ready.wait()
        while True:
            try:
                picks, self._silent = await picks_in_flight(self._kube, self._settings, self._urls)
                self._board.in_flight_changed(picks)
            except (KubeError, AteplaceError) as error:
                self._silent = [str(error)]
            await asyncio.sleep(ASK if self._board.waiting else ASK_IDLE)
