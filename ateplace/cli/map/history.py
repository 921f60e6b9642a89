"""The last hour: a start and every change since, bounded in time and in bytes.

Changes are kept as the bytes that clients get. The oldest are folded into the start, so that start + changes is the
present at any time. Ids are `<epoch>-<number>`; another process has another epoch, so that a client of an
earlier one is given a fresh start instead of changes that it cannot use.
"""

import asyncio
import secrets
from collections import deque
from dataclasses import replace
from typing import NamedTuple, TypeVar

from ateplace.cli.map import wire
from ateplace.cli.map.wire import Burst, Change, Placement, Point, Said, Timeline, Totals

T = TypeVar("T")

SECONDS = 3600.0
BYTES = 24 * 2**20
"""Most bytes of changes; a burst of 300 is about 0.3 MB."""
SENTENCES = 400
BURSTS = 100
BEHIND = 2 * 2**20
"""Bytes of changes after which a fresh start is less work for a client."""


class Kept(NamedTuple):
    number: int
    at: float
    body: bytes


class History:
    """Confined to one event loop; `now` and `start` are changed in place and must not be by others."""

    def __init__(self, start: Placement, *, seconds: float = SECONDS, most: int = BYTES) -> None:
        self._seconds, self._most = seconds, most
        self.epoch = secrets.token_hex(4)
        self.number = 0
        """Of the last change."""
        self.now = replace(start, id=self._id(0))
        self._start = _copy(self.now)
        self._kept: deque[Kept] = deque()
        self._bytes = 0
        self._points: deque[Point] = deque([Point(start.at, start.totals)])
        self._said: deque[Said] = deque(maxlen=SENTENCES)
        self._bursts: dict[int, Burst] = {}
        self._told = asyncio.Event()
        self.closed = False

    def close(self) -> None:
        """Let every stream end."""
        self.closed = True
        self._told.set()

    def append(self, change: Change) -> Kept:
        """Number a change, make it the present and wake all waiting readers."""
        self.number += 1
        change.id = self._id(self.number)
        apply(self.now, change)
        kept = Kept(self.number, change.at, wire.encode(change))
        self._kept.append(kept)
        self._bytes += len(kept.body)
        while self._kept and (self._bytes > self._most or change.at - self._kept[0].at > self._seconds):
            self._fold()
        self._note(change.at, change.totals)
        self._said.extend(Said(change.at, text) for text in change.said)
        for burst in change.bursts:
            self._bursts[burst.number] = burst
            if len(self._bursts) > BURSTS:
                del self._bursts[next(iter(self._bursts))]
        self._told.set()
        self._told = asyncio.Event()
        return kept

    def _fold(self) -> None:
        oldest = self._kept.popleft()
        self._bytes -= len(oldest.body)
        apply(self._start, wire.decode_change(oldest.body))

    def _note(self, at: float, totals: Totals) -> None:
        points = self._points
        if len(points) > 1 and at - points[-2].at < 1.0:
            points[-1] = Point(at, totals)  # one a second is as fine as a timeline shows
        else:
            points.append(Point(at, totals))
        while at - points[0].at > self._seconds:
            points.popleft()

    def after(self, id_: str) -> list[Kept] | None:
        """The changes that follow an id; None when a fresh start is needed instead."""
        epoch, _, number = id_.partition("-")
        if epoch != self.epoch or not number.isdecimal() or int(number) > self.number:
            return None
        missing = self.number - int(number)
        if missing > len(self._kept):
            return None
        found = [self._kept[index] for index in range(len(self._kept) - missing, len(self._kept))]
        return None if sum(len(kept.body) for kept in found) > BEHIND else found

    async def wait(self) -> None:
        """Return when there is another change."""
        await self._told.wait()

    def body(self) -> bytes:
        """A `wire.History`, encoded."""
        changes = b",".join(kept.body for kept in self._kept)
        return b'{"start":%b,"changes":[%b]}' % (wire.encode(self._start), changes)

    def timeline(self) -> Timeline:
        return Timeline(list(self._points), list(self._bursts.values()), list(self._said))

    def _id(self, number: int) -> str:
        return f"{self.epoch}-{number}"


def apply(placement: Placement, change: Change) -> None:
    """Bring a placement one change further."""
    # One kind after the other, written out: a loop over pairs would hide the types from the type checker.
    _merge(placement.nodes, change.nodes)
    _merge(placement.pods, change.pods)
    _merge(placement.pools, change.pools)
    placement.id, placement.at, placement.totals = change.id, change.at, change.totals
    if change.notes is not None:
        placement.notes = change.notes


def _merge(into: dict[str, T], changed: dict[str, T | None]) -> None:
    for key, value in changed.items():
        if value is None:
            into.pop(key, None)
        else:
            into[key] = value


def _copy(placement: Placement) -> Placement:
    return replace(placement, nodes=dict(placement.nodes), pods=dict(placement.pods), pools=dict(placement.pools))
