"""Opt-in profiling of a running process, on loopback only (`serve.debug_port`).

GET /debug/cpu?seconds=10                    where CPU time goes; `&format=collapsed` for flame graphs
GET /debug/heap?seconds=30                   memory allocated meanwhile and not freed, by line
GET /debug/tasks                             every asyncio task and where it waits

Off by default, and never on another address: a profile reveals nothing but places in the code, but taking one slows
the process down. In a cluster run `kubectl port-forward pod/ateplace-extender-… 6060`, which connects to the pod's
loopback address, then `curl 'localhost:6060/debug/cpu?seconds=10'`.

The CPU profile samples the main thread, where all our code runs, by a timer that counts CPU time (ITIMER_PROF): an idle
process gives no samples, and a profile costs a few per cent. The heap profile is tracemalloc's: allocations are much
slower while it runs, and it sees only those made meanwhile. In a process started with PYTHONTRACEMALLOC=1 it returns at
once, and covers everything since the start.
"""

import asyncio
import signal
import sys
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ateplace.process.http_server import Limits, Server

HOST: Final = "127.0.0.1"
LIMITS: Final = Limits(body_bytes=1024, max_connections=8, request_deadline=5.0)
EVERY: Final = 0.005
"""Seconds of CPU time between samples."""
MOST_SECONDS: Final = 300.0
LINES: Final = 40
DEPTH: Final = 64
"""Frames kept of a stack, the innermost."""

Stack = tuple[str, ...]
Profile = Callable[[float, str], Awaitable[str]]


def server(port: int) -> Server:
    """The server of the debug port, on loopback regardless of `serve.host`."""
    return Server(application(), host=HOST, port=port, tls=None, limits=LIMITS)


def application() -> Starlette:
    """The endpoints; one profile at a time."""
    busy = asyncio.Lock()

    def page(profile: Profile) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                seconds = float(request.query_params.get("seconds", "10"))
            except ValueError:
                seconds = 0.0
            if not 0 < seconds <= MOST_SECONDS:
                return PlainTextResponse(f"seconds must be a number above 0, at most {MOST_SECONDS:.0f}\n", 400)
            if busy.locked():
                return PlainTextResponse("another profile is running\n", 409)
            async with busy:
                return PlainTextResponse(await profile(seconds, request.query_params.get("format", "text")))

        return answer

    async def waiting(_: Request) -> Response:
        return PlainTextResponse(tasks())

    paths = {"/debug/cpu": page(cpu), "/debug/heap": page(heap), "/debug/tasks": waiting}
    return Starlette(routes=[Route(path, endpoint) for path, endpoint in paths.items()])


async def cpu(seconds: float, form: str = "text") -> str:
    """Sample the main thread for `seconds`; returns a table, or a line `a;b;c 12` per stack (collapsed)."""
    stacks: Counter[Stack] = Counter()

    def sample(_: int, frame: FrameType | None) -> None:
        stacks[_stack(frame)] += 1

    before = signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
    try:
        await asyncio.sleep(seconds)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Never restore SIG_DFL: a signal that is still pending would kill the process.
        signal.signal(signal.SIGPROF, signal.SIG_IGN if before in (signal.SIG_DFL, None) else before)
    if form == "collapsed":
        return "".join(f"{';'.join(stack)} {count}\n" for stack, count in stacks.most_common())
    return _table(stacks, seconds)


def _stack(frame: FrameType | None) -> Stack:
    """Outermost first."""
    found: list[str] = []
    while frame is not None and len(found) < DEPTH:
        code = frame.f_code
        found.append(f"{code.co_qualname} ({_short(code.co_filename)}:{frame.f_lineno})")
        frame = frame.f_back
    return tuple(reversed(found))


def _short(path: str) -> str:
    """The last two parts: `extender/filter/choose.py`."""
    return "/".join(Path(path).parts[-2:])


def _table(stacks: Counter[Stack], seconds: float) -> str:
    samples = stacks.total()
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for stack, count in stacks.items():
        if stack:
            own[stack[-1]] += count
        for place in set(stack):
            total[place] += count
    lines = [f"{samples} samples, about {samples * EVERY:.2f} s of CPU time in {seconds:g} s", "  self  total  where"]
    lines += [
        f"{own[place] / samples:6.1%} {count / samples:6.1%}  {place}" for place, count in total.most_common(LINES)
    ]
    return "\n".join(lines) + "\n"


async def heap(seconds: float, _: str = "text") -> str:
    """Trace allocations for `seconds`; returns the lines whose allocations were not freed, the largest first."""
    if tracemalloc.is_tracing():
        snapshot, since = tracemalloc.take_snapshot(), "since the process started"
    else:
        tracemalloc.start()
        try:
            await asyncio.sleep(seconds)
            snapshot, since = tracemalloc.take_snapshot(), f"within {seconds:g} s"
        finally:
            tracemalloc.stop()
    snapshot = snapshot.filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)])
    found = snapshot.statistics("lineno")
    whole = sum(one.size for one in found)
    lines = [f"{whole / 1024:.1f} KiB allocated {since} and not freed", "     KiB   blocks  where"]
    lines += [
        f"{one.size / 1024:8.1f} {one.count:8d}  {_short(one.traceback[0].filename)}:{one.traceback[0].lineno}"
        for one in found[:LINES]
    ]
    return "\n".join(lines) + "\n"


def tasks() -> str:
    """A line per task: its name, and the innermost coroutine and line where it waits."""
    lines = []
    for task in asyncio.all_tasks():
        coroutine: Any = task.get_coro()
        while getattr(coroutine, "cr_await", None) is not None and hasattr(coroutine.cr_await, "cr_frame"):
            coroutine = coroutine.cr_await
        frame = getattr(coroutine, "cr_frame", None)
        where = f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else "?"
        lines.append(f"{task.get_name():32} {getattr(coroutine, '__qualname__', '?')} ({where})")
    return "\n".join([f"{len(lines)} tasks, Python {sys.version.split()[0]}", *sorted(lines)]) + "\n"
