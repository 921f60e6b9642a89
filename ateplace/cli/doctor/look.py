"""What the checks read: each thing once, when the first check asks for it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ateplace import label_selectors, names
from ateplace.cli.findings import Finding
from ateplace.cluster.records import live_atelet_template
from ateplace.errors import NotFound
from ateplace.kube import paths
from ateplace.kube.objects import DaemonSet, Deployment, Node, Pod, WorkerPool
from ateplace.settings import Loaded

if TYPE_CHECKING:
    from ateplace.kube import Kube

T = TypeVar("T")


class Look:
    """A cluster, as the user's credentials show it. Reads raise KubeError; what does not exist is None or empty."""

    def __init__(self, kube: "Kube", given: Loaded) -> None:
        self.kube = kube
        self.given = given
        """What doctor itself was given."""
        self.settings = given.settings
        """What to judge by: with the installation's settings, once those are known."""
        self._reads: dict[str, asyncio.Task[Any]] = {}

    def afresh(self) -> "Look":
        """For a second look: nothing is read yet."""
        other = Look(self.kube, self.given)
        other.settings = self.settings
        return other

    async def _once(self, key: str, read: Callable[[], Awaitable[T]]) -> T:
        if key not in self._reads:
            self._reads[key] = asyncio.ensure_future(read())
        return cast("T", await asyncio.shield(self._reads[key]))

    async def find(self, path: str, type_: type[T]) -> T | None:
        """One object, or None."""

        async def read() -> T | None:
            try:
                return await self.kube.get(path, type_)
            except NotFound:
                return None

        return await self._once(path, read)

    async def every(self, path: str, type_: type[T], query: Mapping[str, str] | None = None) -> list[T]:
        """All items; none when there is no such resource."""

        async def read() -> list[T]:
            try:
                return [item async for item in self.kube.list(path, type_, query=query)]
            except NotFound:
                return []

        return await self._once(f"{path}?{query}", read)

    async def nodes(self) -> list[Node]:
        return await self.every(paths.NODES.everywhere, Node)

    async def pools(self) -> list[WorkerPool]:
        return await self.every(paths.POOLS.everywhere, WorkerPool)

    async def ateoms(self) -> list[Pod]:
        return await self.every(paths.PODS.everywhere, Pod, {"labelSelector": self.settings.substrate.pool_label})

    async def placeholders(self) -> list[Pod]:
        return await self.every(paths.PODS.everywhere, Pod, {"labelSelector": names.PLACEHOLDER_LABEL})

    async def atelets(self) -> list[Pod]:
        substrate = self.settings.substrate
        path = paths.PODS.within(substrate.atelet_namespace)
        return await self.every(path, Pod, {"labelSelector": substrate.atelet_selector})

    async def daemonsets(self) -> list[DaemonSet]:
        """Atelet's."""
        substrate = self.settings.substrate
        selector = label_selectors.parse(substrate.atelet_selector)
        found = await self.every(paths.DAEMON_SETS.within(substrate.atelet_namespace), DaemonSet)
        return [one for one in found if live_atelet_template(one, selector)]

    async def ours(self) -> dict[str, Deployment]:
        """Our own Deployments by name."""
        found = await self.every(paths.DEPLOYMENTS.within(self.namespace), Deployment)
        return {one.metadata.name: one for one in found}

    async def ateom_deployments(self) -> list[Deployment]:
        """What Agent Substrate made of the pools."""
        query = {"labelSelector": self.settings.substrate.pool_label}
        return await self.every(paths.DEPLOYMENTS.everywhere, Deployment, query)

    @property
    def namespace(self) -> str:
        return self.settings.cluster.namespace


Check = Callable[[Look], Awaitable[list[Finding]]]
"""Looks at one thing; at least one finding. A KubeError that escapes it becomes one."""
