"""Asking every replica of a role for a page of its health port.

Through the API server's proxy, so that an operator who may `get pods/proxy` needs no route to the pods; or directly at
addresses that were given (`--extender-url`), e.g. after `kubectl port-forward`. The API server refuses to connect to
loopback addresses, on which everything of the local control plane lives: where it has a loopback address itself, and
the role's Service has one, the role runs on this machine and is asked directly.
"""

import asyncio
import ipaddress
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from ateplace.errors import KubeError
from ateplace.kube import paths
from ateplace.kube.failures import UNDECODABLE
from ateplace.kube.objects import Pod, Service
from ateplace.settings import Settings

if TYPE_CHECKING:
    from ateplace.kube import Kube

T = TypeVar("T")

PATIENCE = 3.0
"""Seconds for one replica's answer."""
HINT = "if the API server cannot reach them, name their health addresses with --extender-url"
COMPONENT = "app.kubernetes.io/component"


class Asked(msgspec.Struct, Generic[T]):
    """Who answered what, and why the others did not."""

    answers: dict[str, T]
    silent: dict[str, str]

    @property
    def notes(self) -> list[str]:
        notes = [f"{name} did not answer: {why}" for name, why in self.silent.items()]
        return notes + ([HINT] if notes and not self.answers else [])


async def ask(
    kube: "Kube",
    settings: Settings,
    role: str,
    page: str,
    type_: type[T],
    *,
    query: Mapping[str, str] | None = None,
    urls: Sequence[str] = (),
) -> Asked[T]:
    """GET /`page` of every running replica of `role` at once; a replica that fails is no error, but is named."""
    found: Asked[T] = Asked({}, {})
    if urls:
        await asyncio.gather(*(_direct(found, url, page, type_, query) for url in urls))
        return found
    namespace, port = settings.cluster.namespace, settings.serve.health_port
    if near := await _nearby(kube, namespace, role):
        urls = [f"http://{address}:{port}" for address in near]
        return await ask(kube, settings, role, page, type_, query=query, urls=urls)
    try:
        names = await _running(kube, namespace, role)
    except KubeError as error:
        found.silent[f"the {role}"] = str(error)
        return found
    if not names:
        found.silent[f"the {role}"] = f"no pod of it runs in the namespace {namespace}"

    def proxied(name: str) -> Awaitable[T]:
        return kube.get(paths.pod_proxy(namespace, name, port, page), type_, query=query, deadline=PATIENCE)

    await asyncio.gather(*(_proxied(found, name, proxied(name)) for name in names))
    return found


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


async def _nearby(kube: "Kube", namespace: str, role: str) -> list[str]:
    """Where the role listens on this machine; nothing for a cluster that is elsewhere, or does not let us look."""
    if not _is_loopback(urlsplit(kube.server).hostname or ""):
        return []
    try:
        services = [one.spec async for one in kube.list(paths.SERVICES.within(namespace), Service)]
    except KubeError:
        return []
    return [
        service.cluster_ip
        for service in services
        if (service.selector or {}).get(COMPONENT) == role and _is_loopback(service.cluster_ip)
    ]


async def _running(kube: "Kube", namespace: str, role: str) -> list[str]:
    path = paths.PODS.within(namespace)
    return [
        pod.metadata.name
        async for pod in kube.list(path, Pod, query={"labelSelector": f"{COMPONENT}={role}"})
        if pod.status and pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
    ]


async def _proxied(found: Asked[T], name: str, answer: Awaitable[T]) -> None:
    try:
        found.answers[name] = await answer
    except KubeError as error:
        found.silent[name] = str(error)


async def _direct(found: Asked[T], url: str, page: str, type_: type[T], query: Mapping[str, str] | None) -> None:
    try:
        async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
            answer = await client.get(f"{url.rstrip('/')}/{page}", params=dict(query or {}))
            answer.raise_for_status()
            found.answers[url] = msgspec.json.decode(answer.content, type=type_)
    except (httpx.HTTPError, httpx.InvalidURL, *UNDECODABLE) as error:
        found.silent[url] = str(error) or type(error).__name__
