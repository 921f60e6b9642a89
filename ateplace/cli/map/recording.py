"""Recordings: a header line with the first placement, then a line for every change, as JSON.

A recording names nodes, pools and pods, and is readable by its owner only. A line that was cut off, because the map was
killed, ends it.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from ateplace.cli.map import wire
from ateplace.cli.map.history import History, Kept
from ateplace.cli.map.source import Kind
from ateplace.errors import AteplaceError
from ateplace.kube.failures import UNDECODABLE


class Recorder:
    """Writes a recording; an existing file is replaced."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            raise AteplaceError(f"cannot record to {path}: {error.strerror}") from error

    def begin(self, history: History) -> "Recorder":
        self._line(wire.encode(wire.Header(wire.FORMAT, history.now)))
        return self

    def __call__(self, kept: Kept) -> None:
        self._line(kept.body)

    def _line(self, body: bytes) -> None:
        os.writev(self._file, (body, b"\n"))

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> tuple[wire.Placement, list[wire.Change]]:
    """A whole recording; AteplaceError when it is none."""
    try:
        with path.open("rb") as file:
            header = wire.decode_header(file.readline())
            if header.format != wire.FORMAT:
                raise AteplaceError(f"{path} is a recording in the format {header.format!r}, not {wire.FORMAT!r}")
            changes = []
            for line in file:
                if not line.endswith(b"\n"):
                    break
                changes.append(wire.decode_change(line))
    except OSError as error:
        raise AteplaceError(f"cannot read {path}: {error.strerror}") from error
    except UNDECODABLE as error:
        raise AteplaceError(f"{path} is not a recording of the map: {error}") from error
    return header.start, changes


class Replay:
    """A recording as a source: its changes come when they came, or `speed` times as fast."""

    def __init__(self, path: Path, speed: float) -> None:
        start, self._changes = read(path)
        start.source, start.live = f"recording {path.name}", False
        self._start, self._speed = start, speed
        self.history: History | None = None
        self.ready = asyncio.Event()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Play for the length of the block; the end stays shown."""
        self.history = History(self._start, seconds=float("inf"))
        self.ready.set()
        playing = asyncio.create_task(self._play(self.history))
        try:
            yield
        finally:
            playing.cancel()

    async def _play(self, history: History) -> None:
        loop = asyncio.get_running_loop()
        began, first = loop.time(), self._start.at
        for change in self._changes:
            due = began + (change.at - first) / self._speed
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            history.append(change)
            await asyncio.sleep(0)

    def trouble(self) -> str:
        return "the recording is being read"

    async def explain(self, kind: Kind, namespace: str, name: str) -> wire.Explanation:
        raise AteplaceError("a recording has no cluster to ask")
