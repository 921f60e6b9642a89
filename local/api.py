"""A plain, synchronous client of the API server, for tests, scenes and benchmarks."""

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import httpx

from ateplace.errors import LocalError

Object = dict[str, Any]
PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class ApiError(LocalError):
    """The API server said no."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:2000]}")
        self.status = status
        self.body = body


class Api:
    """`get`, `list`, `post`, `put`, `patch` and `delete` by path, on dicts."""

    def __init__(self, url: str, tls: ssl.SSLContext, token: str = "") -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        self._client = httpx.Client(
            base_url=url, verify=tls, timeout=30, limits=limits, headers=headers, trust_env=False
        )

    def get(self, path: str, **query: str) -> Object:
        return self._ask("GET", path, query)

    def list(self, path: str, **query: str) -> "list[Object]":
        items: list[Object] = self._ask("GET", path, query)["items"]
        return items

    def post(self, path: str, body: Object, **query: str) -> Object:
        return self._ask("POST", path, query, body)

    def put(self, path: str, body: Object, **query: str) -> Object:
        return self._ask("PUT", path, query, body)

    def patch(
        self,
        path: str,
        body: Any,
        kind: Literal["merge", "json", "strategic", "apply"] = "merge",
        **query: str,
    ) -> Object:
        return self._ask("PATCH", path, query, body, PATCHES[kind])

    def delete(self, path: str, body: Object | None = None, **query: str) -> Object:
        return self._ask("DELETE", path, query, body)

    def exists(self, path: str) -> bool:
        try:
            self.get(path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    @contextmanager
    def watch(self, path: str, **query: str) -> Iterator[Iterator[Object]]:
        """The events of a watch, until the block ends."""
        with self._client.stream("GET", path, params={"watch": "true", **query}, timeout=None) as answer:
            if answer.status_code >= 300:
                raise ApiError(answer.status_code, answer.read().decode())
            yield (json.loads(line) for line in answer.iter_lines() if line)

    @contextmanager
    def stream(self, path: str, **query: str) -> Iterator[Iterator[bytes]]:
        """An answer as it arrives, undecoded."""
        with self._client.stream("GET", path, params=query, timeout=None) as answer:
            yield answer.iter_raw()

    def ready(self) -> bool:
        try:
            return self._client.get("/readyz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def close(self) -> None:
        self._client.close()

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Any = None,
        content: str = "application/json",
    ) -> Object:
        answer = self._client.request(
            method,
            path,
            params=dict(query),
            content=None if body is None else json.dumps(body),
            headers={"Content-Type": content} if body is not None else {},
        )
        if answer.status_code >= 300:
            raise ApiError(answer.status_code, answer.text)
        result: Object = answer.json()
        return result
