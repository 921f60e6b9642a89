"""A Service's address, as kube-proxy makes it: each connection goes to one of the pods that are ready.

Chosen per connection and never again: a connection stays where it is until one side closes it, and one that cannot be
made fails for the client as well. What changes is who is ready, found out by asking, as a kubelet does; and a pod that
is told to end is not, whatever it says, as soon as the cluster has passed that on.
"""

import asyncio
import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

PROBE_EVERY = 0.25
"""Seconds between looks at readiness; a cluster takes about as long from a pod's end to kube-proxy's rules."""
TIMEOUTS = 3
"""A pod that says nothing is unready after so many looks, as with a kubelet's failureThreshold; one that says no, or
does not listen, is so at once."""
CHUNK = 64 * 1024

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Balancer:
    """Listens on `address` and `ports` from `start` to `close`; pods come and go with `add` and `remove`."""

    def __init__(self, address: str, ports: Iterable[int], health_port: int = 8080) -> None:
        self._address = address
        self._ports = tuple(ports)
        self._health_port = health_port
        self._pods: dict[str, bool] = {}
        self._silent: Counter[str] = Counter()
        self._ending: set[str] = set()
        self._turns = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.refused = 0
        """Connections for which no backend was ready."""

    def start(self) -> None:
        """Listen; raises OSError when an address is taken."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def add(self, pod: str) -> None:
        """Ask the pod at this address whether it is ready, from now on."""
        self._pods[pod] = False

    def end(self, pod: str) -> None:
        """It is told to end: send nothing there from the next look on, when EndpointSlices would say so."""
        self._ending.add(pod)

    def remove(self, pod: str) -> None:
        """Send nothing there any more; its connections stay."""
        self._pods.pop(pod, None)
        self._ending.discard(pod)

    def ready(self) -> list[str]:
        """Where a connection may go now."""
        return [pod for pod, ready in tuple(self._pods.items()) if ready]

    def close(self) -> None:
        """Stop listening and drop every connection."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _start(self) -> None:
        self._servers = [await asyncio.start_server(self._serve(port), self._address, port) for port in self._ports]
        self._probing = asyncio.ensure_future(self._probe())

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe(self) -> None:
        while True:
            pods = tuple(self._pods)
            answers = await asyncio.gather(*(self._ask(pod) for pod in pods))
            for pod, ready in zip(pods, answers, strict=True):
                if pod in self._pods:
                    self._pods[pod] = ready and pod not in self._ending
            await asyncio.sleep(PROBE_EVERY)

    async def _ask(self, pod: str) -> bool:
        try:
            async with asyncio.timeout(1):
                ready = await self._readyz(pod)
        except TimeoutError:
            self._silent[pod] += 1
            return self._pods.get(pod, False) and self._silent[pod] < TIMEOUTS
        except OSError:
            ready = False
        del self._silent[pod]
        return ready

    async def _readyz(self, pod: str) -> bool:
        reader, writer = await asyncio.open_connection(pod, self._health_port)
        try:
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n")
            return b" 200 " in await reader.readline()
        finally:
            writer.close()

    def _serve(self, port: int) -> Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.CancelledError), contextlib.closing(writer):
                await self._pass_on(reader, writer, port)

        return serve

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        ready = self.ready()
        if not ready:
            self.refused += 1
            return
        pod = ready[next(self._turns) % len(ready)]
        try:
            to_reader, to_writer = await asyncio.open_connection(pod, port)
            with contextlib.closing(to_writer):
                async with asyncio.TaskGroup() as group:
                    group.create_task(_pump(reader, to_writer))
                    group.create_task(_pump(to_reader, writer))
        except* OSError:
            pass  # one side is gone: so is the connection


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy until the source ends, then end the sink's half too."""
    while data := await source.read(CHUNK):
        sink.write(data)
        await sink.drain()
    sink.write_eof()
