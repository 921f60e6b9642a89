"""Clients that are none of ours: connections from one address of loopback, each asking again and again."""

import asyncio
import ssl
import threading
from collections.abc import Callable


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
