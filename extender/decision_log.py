"""Why pods went where they went: the last decisions of the last pods, in a bounded ring.

Names and reasons only, nothing of a pod's spec. A refusal keeps each reason with its count and a few of the nodes; an
answer keeps the node, the best candidates with what they were ranked by, and what was claimed ahead.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

PER_POD: Final = 5
SAMPLE: Final = 3


class Decision(Struct, frozen=True, gc=False):
    at: str
    verb: str
    outcome: str
    """One sentence."""
    notes: tuple[str, ...] = ()


class Ring:
    """Decisions by pod ("namespace/name"); the pod that was decided upon longest ago makes room."""

    def __init__(self, pods: int) -> None:
        self._pods = pods
        self._kept: OrderedDict[str, deque[Decision]] = OrderedDict()

    def add(self, pod: str, verb: str, outcome: str, notes: tuple[str, ...] = ()) -> None:
        if not self._pods:
            return
        kept = self._kept.get(pod)
        if kept is None:
            kept = self._kept[pod] = deque(maxlen=PER_POD)
            if len(self._kept) > self._pods:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(pod)
        kept.append(Decision(datetime.now(UTC).isoformat(timespec="milliseconds"), verb, outcome, notes))

    def of(self, pod: str) -> list[Decision]:
        """Oldest first."""
        return list(self._kept.get(pod, ()))


def summary(reasons: Mapping[str, str]) -> tuple[str, ...]:
    """Nodes by reason: `3 nodes: atelet is crash-looping there (n1, n2, n3)`, the most frequent first."""
    by_reason: dict[str, list[str]] = {}
    for node, reason in reasons.items():
        by_reason.setdefault(reason, []).append(node)
    return tuple(
        f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}: {reason} "
        f"({', '.join(sorted(nodes)[:SAMPLE])}{', …' if len(nodes) > SAMPLE else ''})"
        for reason, nodes in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    )
