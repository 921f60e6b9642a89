"""How long to wait before trying again."""

import random


class Backoff:
    """Doubling delays with jitter; the first is short, because most trouble is over at once.

    Jitter takes up to half of a delay away, so that clients that failed together do not come back together.
    """

    def __init__(self, first: float = 0.1, most: float = 5.0) -> None:
        self._first = first
        self._most = most
        self._next = first

    def delay(self) -> float:
        """Seconds to wait now; the next ones will be more."""
        now, self._next = self._next, min(self._next * 2, self._most)
        return now * random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def reset(self) -> None:
        """Something worked."""
        self._next = self._first
