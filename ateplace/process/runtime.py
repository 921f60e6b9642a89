"""A process's life: start, serve until told to stop, drain, end.

    run ── logging, API client, health port ── enter each role ── wait ── drain ── leave the roles ── close
                                                                   ^
                                     SIGTERM, SIGINT, or a supervised task that failed (exit code 1)

On SIGTERM `stopping` is set and /readyz fails, but requests are served for another `serve.drain` seconds, because
Services take a moment to route them elsewhere. Then the roles are stopped, each with `serve.grace` for requests in
flight. SIGINT (Ctrl-C) skips the drain. A second signal exits at once.
"""

import asyncio
import contextlib
import ctypes
import gc
import importlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any, Final, TypeVar, cast

import uvloop

from ateplace.errors import AteplaceError
from ateplace.kube import Kube
from ateplace.process import logs
from ateplace.process.health import LIMITS, Health
from ateplace.process.http_server import Server
from ateplace.settings import Settings

log = logging.getLogger(__name__)

COLLECT: Final = (20_000, 20, 20)
"""For gc.set_threshold: net allocations between collections of the youngest generation, and how many of those before an
older one is collected."""

LARGE: Final = 512 * 1024
"""Blocks of at least so many bytes are returned to the system when they are freed. By default glibc raises this limit
to the largest block ever freed, up to 32 MiB, so after a few large objects or lists their buffers would stay resident.
It must be above 256 KiB, which asyncio allocates for every read from TLS, however little there is to read."""
M_MMAP_THRESHOLD: Final = -3
M_TRIM_THRESHOLD: Final = -1

S = TypeVar("S")


class Runtime:
    """What a process offers its roles."""

    def __init__(self, settings: Settings, kube: Kube) -> None:
        self.settings = settings
        self.kube = kube
        self.health = Health()
        self.stopping = asyncio.Event()
        self.failed = False
        self.hurry = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._shared: dict[type, object] = {}
        self._servers: list[Server] = []
        self._interrupt: asyncio.Task[Any] | None = None
        self.health.add("process", lambda: "stopping" if self.stopping.is_set() else "")

    def spawn(self, coro: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a background task; an exception that escapes it ends the process with exit code 1."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def shared(self, key: type[S], make: Callable[["Runtime"], S]) -> S:
        """The process's only instance of this class, created on first use."""
        if key not in self._shared:
            self._shared[key] = make(self)
        return cast("S", self._shared[key])

    @contextlib.asynccontextmanager
    async def serving(self, server: Server) -> AsyncIterator[Server]:
        """Serve within the context; on exit, accept nothing new and finish requests in flight."""
        await server.start()
        self._servers.append(server)
        try:
            yield server
        finally:
            await server.stop(self.settings.serve.grace)
            self._servers.remove(server)

    def stop(self, *, hurry: bool = False) -> None:
        """Begin to shut down; exit at once if called again."""
        if self.stopping.is_set():
            os._exit(1)
        self.hurry = hurry
        self.stopping.set()
        for server in self._servers:
            server.quiesce()
        if self._interrupt is not None:
            self._interrupt.cancel()

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within the context, `stop` also interrupts the current task: a role may wait long for its certificate."""
        task = asyncio.current_task()
        self._interrupt = task
        try:
            yield
        except asyncio.CancelledError:
            if task is None or not self.stopping.is_set():
                raise
            task.uncancel()
            self.hurry = True
        finally:
            self._interrupt = None

    async def close(self) -> None:
        """Cancel the background tasks that still run."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if error := task.exception():
            log.critical("background task failed, exiting", extra={"task": task.get_name()}, exc_info=error)
            self.failed = True
            if not self.stopping.is_set():
                self.stop(hurry=True)


Role = Callable[[Runtime], contextlib.AbstractAsyncContextManager[None]]
"""Serves within its context; draining and stopping happen on exit."""


def run(settings: Settings, roles: Mapping[str, Role]) -> int:
    """Run roles in this process until a signal; returns the exit code."""
    # Imported modules and the records of the first lists stay: do not traverse them every few hundred allocations.
    _give_back_large_blocks()
    gc.freeze()
    gc.set_threshold(*COLLECT)
    gc.enable()
    logs.setup(settings.log)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_main(settings, roles))
        except AteplaceError as error:
            log.critical("fatal error, exiting", extra={"reason": str(error)})
        except OSError as error:
            log.critical("fatal error, exiting", extra={"reason": str(error)}, exc_info=error)
        return 1


async def _main(settings: Settings, roles: Mapping[str, Role]) -> int:
    kube = await Kube.connect(settings.cluster)
    runtime = Runtime(settings, kube)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, runtime.stop)
    loop.add_signal_handler(signal.SIGINT, lambda: runtime.stop(hurry=True))
    serve = settings.serve
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(kube.close)
        stack.push_async_callback(runtime.close)
        health = Server(runtime.health.app(), host=serve.host, port=serve.health_port, tls=None, limits=LIMITS)
        await health.start()
        stack.push_async_callback(health.stop, 1.0)
        if serve.debug_port:
            # Imported on demand: few processes use it, and the import takes memory.
            debugging = importlib.import_module("ateplace.process.debug").server(serve.debug_port)
            await debugging.start()
            stack.push_async_callback(debugging.stop, 1.0)
        log.info("started", extra={"roles": sorted(roles), "health_port": health.port})
        with runtime.interruptible():
            for name, role in roles.items():
                await stack.enter_async_context(role(runtime))
                log.info("role started", extra={"role": name})
        await runtime.stopping.wait()
        log.info("stopping")
        if not runtime.hurry:
            await asyncio.sleep(serve.drain)
    log.info("stopped")
    return int(runtime.failed)


def _give_back_large_blocks() -> None:
    """Fix glibc's thresholds (`LARGE`); other C libraries do not have them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, 2 * LARGE)  # the ratio that glibc itself uses
