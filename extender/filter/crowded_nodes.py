"""Nodes that were looked at and had no room beside atelet: looked at again when all others were.

What was read of a node is believed for a minute, one call looks at a few nodes only, and a pod that gets an error comes
back every ten seconds. So among hundreds of nodes that others have filled it would look at the first ones for ever.
"""

from typing import Final

from extender.fit import Case, unread

SECONDS: Final = 600.0


class Tight:
    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        """Oldest first."""

    def found(self, name: str, now: float) -> None:
        self._since.pop(name, None)
        self._since[name] = now

    def unread(self, case: Case) -> set[str]:
        """Those about which nothing more recent is known."""
        while self._since:
            name, at = next(iter(self._since.items()))
            if case.now - at < SECONDS:
                break
            del self._since[name]
        nodes = case.ledger.nodes
        return {name for name in self._since if name in nodes and unread(case, nodes[name])}
