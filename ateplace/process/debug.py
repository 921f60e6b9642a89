"""Opt-in profiling of a running process, on loopback only (`serve.debug_port`).

GET /debug/cpu?seconds=10                    where CPU time goes; `&format=collapsed` for flame graphs
GET /debug/heap?seconds=30                   what was allocated meanwhile and is still there, by line
GET /debug/tasks                             every asyncio task and where it waits

Off unless asked for, and never on another address: the lines name our own code only, but who can ask can slow us down.
In a cluster: `kubectl port-forward pod/ateplace-extender-… 6060`, which ends on the pod's loopback address, then
`curl 'localhost:6060/debug/cpu?seconds=10'`.

The CPU profile samples the main thread, where everything of ours runs, by a timer that counts CPU time only
(ITIMER_PROF): an idle process gives no samples, and the cost is a few per cent while it runs. The heap profile is
tracemalloc's: it makes allocations about half as fast again while it runs, and sees only what is allocated meanwhile.
In a process that was started with PYTHONTRACEMALLOC=1 it is answered at once and shows all that was allocated since.
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
"""Innermost frames kept of a stack."""

Stack = tuple[str, ...]
Profile = Callable[[float, str], Awaitable[str]]


def server(port: int) -> Server:
    """The debug port; it listens on loopback whatever `serve.host` says."""
    return Server(application(), host=HOST, port=port, tls=None, limits=LIMITS)


def application() -> Starlette:
    """The pages; one profile at a time."""
    busy = asyncio.Lock()

    def page(profile: Profile) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                seconds = float(request.query_params.get("seconds", "10"))
            except ValueError:
                seconds = 0.0
            if not 0 < seconds <= MOST_SECONDS:
                return PlainTextResponse(f"seconds must be a number up to {MOST_SECONDS:.0f}\n", 400)
            if busy.locked():
                return PlainTextResponse("a profile is being taken already\n", 409)
            async with busy:
                return PlainTextResponse(await profile(seconds, request.query_params.get("format", "text")))

        return answer

    async def waiting(_: Request) -> Response:
        return PlainTextResponse(tasks())

    paths = {"/debug/cpu": page(cpu), "/debug/heap": page(heap), "/debug/tasks": waiting}
    return Starlette(routes=[Route(path, endpoint) for path, endpoint in paths.items()])


async def cpu(seconds: float, form: str = "text") -> str:
    """Sample the main thread for so long; a table, or `a;b;c 12` a line (collapsed)."""
    stacks: Counter[Stack] = Counter()

    def sample(_: int, frame: FrameType | None) -> None:
        stacks[_stack(frame)] += 1

    before = signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
    try:
        await asyncio.sleep(seconds)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Not `before`: a signal that is still on its way would end the process under the default action.
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
    """Trace allocations for so long; the lines whose allocations are still there, the largest first."""
    if tracemalloc.is_tracing():
        snapshot, since = tracemalloc.take_snapshot(), "since the process began"
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
    lines = [f"{whole / 1024:.1f} KiB allocated {since} are still there", "     KiB   blocks  where"]
    lines += [
        f"{one.size / 1024:8.1f} {one.count:8d}  {_short(one.traceback[0].filename)}:{one.traceback[0].lineno}"
        for one in found[:LINES]
    ]
    return "\n".join(lines) + "\n"


def tasks() -> str:
    """A line for each task: its name, and the innermost line of ours or others' where it waits."""
    lines = []
    for task in asyncio.all_tasks():
        coroutine: Any = task.get_coro()
        while getattr(coroutine, "cr_await", None) is not None and hasattr(coroutine.cr_await, "cr_frame"):
            coroutine = coroutine.cr_await
        frame = getattr(coroutine, "cr_frame", None)
        where = f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else "?"
        lines.append(f"{task.get_name():32} {getattr(coroutine, '__qualname__', '?')} ({where})")
    return "\n".join([f"{len(lines)} tasks, Python {sys.version.split()[0]}", *sorted(lines)]) + "\n"
