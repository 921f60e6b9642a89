"""`Kube`: the verbs of the Kubernetes API on one pooled client.

What every call keeps to:

- It ends within its deadline (`cluster.request_timeout` unless told otherwise), all attempts and waits included.
- Reads are tried up to eight times. A write is tried again only when the API server has not carried it out for sure:
  the connection was never made, 401 with credentials that have changed since, or 429. A write that got no answer,
  or 5xx, may have happened: it raises `Unreachable` or `ServerError` at once, and the caller reads before it tries
  again.
- Failures are `ateplace.errors.KubeError`s; nothing of aiohttp gets out, except as their cause.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Literal, TypeVar

import aiohttp

from ateplace import errors
from ateplace.kube import codec
from ateplace.kube.access import Access
from ateplace.kube.backoff import Backoff
from ateplace.kube.codec import OBJECT_BYTES
from ateplace.kube.transport import (
    CONNECT_SECONDS,
    NEVER_SENT,
    Ask,
    Chunks,
    Transport,
    drop,
    read,
    refuse,
    unreachable,
)
from ateplace.settings import Cluster

T = TypeVar("T")

ATTEMPTS = 8
PAGE_ITEMS = 500
PAGE_BYTES = 4 * 1024 * 1024
"""The longest page of a list; one over it is asked for again in halves, down to a single object."""
PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}


class Kube:
    """The API server. Use one per process, from one event loop; `close()` it at the end."""

    def __init__(self, transport: Transport, cluster: Cluster) -> None:
        self._transport = transport
        self.cluster = cluster
        self.retries = 0
        """Requests sent again so far."""

    @property
    def requests(self) -> int:
        """Requests sent so far, repeated ones and watches included."""
        return self._transport.requests

    @property
    def namespace(self) -> str:
        """Where a command looks that is told no namespace."""
        return self._transport.access.namespace

    @property
    def server(self) -> str:
        """The API server's address, as the configuration has it."""
        return self._transport.access.server

    @classmethod
    async def connect(cls, cluster: Cluster, *, user_agent: str = "ateplace") -> "Kube":
        """Read the configuration; no request is sent yet. Raises SettingsError when there is no usable one."""
        return cls(Transport(await Access.load(cluster.kubeconfig), user_agent), cluster)

    async def close(self) -> None:
        """Close every connection; calls and watches under way fail."""
        await self._transport.close()

    async def get(
        self,
        path: str,
        type_: type[T],
        *,
        query: Mapping[str, str] | None = None,
        deadline: float | None = None,
    ) -> T:
        """One object, as the API server has it now."""
        ask = Ask("GET", path, query)
        return codec.decode(type_, await self._call(ask, deadline), ask.what)

    async def list(
        self, path: str, item: type[T], *, query: Mapping[str, str] | None = None
    ) -> AsyncGenerator[T, None]:
        """A consistent list, item by item, in pages; raises Gone when it takes so long that it cannot be continued.

        An item that cannot be read raises KubeError: a caller that asks for all must not take a part for all.
        """
        async with contextlib.aclosing(self.pages(path, item, query=query)) as pages:
            async for _, items in pages:
                for each in items:
                    if isinstance(each, codec.Unreadable):
                        raise errors.KubeError(f"GET {path}: cannot read {codec.key(each.object.metadata)}: {each.why}")
                    yield each

    async def pages(
        self, path: str, item: type[T], *, query: Mapping[str, str] | None = None
    ) -> AsyncGenerator[tuple[str, codec.Items[T]], None]:
        """The same, page by page, each with the whole list's resourceVersion."""
        what = f"GET {path}"
        size = PAGE_ITEMS
        token = ""
        while True:
            asked = {**(query or {}), "limit": str(size)} | ({"continue": token} if token else {})
            try:
                body = await self._call(Ask("GET", path, asked, most=PAGE_BYTES if size > 1 else OBJECT_BYTES))
            except TooLarge:
                if size == 1:
                    raise
                size //= 2
                continue
            meta, items = codec.decode_page(item, body, what)
            if len(body) < PAGE_BYTES // 4:
                size = min(2 * size, PAGE_ITEMS)  # what was large has been read
            del body
            yield meta.resource_version, items
            token = meta.continue_
            if not token:
                return

    async def patch(
        self,
        path: str,
        body: object,
        type_: type[T],
        *,
        kind: Literal["merge", "json", "strategic"] = "merge",
        query: Mapping[str, str] | None = None,
        deadline: float | None = None,
    ) -> T:
        """Change what is there (NotFound when nothing is); `metadata.uid` or `resourceVersion` in it must match."""
        ask = Ask("PATCH", path, query, codec.encode(body), PATCHES[kind])
        return codec.decode(type_, await self._call(ask, deadline), ask.what)

    async def create(
        self,
        path: str,
        body: object,
        type_: type[T],
        *,
        query: Mapping[str, str] | None = None,
        deadline: float | None = None,
    ) -> T:
        """Conflict (reason AlreadyExists) when there is one of that name."""
        ask = Ask("POST", path, query, codec.encode(body))
        return codec.decode(type_, await self._call(ask, deadline), ask.what)

    async def replace(
        self,
        path: str,
        body: object,
        type_: type[T],
        *,
        query: Mapping[str, str] | None = None,
        deadline: float | None = None,
    ) -> T:
        """The whole object; Conflict when its resourceVersion is not the newest."""
        ask = Ask("PUT", path, query, codec.encode(body))
        return codec.decode(type_, await self._call(ask, deadline), ask.what)

    async def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace: int | None = None,
        propagation: str | None = None,
        deadline: float | None = None,
    ) -> None:
        """Conflict when the object there is not the one with this uid or version; NotFound when there is none."""
        options: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None or resource_version is not None:
            conditions = {"uid": uid, "resourceVersion": resource_version}
            options["preconditions"] = {name: value for name, value in conditions.items() if value is not None}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if propagation is not None:
            options["propagationPolicy"] = propagation
        await self._call(Ask("DELETE", path, None, codec.encode(options)), deadline)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """An answer without an end, as chunks: a watch. Unreachable when it breaks.

        Iteration simply stops when the API server ends it, or says nothing for `silence` seconds. Errors of the
        code in the `async with` pass untouched.
        """
        ask = Ask("GET", path, query)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence)
        end = asyncio.get_running_loop().time() + self.cluster.request_timeout
        for again in (True, False):
            shown = self._transport.access.authorization()
            try:
                async with asyncio.timeout_at(end):
                    response = await self._transport.send(ask, limits)
                    if response.status == 200:
                        break
                    await refuse(response, ask)
            except errors.Unauthorized:
                if not (again and await self._renewed(shown, end)):
                    raise
            except (aiohttp.ClientError, OSError) as error:
                if isinstance(error, aiohttp.ClientConnectorCertificateError):
                    await self._renewed(shown, end)
                raise unreachable(ask, error) from error
        try:
            yield Chunks(response, ask)
        finally:
            drop(response)

    async def _call(self, ask: Ask, deadline: float | None = None) -> bytearray:
        """The answer's body, after as many attempts as are safe and in time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + (self.cluster.request_timeout if deadline is None else deadline)
        backoff = Backoff(most=2.0)
        failure: errors.KubeError | None = None
        attempt = 1
        while True:
            shown = self._transport.access.authorization()
            try:
                async with asyncio.timeout_at(end):
                    return await self._attempt(ask)
            except errors.TooManyRequests as error:
                failure = error
                delay = error.retry_after + backoff.delay()
            except errors.Unauthorized as error:
                if not await self._renewed(shown, end):
                    raise
                failure, delay = error, 0.0
            except errors.ServerError as error:
                if not ask.reads:
                    raise
                failure, delay = error, backoff.delay()
            except (aiohttp.ClientError, OSError) as error:
                delay = backoff.delay()
                if failure is None or not (ask.reads and isinstance(error, TimeoutError)):
                    failure = unreachable(ask, error)
                    failure.__cause__ = error
                # else: what went wrong before says more than that there was no time to try again
                if isinstance(error, aiohttp.ClientConnectorCertificateError):
                    await self._renewed(shown, end)
                if not ask.reads and not isinstance(error, NEVER_SENT):
                    raise failure from error
            if attempt == ATTEMPTS or loop.time() + delay >= end:
                raise failure
            attempt += 1
            self.retries += 1
            await asyncio.sleep(delay)

    async def _renewed(self, shown: str, end: float) -> bool:
        """Whether there are other credentials than those that were refused; False too when the deadline comes first."""
        try:
            async with asyncio.timeout_at(end):
                return await self._transport.access.reload(shown)
        except TimeoutError:
            return False

    async def _attempt(self, ask: Ask) -> bytearray:
        response = await self._transport.send(ask, aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS))
        try:
            if not 200 <= response.status < 300:
                await refuse(response, ask)
            body = await read(response, ask.most)
            if len(body) > ask.most:
                raise TooLarge(f"{ask.what}: an answer of more than {ask.most} bytes is not accepted")
            return body
        finally:
            drop(response)


class TooLarge(errors.KubeError):
    """More bytes than we take."""
