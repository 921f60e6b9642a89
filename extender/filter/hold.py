"""`hold-warm`: how long a pod is kept from cold nodes while placeholders on warm ones could make room for it."""

from typing import Final

from ateplace.extender.context import Case

PODS: Final = 10_000
"""Pods whose time of holding back is remembered."""


class HoldWarm:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[str, float] = {}
        """By pod UID, the one that came first first."""

    def holds(self, case: Case) -> bool:
        """Whether this pod is to wait for warm room. The first call starts its time."""
        return self.left(case) > 0

    def left(self, case: Case) -> float:
        """For how many seconds it still is."""
        if not self._seconds or case.demand.placeholder:
            return 0.0
        since = self._since.setdefault(case.demand.uid, case.now)
        if len(self._since) > PODS:
            del self._since[next(iter(self._since))]
        return max(0.0, since + self._seconds - case.now)

    def placed(self, uid: str) -> None:
        self._since.pop(uid, None)
