"""Clients and tenants that mean no good: connections that ask again and again, and pools whose pods do not go."""

import asyncio
import json
import ssl
import threading
import uuid
from collections.abc import Callable

from ateplace import names
from ateplace.local.plane import ControlPlane


class Strangers:
    """So many connections, opened anew when they are closed, from `with` to its end."""

    def __init__(
        self,
        port: int,
        count: int,
        ask: Callable[[], bytes],
        *,
        tls: ssl.SSLContext | None = None,
        pause: float = 0.05,
        source: str = "127.0.0.2",
        host: str = "127.0.0.1",
    ) -> None:
        """`ask` makes a whole request; each connection rests for `pause` seconds after its answer."""
        self.port = port
        self.count = count
        self.ask = ask
        self.tls = tls
        self.pause = pause
        self.source = source
        self.host = host
        self.answers = 0
        self.opened = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> "Strangers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    async def _run(self) -> None:
        await asyncio.gather(*(self._one() for _ in range(self.count)))

    async def _one(self) -> None:
        name = "localhost" if self.tls else None
        while not self._over.is_set():
            writer = None
            try:
                async with asyncio.timeout(20):
                    reader, writer = await asyncio.open_connection(
                        self.host, self.port, ssl=self.tls, server_hostname=name, local_addr=(self.source, 0)
                    )
                    self.opened += 1
                    await self._ask(reader, writer)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                await asyncio.sleep(0.2)
            finally:
                if writer is not None:
                    writer.transport.abort()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not self._over.is_set():
            writer.write(self.ask())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            self.answers += 1
            await asyncio.sleep(self.pause)


def review(pool: str) -> bytes:
    """A request to the webhook: a pod of this pool, in a namespace that there is not."""
    pod = {"metadata": {"labels": {names.POOL_LABEL: pool}}, "spec": {"containers": []}}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": "u", "kind": kind, "operation": "CREATE", "namespace": "invented", "object": pod}
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    head = f"POST /mutate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def pods_that_stay(plane: ControlPlane, namespace: str, pool: str, uid: str, count: int, *, odd: bool = True) -> None:
    """Ateoms of a pool that nothing ends, each with an owner of its own; every other owner is `odd`."""
    for each in range(count):
        owner = {"kind": "ReplicaSet", "uid": str(uuid.uuid4()), "controller": True}
        strange = {"apiVersion": "example.com/v1", "name": "../../../../api/v1/pods?watch=true"}
        plain = {"apiVersion": "apps/v1", "name": f"rs-{each}"}
        meta = {
            "generateName": "p-",
            "labels": {names.POOL_LABEL: pool, names.POOL_UID_LABEL: uid},
            "finalizers": ["example.com/hold"],
            "ownerReferences": [owner | (strange if odd and each % 2 else plain)],
        }
        spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "registry.example/c:1"}]}
        plane.api.post(f"/api/v1/namespaces/{namespace}/pods", {"metadata": meta, "spec": spec})
