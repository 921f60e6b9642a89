"""Rooms: where placeholders were ended for ateoms that have not been placed yet.

A placeholder that was ended is made anew at once, and the scheduler may try it before it tries the ateom again. So
until an ateom was answered the node, or some seconds are over, no placeholder is placed there.

Kept for seconds only, and never relied on: who finds a room taken asks again.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

SECONDS: Final = 10.0
MOST: Final = 10_000


class Room(Struct, frozen=True, gc=False):
    node: str
    pool: str
    """UID of the WorkerPool that it was made for."""
    at: float


class Rooms:
    def __init__(self) -> None:
        self._made: dict[str, Room] = {}
        """By the UID of the placeholder that went, oldest first."""
        self._held: dict[str, int] = {}
        """How many of them are on a node."""
        self._pools: dict[str, int] = {}

    def made(self, victim: str, node: str, pool: str, now: float) -> None:
        self._drop(victim)
        self._made[victim] = Room(node, pool, now)
        self._held[node] = self._held.get(node, 0) + 1
        self._pools[pool] = self._pools.get(pool, 0) + 1

    def taken(self, node: str) -> None:
        """An ateom was answered this node."""
        if node in self._held:
            self._drop(next(victim for victim, room in self._made.items() if room.node == node))

    def held(self, now: float) -> Mapping[str, int]:
        """The nodes where no placeholder may go now."""
        while self._made:
            victim, oldest = next(iter(self._made.items()))
            if now - oldest.at < SECONDS and len(self._made) <= MOST:
                break
            self._drop(victim)
        return self._held

    def waiting(self, pool: str) -> int:
        """How many were made for this pool, and not taken."""
        return self._pools.get(pool, 0)

    def _drop(self, victim: str) -> None:
        room = self._made.pop(victim, None)
        if room is not None:
            for counts, key in ((self._held, room.node), (self._pools, room.pool)):
                counts[key] -= 1
                if not counts[key]:
                    del counts[key]
