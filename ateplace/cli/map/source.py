"""Where the map's history comes from: a live cluster (`ateplace.cli.map.feed`) or a recording."""

import asyncio
from typing import Literal, Protocol

from ateplace.cli.map.history import History
from ateplace.cli.map.wire import Explanation

Kind = Literal["pod", "node", "pool"]


class Source(Protocol):
    history: History | None
    """None until there is a first picture."""
    ready: asyncio.Event
    """Set with the first picture."""

    def trouble(self) -> str:
        """Why there is no picture yet."""

    async def explain(self, kind: Kind, namespace: str, name: str) -> Explanation:
        """The sentences of `ateplace explain`; raises AteplaceError when there are none."""
