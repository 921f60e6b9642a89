"""`ateplace uninstall`: give everything back, whatever is half gone already.

    our webhook ── our processes ── atelet's nodes ── pools' finalizers ── placeholders ── nodes' keys ── waiting pods

In this order: first no new work arrives, then none of our processes undoes these steps, then atelet is everywhere
before labels go. Each step looks for itself and is content with nothing to do, so it can be run again, after any
accident, with or without the CRD, our namespace or our manifests. What is left for `kubectl delete -k`, or for
`helm uninstall`, are objects that hold nothing up.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from ateplace import errors, names
from ateplace.cluster.atelet_gate import gates
from ateplace.errors import AteplaceError
from ateplace.kube import Kube, paths
from ateplace.kube.objects import Bare, Lease, Metadata, Node, Pod, WorkerPool
from ateplace.reconciler.leader import NAME, term
from ateplace.settings import Settings

Say = Callable[[str], None]
Json = dict[str, Any]

OURS: Final = "app.kubernetes.io/name=ateplace"
WAIT_SECONDS: Final = 120.0
POLL: Final = 0.5
TRIES: Final = 5
"""Of one write that others get in the way of."""


class Removal:
    def __init__(self, kube: Kube, settings: Settings, say: Say, *, dry_run: bool) -> None:
        self._kube = kube
        self._settings = settings
        self._namespace = settings.cluster.namespace
        self._say = say
        self._dry_run = dry_run

    async def run(self) -> None:
        """Raises AteplaceError when one of us still runs, or when our keys keep coming back."""
        await self._delete("our webhook", [paths.MUTATING_WEBHOOKS.named(names.WEBHOOK_CONFIGURATION)])
        await self._stop_us()
        found = await gates(self._kube, self._settings.substrate)
        self._did("let atelet run on all of its nodes again", sum([await gate.closed() for gate in found]))
        if not self._dry_run:
            for gate in found:
                await gate.set(closed=False)  # also where it is open: an interrupted run may have left more than that
        await self._pools()
        await self._placeholders()
        await self._nodes()
        await self._waiting()
        if not self._dry_run:
            await self._check()
        rest = "`kubectl delete -k` or `helm uninstall` removes the rest"
        self._say(f"nothing of ours is left that holds anything up; {rest}")

    def _did(self, what: str, count: int) -> None:
        if count:
            self._say(f"{'would ' if self._dry_run else ''}{what}: {count}")

    async def _delete(self, what: str, paths: list[str], propagation: str = "Background") -> None:
        count = 0
        for path in paths:
            try:
                if self._dry_run:
                    await self._kube.get(path, Bare)
                else:
                    await self._kube.delete(path, propagation=propagation)
                count += 1
            except errors.NotFound:
                continue
        self._did(f"delete {what}", count)

    async def _stop_us(self) -> None:
        path = paths.DEPLOYMENTS.within(self._namespace)
        found = [item.metadata.name async for item in self._all(path, Bare, OURS)]
        await self._delete(
            "our Deployments", [paths.DEPLOYMENTS.named(name, self._namespace) for name in found], "Foreground"
        )
        if self._dry_run:
            return
        pods = paths.PODS.within(self._namespace)
        loop = asyncio.get_running_loop()
        end = loop.time() + WAIT_SECONDS
        while [pod async for pod in self._all(pods, Bare, OURS)]:
            if loop.time() > end:
                raise AteplaceError(f"our pods in {self._namespace} do not end")
            await asyncio.sleep(POLL)
        await self._unled()

    async def _unled(self) -> None:
        """Wait until no reconciler leads: its lease is free, gone, or has not been renewed for its whole duration."""
        path = paths.LEASES.named(NAME, self._namespace)
        loop = asyncio.get_running_loop()
        first, since = None, loop.time()
        while True:
            try:
                seen = term(await self._kube.get(path, Lease))
            except errors.NotFound:
                return
            if not seen.holder or (first == seen and loop.time() - since > seen.seconds + 1):
                return
            if first is not None and first != seen:
                raise AteplaceError(f"a reconciler is still running ({seen.holder}): stop it first")
            first = seen
            await asyncio.sleep(POLL)

    async def _pools(self) -> None:
        count = 0
        async for pool in self._all(paths.POOLS.everywhere, WorkerPool):
            meta = pool.metadata
            if names.FINALIZER not in (meta.finalizers or ()):
                continue
            count += 1
            await self._let_go(meta)
        self._did("take our finalizer off WorkerPools", count)

    async def _let_go(self, meta: Metadata) -> None:
        """The list of finalizers is replaced whole, so it is read again after a conflict."""
        path = paths.POOLS.named(meta.name, meta.namespace)
        for left in reversed(range(TRIES)):
            others = [name for name in meta.finalizers or () if name != names.FINALIZER]
            try:
                preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
                await self._patch(path, {**preconditions, "finalizers": others})
                break
            except errors.Conflict:
                if not left:
                    raise
            try:
                meta = (await self._kube.get(path, WorkerPool)).metadata
            except errors.NotFound:
                break

    async def _placeholders(self) -> None:
        for what, resource in (
            ("placeholders' Deployments", paths.DEPLOYMENTS),
            ("placeholders", paths.PODS),
        ):
            found = [
                resource.named(item.metadata.name, item.metadata.namespace)
                async for item in self._all(resource.everywhere, Bare, names.PLACEHOLDER_LABEL)
            ]
            await self._delete(what, found)

    async def _nodes(self) -> None:
        count = 0
        async for node in self._kube.list(paths.NODES.everywhere, Node):
            if keys := ours(node):
                try:
                    await self._patch(paths.NODES.named(node.metadata.name), {"uid": node.metadata.uid, **keys})
                except errors.Conflict:
                    continue  # another Node of its name by now, which never had them; `_check` looks at it
                count += 1
        self._did("remove our label and claims from nodes", count)

    async def _waiting(self) -> None:
        """Pods that no scheduler will ever place: their owners make new ones, which our webhook does not change."""
        scheduler = self._settings.webhook.scheduler_name or names.SCHEDULER
        count = 0
        bare: list[str] = []
        async for pod in self._kube.list(paths.PODS.everywhere, Pod, query={"fieldSelector": "spec.nodeName="}):
            if pod.spec.scheduler_name != scheduler and not gated(pod):
                continue
            meta = pod.metadata
            path = paths.PODS.named(meta.name, meta.namespace)
            if any(owner.controller for owner in meta.owner_references or ()):
                count += await self._end(path, pod)
            else:
                bare.append(path)
        self._did("delete pods that wait for our scheduler, so that their owners make new ones", count)
        for path in bare:
            self._say(
                f"{path} has no controller and its scheduler is gone: delete it and create it again as it was at first"
            )

    async def _end(self, path: str, pod: Pod) -> bool:
        """Delete a pod that waits. It is deleted as it was seen: with the default scheduler, which goes on working, it
        may have been bound since."""
        if self._dry_run:
            return True
        for left in reversed(range(TRIES)):
            meta = pod.metadata
            try:
                await self._kube.delete(path, uid=meta.uid, resource_version=meta.resource_version)
                return True
            except errors.NotFound:
                return False
            except errors.Conflict:
                if not left:
                    raise
            try:
                pod = await self._kube.get(path, Pod)
            except errors.NotFound:
                return False
            if pod.spec.node_name or pod.metadata.uid != meta.uid:
                return False
        return False

    async def _check(self) -> None:
        """Our keys are gone, and stay gone."""
        left = [node.metadata.name async for node in self._kube.list(paths.NODES.everywhere, Node) if ours(node)]
        if left:
            raise AteplaceError(
                f"our keys come back on nodes ({', '.join(left[:5])}): is an extender or reconciler still running?"
            )

    async def _all(self, path: str, type_: type[Any], labels: str = "") -> AsyncIterator[Any]:
        """Everything there; nothing when there is not even such a kind, or no such namespace."""
        try:
            async for item in self._kube.list(path, type_, query={"labelSelector": labels} if labels else None):
                yield item
        except errors.NotFound:
            return

    async def _patch(self, path: str, metadata: Json) -> None:
        if self._dry_run:
            return
        try:
            await self._kube.patch(path, {"metadata": metadata}, Bare, query=names.FIELD_MANAGER)
        except errors.NotFound:
            return


def gated(pod: Pod) -> bool:
    """Whether our init container asks for an extended resource (`webhook.gating_resource`): no node has it, and only a
    scheduler that asks us does not mind."""
    return any(
        "/" in name
        for container in pod.spec.init_containers or ()
        if container.name == names.INIT_CONTAINER and container.resources
        for name in container.resources.requests or ()
    )


def ours(node: Node) -> Json:
    """The patch's metadata that takes our keys off a Node; empty when it has none."""
    meta = node.metadata
    claims = {key: None for key in meta.annotations or () if names.claimed_pool(key) is not None}
    found: Json = {"annotations": claims} if claims else {}
    if names.NODE_LABEL in (meta.labels or {}):
        found["labels"] = {names.NODE_LABEL: None}
    return found
