"""A rate: so many turns a second, a few of them at once after a rest, the others in order."""

import asyncio
import math


class Turns:
    """`turn()` returns when it is the caller's. One that gives up waiting has used none. One event loop.

    Nothing bounds how many wait: the caller has a limit for them, as servers have for connections.
    """

    def __init__(self, rate: float, *, at_once: int = 1) -> None:
        self._gap = 1 / rate
        self._ahead = (at_once - 1) * self._gap
        self._full = -math.inf
        """When `at_once` turns are there again."""
        self._order = asyncio.Lock()

    @property
    def rested(self) -> bool:
        """Whether nothing is to be remembered: a new one would do the same."""
        return self._full <= asyncio.get_running_loop().time() and not self._order.locked()

    async def turn(self) -> None:
        clock = asyncio.get_running_loop().time
        async with self._order:
            await asyncio.sleep(max(0.0, self._full - self._ahead - clock()))
            self._full = max(self._full, clock()) + self._gap
