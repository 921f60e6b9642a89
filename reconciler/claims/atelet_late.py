"""Says so when ateoms wait for an atelet that does not come: on the waiting pods, and on their node.

It is said once it is late, again when there is another reason, and now and then while it lasts.
"""

import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import FINISHED
from ateplace.cluster.state import Node
from ateplace.kube import Kube, paths, selectors
from ateplace.kube.objects import Pod
from ateplace.reconciler import metrics
from ateplace.reconciler.events import Events, about_node, about_pod
from ateplace.settings import Settings

NAMED: Final = 20
"""Most pods of one node that get an Event."""
SAY_AGAIN: Final = 300.0


class Wait(Struct):
    due: float
    """When something is to be said."""
    said: str = ""
    """The reason that was given last; empty when none was yet."""
    since: float = 0.0
    """When that was."""


class AteletLate:
    """`look(node)` after anything about the node changed; the state is one entry per node that waits."""

    def __init__(
        self,
        kube: Kube,
        ledger: Ledger,
        settings: Settings,
        events: Events,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._ledger = ledger
        self._settings = settings
        self._events = events
        self._clock = clock
        self._waits: dict[str, Wait] = {}
        metrics.ATELET_LATE.set_function(self._late)

    def forget(self) -> None:
        """At the end of a term."""
        self._waits.clear()

    async def look(self, name: str) -> float | None:
        """Seconds until the next look; None when no ateom waits here."""
        node = self._ledger.nodes.get(name)
        if node is None or node.record is None or node.atelet_ready or not any(t.ateoms for t in node.pools.values()):
            self._waits.pop(name, None)
            return None
        now, late, reason = self._clock(), self._settings.reconciler.atelet_late, why(node)
        wait = self._waits.setdefault(name, Wait(now + late))
        # Each time costs a read, and a pod that is made again and again has a new reason each time.
        due = wait.due if wait.said in {"", reason} else min(wait.due, wait.since + late)
        if due > now:
            return due - now
        message = f"atelet has not become ready on node {name} for too long: {reason}"
        uid = node.record.uid
        waiting = await self._waiting(name)
        if self._uid(name) != uid:
            self._waits.pop(name, None)  # the Node has gone meanwhile; another one of its name is another wait
            return None
        wait.due, wait.said, wait.since = now + SAY_AGAIN, reason, now
        for pod in waiting[:NAMED]:
            meta = pod.metadata
            self._events.warn(about_pod(meta.namespace, meta.name, meta.uid), "WaitingForAtelet", message)
        if waiting:
            words = f"{len(waiting)} ateoms wait for atelet: {reason}"
            self._events.warn(about_node(name, uid), "WaitingForAtelet", words)
        return SAY_AGAIN

    def _uid(self, name: str) -> str:
        """Of the Node with this name now; empty when there is none."""
        node = self._ledger.nodes.get(name)
        return node.record.uid if node and node.record else ""

    def _late(self) -> int:
        now = self._clock()
        return sum(bool(wait.said) or wait.due <= now for wait in self._waits.values())

    async def _waiting(self, name: str) -> list[Pod]:
        query = {"labelSelector": self._settings.substrate.pool_label, "fieldSelector": selectors.on_node(name)}
        return [pod async for pod in self._kube.list(paths.PODS.everywhere, Pod, query=query) if _waits(pod)]


def why(node: Node) -> str:
    """What is known of the atelet that is not there."""
    if node.atelet.barred:
        return node.atelet.barred
    for atelet in node.current_atelets():
        return f"its pod {atelet.name} is {atelet.trouble or ('not ready' if atelet.bound else 'not scheduled')}"
    return "the DaemonSet has made no pod for this node"


def _waits(pod: Pod) -> bool:
    if pod.status is None:
        return True
    if pod.status.phase in FINISHED:
        return False
    return not any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or ())
