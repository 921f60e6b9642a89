"""Nodes that were read and had no room beside atelet: read again when all others were.

What was read of a node is believed for a minute, one call reads a few nodes only, and a pod that gets an error comes
back every ten seconds. So among hundreds of nodes that others have filled it would read the first ones for ever.
"""

from typing import Final

from ateplace.cluster.expiring import Expiring
from ateplace.extender.context import Case
from ateplace.extender.fit import must_read

SECONDS: Final = 600.0


class CrowdedNodes:
    def __init__(self) -> None:
        self._nodes: Expiring[str, None] = Expiring(SECONDS)

    def add(self, name: str, now: float) -> None:
        self._nodes.put(name, None, now)

    def outdated(self, case: Case) -> set[str]:
        """Those about which nothing more recent is known."""
        self._nodes.expire(case.now)
        nodes = case.ledger.nodes
        return {name for name in self._nodes if name in nodes and must_read(case, nodes[name])}
