"""`ateplace migrate`: bring a running cluster under the gate, without an ateom losing its atelet.

    look ── claim and label every node with ateoms ── until a fresh look finds none without ── close the gate ── verify
                                                                                                  ^                 |
                                                                                                  +── open again <──+
                                                                                                      on trouble

Pods that appear meanwhile are claimed as they are found. Safe to run again, at any time, also half done.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ateplace import errors, names
from ateplace.cluster.atelet_gate import Gate, gates
from ateplace.cluster.claims import claim_metadata, claim_value
from ateplace.cluster.records import FINISHED
from ateplace.errors import AteplaceError
from ateplace.kube import Kube, paths
from ateplace.kube.objects import Node, Pod, WorkerPool
from ateplace.settings import Settings, Substrate

Say = Callable[[str], None]

SETTLE_SECONDS: Final = 120.0
"""How long atelet may take to leave the nodes that it has no business on."""
POLL: Final = 0.2


@dataclass
class Look:
    """What a cluster was like, as far as this matters."""

    wanted: dict[str, set[str]] = field(default_factory=dict)
    """By node with ateoms: the pools that they belong to."""
    nodes: dict[str, Node] = field(default_factory=dict)
    atelets: set[str] = field(default_factory=set)
    """Nodes with an atelet that is not on its way out. Pods may outlive their Node by a minute: those do not count."""
    ateoms: int = 0
    homeless: list[str] = field(default_factory=list)
    """Ateoms whose WorkerPool does not exist."""

    def lacking(self) -> dict[str, set[str]]:
        """Nodes with ateoms that have not all of their claims, or no label: the claims they lack."""
        found = {}
        for name, pools in self.wanted.items():
            meta = self.nodes[name].metadata
            missing = {uid for uid in pools if names.claim_key(uid) not in (meta.annotations or {})}
            if missing or meta.label(names.NODE_LABEL) != "true":
                found[name] = missing
        return found

    def leaving(self) -> set[str]:
        """Nodes with an atelet that a closed gate has no room for."""
        labelled = {name for name in self.atelets if self.nodes[name].metadata.label(names.NODE_LABEL) == "true"}
        return self.atelets - labelled - self.wanted.keys()


class Migration:
    def __init__(self, kube: Kube, settings: Settings, say: Say) -> None:
        self._kube = kube
        self._substrate = settings.substrate
        self._say = say

    async def run(self, *, dry_run: bool) -> None:
        """Raises AteplaceError, with the gate as open as it was, when something is not as it must be."""
        if not await gates(self._kube, self._substrate):
            raise AteplaceError(f"{no_atelet(self._substrate)}: is Agent Substrate installed?")
        seen = await self.look()
        lacking = seen.lacking()
        self._say(f"{seen.ateoms} ateoms on {len(seen.wanted)} of {len(seen.nodes)} nodes")
        for pod in seen.homeless:
            self._say(f"  {pod} names a WorkerPool that does not exist; its node keeps atelet while it is there")
        if dry_run:
            await self._foretell(seen, lacking)
            return
        had = (await self._claim_all(seen)).atelets
        turned: list[Gate] = []
        try:
            for gate in await gates(self._kube, self._substrate):
                if not await gate.closed():
                    self._say(f"{gate.name}'s nodeSelector: adding our label")
                    turned.append(gate)
                await gate.set(closed=True)  # also where it is closed: an interrupted run may have left more to do
            await self._verify(had)
        except AteplaceError:
            for gate in turned:
                self._say(f"failed: taking our label out of {gate.name}'s nodeSelector again")
                await gate.set(closed=False)
            raise

    async def look(self) -> Look:
        """A fresh look at everything: lists, no cache."""
        seen = Look()
        pools = {}
        try:
            async for pool in self._kube.list(paths.POOLS.everywhere, WorkerPool):
                pools[pool.metadata.namespace, pool.metadata.name] = pool.metadata.uid
        except errors.NotFound:
            raise AteplaceError("there are no WorkerPools here: is Agent Substrate installed?") from None
        label = self._substrate.pool_label
        pods = [
            pod
            async for pod in self._kube.list(paths.PODS.everywhere, Pod, query={"labelSelector": label})
            if _live(pod)
        ]
        seen.nodes = {node.metadata.name: node async for node in self._kube.list(paths.NODES.everywhere, Node)}
        for pod in pods:
            node = pod.spec.node_name
            if node not in seen.nodes:
                continue
            meta = pod.metadata
            seen.ateoms += 1
            uid = meta.label(names.POOL_UID_LABEL) or pools.get((meta.namespace, meta.label(label)), "")
            seen.wanted.setdefault(node, set()).update({uid} if uid else ())
            if not uid:
                seen.homeless.append(f"{meta.namespace}/{meta.name}")
        path = paths.PODS.within(self._substrate.atelet_namespace)
        async for pod in self._kube.list(path, Pod, query={"labelSelector": self._substrate.atelet_selector}):
            if pod.spec.node_name in seen.nodes and pod.metadata.deletion_timestamp is None and _live(pod):
                seen.atelets.add(pod.spec.node_name)
        return seen

    async def _foretell(self, seen: Look, lacking: dict[str, set[str]]) -> None:
        for name, pools in sorted(lacking.items()):
            self._say(f"would label {name} and claim it for {len(pools)} pools")
        open_ = [gate.name for gate in await gates(self._kube, self._substrate) if not await gate.closed()]
        for name in open_:
            self._say(f"would add our label to {name}'s nodeSelector")
        if open_:
            self._say(f"atelet would leave {len(seen.leaving())} nodes")

    async def _claim_all(self, seen: Look) -> Look:
        """Until a fresh look finds nothing that is lacking; that look."""
        loop = asyncio.get_running_loop()
        end = loop.time() + SETTLE_SECONDS
        while lacking := seen.lacking():
            if loop.time() > end:
                raise AteplaceError(f"{len(lacking)} nodes with ateoms do not keep their claims: {', '.join(lacking)}")
            for name, pools in lacking.items():
                await self._claim(seen.nodes[name], pools)
            self._say(f"labelled and claimed {len(lacking)} nodes")
            seen = await self.look()
        self._say(f"all {len(seen.wanted)} nodes with ateoms are labelled and claimed")
        return seen

    async def _claim(self, node: Node, pools: set[str]) -> None:
        meta = claim_metadata(node.metadata.uid, pools, claim_value())
        path = paths.NODES.named(node.metadata.name)
        try:
            await self._kube.patch(path, {"metadata": meta}, Node, query=names.FIELD_MANAGER)
        except (errors.NotFound, errors.Conflict):
            self._say(f"  {node.metadata.name} was deleted or recreated meanwhile")

    async def _verify(self, had: set[str]) -> None:
        """Every node with ateoms that had atelet keeps it; the others lose it."""
        loop = asyncio.get_running_loop()
        end = loop.time() + SETTLE_SECONDS
        while True:
            seen = await self.look()
            lost = {name for name in seen.wanted if name in had and name not in seen.atelets}
            if lost:
                raise AteplaceError(f"atelet left nodes with ateoms: {', '.join(sorted(lost))}")
            for name, pools in seen.lacking().items():
                await self._claim(seen.nodes[name], pools)
            left = seen.leaving()
            if not left and not seen.lacking():
                self._say(f"atelet runs on {len(seen.atelets)} nodes, {len(seen.wanted)} of them with ateoms")
                return
            if loop.time() > end:
                raise AteplaceError(f"atelet does not leave {len(left)} nodes: {', '.join(sorted(left)[:5])}")
            await asyncio.sleep(POLL)


def no_atelet(substrate: Substrate) -> str:
    return f"there is no DaemonSet with {substrate.atelet_selector} in {substrate.atelet_namespace}"


def _live(pod: Pod) -> bool:
    return pod.status is None or pod.status.phase not in FINISHED
