"""What the map's endpoints say.

Plain dataclasses: FastAPI makes the OpenAPI page of them, msgspec encodes and decodes them. Numbers and names are those
of `ateplace status -o json`.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

FORMAT = "ateplace-map/1"
"""Of recordings: another number is another format."""

NodeState = Literal["cold", "claimed", "warm"]


@dataclass(slots=True)
class PoolOnNode:
    """One pool on one node."""

    pool: str
    """`namespace/name`, or the pool's UID when the pool is gone."""
    claimed: bool
    claim: str | None
    """The claim's value: when it was last touched, RFC 3339, or empty; null without a claim."""
    ateoms: int
    ready: int
    placeholders: int
    in_flight: int
    """Picks that an extender has answered and that are not bound yet."""


@dataclass(slots=True)
class Node:
    name: str
    zone: str
    state: NodeState
    """cold: no claim; claimed: atelet is on its way; warm: atelet is Ready."""
    labelled: bool
    atelet: str | None
    """`ready`, `starting`, `terminating`, or what keeps it from running; null without one."""
    pools: list[PoolOnNode]


@dataclass(slots=True)
class Pod:
    """An ateom or a placeholder."""

    pool: str
    node: str
    """Empty while it waits for a node."""
    ready: bool
    placeholder: bool
    leaving: bool
    """Whether it is being deleted."""


@dataclass(slots=True)
class Pool:
    pool: str
    uid: str
    replicas: int
    deleting: bool
    ateoms: int
    ready: int
    waiting: int
    placeholders: int
    placeholders_waiting: int
    nodes: int
    """Nodes with its claim."""
    headroom: int
    """Placeholders that it asks for."""
    rules: list[str] = field(default_factory=list)
    """Each rule that it has, as `min-nodes=2`; or why they cannot be read."""


@dataclass(slots=True)
class Totals:
    cold: int = 0
    claimed: int = 0
    warm: int = 0
    ready: int = 0
    starting: int = 0
    waiting: int = 0
    placeholders: int = 0
    in_flight: int = 0


@dataclass(slots=True)
class Burst:
    """Many ateoms of one pool, created within moments; times are this map's own observations."""

    number: int
    pool: str
    began: float
    """When the first was created, in seconds since 1970."""
    last_bound: float | None
    """When the last one so far was bound."""
    created: int
    bound: int
    p50: float | None
    """Seconds from created to bound that half of the bound ones took at most."""
    p99: float | None
    over: bool


@dataclass(slots=True)
class Said:
    at: float
    text: str


@dataclass(slots=True)
class Placement:
    """The cluster at one moment."""

    id: str
    """The last change that is in it: changes after it are at `/api/changes?after=ID`."""
    at: float
    source: str
    """Whose placement it is: the API server's address, or the recording's name."""
    live: bool
    """False for a recording: there is no cluster to ask for explanations."""
    nodes: dict[str, Node]
    pods: dict[str, Pod]
    """By `namespace/name`."""
    pools: dict[str, Pool]
    totals: Totals
    notes: list[str]
    """What could not be seen."""


@dataclass(slots=True)
class Change:
    """What became different in a moment. Entries replace those of the same key; null removes one."""

    id: str
    at: float
    nodes: dict[str, Node | None]
    pods: dict[str, Pod | None]
    pools: dict[str, Pool | None]
    totals: Totals
    said: list[str] = field(default_factory=list)
    bursts: list[Burst] = field(default_factory=list)
    notes: list[str] | None = None
    """Null when they are the same as before."""


@dataclass(slots=True)
class History:
    """As far back as is remembered: a start, and every change since."""

    start: Placement
    changes: list[Change]


@dataclass(slots=True)
class Point:
    at: float
    totals: Totals


@dataclass(slots=True)
class Timeline:
    """The remembered time at a glance."""

    points: list[Point]
    bursts: list[Burst]
    said: list[Said]


@dataclass(slots=True)
class Finding:
    level: Literal["ok", "warn", "fail"]
    says: str
    fix: str


@dataclass(slots=True)
class Decision:
    at: str
    replica: str
    verb: str
    outcome: str
    notes: list[str]


@dataclass(slots=True)
class Event:
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class Explanation:
    """The sentences of `ateplace explain`."""

    kind: Literal["pod", "node", "pool"]
    name: str
    findings: list[Finding]
    decisions: list[Decision]
    """What every extender remembers of a pod, oldest first."""
    events: list[Event]
    notes: list[str]


@dataclass(slots=True)
class Header:
    """The first line of a recording."""

    format: str
    start: Placement


encode = msgspec.json.encode
decode_change = msgspec.json.Decoder(Change).decode
decode_header = msgspec.json.Decoder(Header).decode


def as_status(placement: Placement) -> dict[str, Any]:
    """Its part of `ateplace status -o json`, for comparing."""
    renamed = {"placeholders_waiting": "placeholdersWaiting", "in_flight": "inFlight"}

    def plain(entry: object, *without: str) -> dict[str, Any]:
        fields = msgspec.to_builtins(entry)
        return {renamed.get(key, key): value for key, value in fields.items() if key not in without}

    return {
        "nodes": [
            plain(node, "zone", "state") | {"pools": [plain(one) for one in node.pools]}
            for node in placement.nodes.values()
        ],
        "pools": [plain(pool, "headroom", "rules") for pool in placement.pools.values()],
    }
