"""A process's life: start, serve until told to stop, drain, end.

    run ── logging, API client, health port ── enter each role ── wait ── drain ── leave the roles ── close
                                                                   ^
                                     SIGTERM, SIGINT, or a supervised task that failed (exit code 1)

On SIGTERM `stopping` is set and readiness ends, but for `serve.drain` seconds everything goes on being
served, because Services take a moment to send calls elsewhere. Then the roles are left, each with
`serve.grace` for what is under way. SIGINT (Ctrl-C) skips the drain. A second signal ends the process at once.
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
"""Objects made and not freed before the collector looks at the young ones; and how often at the older ones."""

LARGE: Final = 512 * 1024
"""Bytes from which a block of memory goes back to the system as soon as it is freed. By itself glibc raises this limit
to the largest block that was ever freed, up to 32 MiB: a few fat objects or long lists, and their buffers stay. Not so
few that it concerns asyncio's reads from TLS, for which it allocates 256 KiB each, however little there is to read."""
M_MMAP_THRESHOLD: Final = -3
M_TRIM_THRESHOLD: Final = -1

S = TypeVar("S")


class Runtime:
    """What a role gets from the process it runs in."""

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
        """Run something beside the roles; an exception that escapes it ends the process with 1."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def shared(self, key: type[S], make: Callable[["Runtime"], S]) -> S:
        """The one object of this class in the process, made by the first who asks."""
        if key not in self._shared:
            self._shared[key] = make(self)
        return cast("S", self._shared[key])

    @contextlib.asynccontextmanager
    async def serving(self, server: Server) -> AsyncIterator[Server]:
        """Serve while inside; on the way out take nothing new and finish what is under way."""
        await server.start()
        self._servers.append(server)
        try:
            yield server
        finally:
            await server.stop(self.settings.serve.grace)
            self._servers.remove(server)

    def stop(self, *, hurry: bool = False) -> None:
        """Begin to end the process; called again, end it at once."""
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
        """While inside, `stop` also interrupts the current task: a role may wait long for its certificate."""
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
        """Cancel what was spawned and still runs."""
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
            log.critical("a task failed, ending", extra={"task": task.get_name()}, exc_info=error)
            self.failed = True
            if not self.stopping.is_set():
                self.stop(hurry=True)


Role = Callable[[Runtime], contextlib.AbstractAsyncContextManager[None]]
"""Entered: serving. Left: drained and stopped."""


def run(settings: Settings, roles: Mapping[str, Role]) -> int:
    """Run roles in this process until a signal; the exit code."""
    # What was imported stays, and what a first list brings too: not to be walked through every few hundred objects.
    _give_back_large_blocks()
    gc.freeze()
    gc.set_threshold(*COLLECT)
    gc.enable()
    logs.setup(settings.log)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_main(settings, roles))
        except AteplaceError as error:
            log.critical("cannot run", extra={"reason": str(error)})
        except OSError as error:
            log.critical("cannot run", extra={"reason": str(error)}, exc_info=error)
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
            # Hardly any process is asked for it, and every process would pay for the import.
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
    """Where the C library is not glibc there is nothing to tell it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, 2 * LARGE)  # as glibc sets it along with the other, when it does so by itself
