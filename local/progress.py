"""Visible progress that works in a terminal and in a log."""

import sys
import time
from collections.abc import Callable

Say = Callable[[str], None]


def say(message: str) -> None:
    """A line for the person who waits, on standard error."""
    print(f"==> {message}", file=sys.stderr, flush=True)


class Ticker:
    """Says something at most every `every` seconds, so that a long step is seen to go on."""

    def __init__(self, say: Say, every: float = 10.0) -> None:
        self._say = say
        self._every = every
        self._started = self._last = time.monotonic()

    def __call__(self, message: str) -> None:
        now = time.monotonic()
        if now - self._last >= self._every:
            self._last = now
            self._say(f"{message}, {now - self._started:.0f} s")
