"""A memory that forgets: entries go after some seconds, the oldest first, and when there are too many."""

from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Expiring(Generic[K, V]):
    """`expire` must be called now and then, with a time that does not go back; it looks at what it drops and one more.

    What it drops is what the caller must undo, so entries never go by themselves.
    """

    def __init__(self, seconds: float, most: int | None = None) -> None:
        self._seconds = seconds
        self._most = most
        self._entries: dict[K, tuple[V, float]] = {}
        """Oldest first."""

    def put(self, key: K, value: V, now: float) -> None:
        """Remember it from now on, whatever was remembered under this key before."""
        self._entries.pop(key, None)
        self._entries[key] = value, now

    def pop(self, key: K) -> V | None:
        """Forget it; what it was."""
        entry = self._entries.pop(key, None)
        return entry[0] if entry else None

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        return entry[0] if entry else None

    def expire(self, now: float) -> list[tuple[K, V]]:
        """Forget what is too old, and the oldest of too many; what that was."""
        gone = []
        while self._entries:
            key, (value, at) = next(iter(self._entries.items()))
            if now - at < self._seconds and (self._most is None or len(self._entries) <= self._most):
                break
            del self._entries[key]
            gone.append((key, value))
        return gone

    def items(self) -> Iterator[tuple[K, V]]:
        """Oldest first."""
        return ((key, value) for key, (value, _) in self._entries.items())

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)
