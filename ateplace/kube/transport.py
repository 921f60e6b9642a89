"""One request over the pooled connections, and what comes back: no policy, no retries.

The client is aiohttp's, which the Kubernetes client library uses too; its TLS context comes from there (`access`).
"""

from collections.abc import Mapping
from typing import NamedTuple

import aiohttp
from yarl import URL

from ateplace import errors
from ateplace.kube import failures, paths
from ateplace.kube.access import Access
from ateplace.kube.codec import OBJECT_BYTES

CONNECTIONS = 64
"""Most connections at once, watches included; further requests wait for one, within their deadline."""
KEEP_ALIVE_SECONDS = 60.0
"""The API server closes idle connections after 90 s: ours go first, so that no write meets a closing one."""
CONNECT_SECONDS = 3.0
BUFFER_BYTES = 256 * 1024

NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Failures after which the API server has seen nothing of the request."""


class Ask(NamedTuple):
    """One request, as often as it may be sent."""

    method: str
    path: str
    query: Mapping[str, str] | None = None
    data: bytes | None = None
    content: str = "application/json"
    most: int = OBJECT_BYTES
    """The longest answer taken."""

    @property
    def what(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def reads(self) -> bool:
        return self.method == "GET"


class Transport:
    """The connections to the API server."""

    def __init__(self, access: Access, user_agent: str) -> None:
        self.access = access
        self.requests = 0
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=KEEP_ALIVE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Decompressing costs more than the network saves, and an answer's size would not be known beforehand.
            headers={"User-Agent": user_agent, "Accept": "application/json", "Accept-Encoding": "identity"},
            auto_decompress=False,
            read_bufsize=BUFFER_BYTES,
            middlewares=(_never_twice,),
        )

    async def send(self, ask: Ask, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """The answer, as soon as its headers are there; raises what aiohttp raises."""
        if self._session.closed:
            raise ConnectionLost("the client has been closed")
        if not paths.SAFE.fullmatch(ask.path):
            raise ValueError(f"not a path of ours: {ask.path[:256]!r}")
        access = self.access
        headers = {}
        if authorization := access.authorization():
            headers["Authorization"] = authorization
        if ask.data is not None:
            headers["Content-Type"] = ask.content
        self.requests += 1
        return await self._session.request(
            ask.method,
            URL(access.server + ask.path, encoded=True),
            params=ask.query,
            data=ask.data,
            headers=headers,
            timeout=limits,
            allow_redirects=False,
            ssl=access.tls,
            server_hostname=access.server_name,
            proxy=access.proxy,
        )

    async def close(self) -> None:
        await self.access.close()
        await self._session.close()


class ConnectionLost(aiohttp.ClientError):
    """The connection ended before the answer."""


async def _never_twice(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """aiohttp repeats PUT and DELETE by itself when a kept connection turns out closed. Whether a write is repeated
    is not for a transport to decide, so it gets to see an error that it does not know."""
    try:
        return await handler(request)
    except NEVER_SENT:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise ConnectionLost(str(error) or type(error).__name__) from error


def unreachable(ask: Ask, error: BaseException) -> errors.Unreachable:
    why = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return errors.Unreachable(f"{ask.what}: {failures.shorten(why)}")


async def refuse(response: aiohttp.ClientResponse, ask: Ask) -> None:
    body = await read(response, failures.BODY_BYTES)
    retry_after = response.headers.get("Retry-After", "")
    drop(response)
    raise failures.from_answer(ask.what, response.status, body[: failures.BODY_BYTES], retry_after)


def drop(response: aiohttp.ClientResponse) -> None:
    """Be done with an answer. Its connection is kept if the body was read to the end, and else ended on the spot:
    an orderly end of TLS waits for the other side, which has more to send and does not listen."""
    connection = response.connection
    transport = connection.transport if connection is not None else None
    response.close()
    if transport is not None:
        transport.abort()


async def read(response: aiohttp.ClientResponse, most: int) -> bytearray:
    """The body; when it is longer than `most`, a part of it that is longer than `most`. One block that grows: parts
    that are joined take twice the room."""
    body = bytearray()
    while len(body) <= most and (part := await response.content.readany()):
        body += part
    return body


class Chunks:
    """The bytes of an answer as they come, until it ends or is silent for longer than it may."""

    def __init__(self, response: aiohttp.ClientResponse, ask: Ask) -> None:
        self._content = response.content
        self._ask = ask

    def __aiter__(self) -> "Chunks":
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk: bytes = await self._content.readany()
        except TimeoutError:
            chunk = b""
        except (aiohttp.ClientError, OSError) as error:
            raise unreachable(self._ask, error) from error
        if not chunk:
            raise StopAsyncIteration
        return chunk
