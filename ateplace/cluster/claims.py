"""Pools on nodes: which claims exist, in which state, and who holds them.

The life of one claim (one pool on one node):

               acknowledge / node_seen               pod_seen there             last pod_gone
      NONE ------------------------------> FRESH ----------------> HELD -----------------------> LINGERING
       ^                                     |                      ^   acknowledge (a touch)      |
       |                                     |                      +------- then pod_seen --------+
       +---- node_seen without the key ------+------------------------------------------------------+

- A pod holds its pool's claim on its node from the moment our watch shows it bound there until the object is gone;
  Succeeded and Failed ones hold nothing, Terminating ones do. A placeholder holds it only while its pool is known to
  be there and `warm`.
- The reply rule: filter answers a node only when this process itself wrote its claim, acknowledged, less than half a
  linger ago (`answerable`). That a claim looks HELD in a watch is no reason to answer it.
- A node's events are ordered by resourceVersion, so an event older than an acknowledged write cannot undo it; another
  uid under the same name is another node, about which nothing that was written or read before is true.
- A node is our own while this process opened it and every claim on it is one that this process wrote. Others keep off
  such a node until its atelet is there (`extender.fit`), so all that is on its way to it is among our picks.
- By the reply rule a process that wrote a claim half a linger ago answers by it no longer. So where others have written
  none for a whole linger (`others_wrote`), what they answered is bound, and all else is among our picks as well.
"""

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from math import inf
from typing import Any, Final

from ateplace import names
from ateplace.cluster.records import NodeRecord, PodRecord
from ateplace.cluster.state import Node, Pool, PoolOnNode, State
from ateplace.cluster.tables import Tables

ANNOTATION_BYTES: Final = 256 * 1024
"""The API server takes no more than this on one object, keys and values together."""
CLAIM_BYTES: Final = 128
"""The most that one claim takes: the prefix, a UID, a time."""
UNDER_WAY: Final = 16
"""Writes to one node that are remembered beside its claims; of more, those that no claim shows are forgotten. A write
that is forgotten looks like another process's, so the node is not our own."""
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Claims:
    def __init__(self, tables: Tables) -> None:
        self.nodes: dict[str, Node] = {}
        """Nodes with at least one claim."""
        self._tables = tables
        self._nodes = tables.nodes
        self._pools = tables.pools

    # What the watches show.

    def node_seen(self, node: Node, record: NodeRecord, now: float) -> None:
        if node.record and node.record.uid != record.uid:
            self.node_gone(node, now)
        known = node.record.claims if node.record else {}
        if record.claims != known and any(
            value not in {known.get(pool), node.wrote.get(pool)} for pool, value in record.claims.items()
        ):
            node.others_wrote, node.others_version = now, record.version
        node.record = record
        if len(node.wrote) > len(record.claims) + UNDER_WAY:
            node.wrote = {pool: node.wrote[pool] for pool in record.claims if pool in node.wrote}
        node.room = dict(record.allocatable)
        if node.own and not self.is_ours(record.name, record.claims):
            _not_own(node)
        for pool, there in list(node.pools.items()):
            if pool not in record.claims:
                if there.value is not None and record.version >= there.version:
                    self._set_claim(node, pool, there, None, now)
            elif not record.labelled and record.version >= there.version:
                there.sent = -inf
        for pool, value in record.claims.items():
            there = self._tables.pool_on_node(node, pool)
            if there.value != value and record.version >= there.version:
                self._set_claim(node, pool, there, value, now)

    def node_gone(self, node: Node, now: float) -> None:
        """The Node object is gone: its claims, our writes to it and what we read about it went with it."""
        self._tables.others_changed(node.name)
        _not_own(node)
        for pool, there in list(node.pools.items()):
            if there.value is not None:
                self._set_claim(node, pool, there, None, now)

    def pod_bound(self, record: PodRecord, pool_uid: str) -> None:
        """A pod of the pool is bound to its node."""
        there = self._tables.pool_on_node(self._nodes[record.node], pool_uid)
        if record.placeholder:
            there.placeholders += 1
        else:
            there.ateoms += 1

    def pod_left(self, record: PodRecord, pool: Pool, now: float) -> None:
        """A pod of the pool is bound to its node no longer."""
        node, warm = self._nodes[record.node], pool.warm
        there = node.pools[pool.uid]
        held = there.holders(warm=warm)
        if record.placeholder:
            there.placeholders -= 1
        else:
            there.ateoms -= 1
        if held and not there.holders(warm=warm):
            there.unused = now
        self._tables.drop_pool_on_node(node, pool.uid, there)

    # What we did.

    def sending(self, name: str, pool_uid: str, value: str) -> None:
        """This process is about to write a claim: what it says, to tell it from what others write."""
        node = self._nodes.get(name)
        if node:
            node.wrote[pool_uid] = value

    def acknowledge(
        self,
        name: str,
        node_uid: str,
        pool_uid: str,
        *,
        value: str,
        version: int,
        sent: float,
        now: float,
        opened: bool = False,
    ) -> None:
        """The API server took a write of the claim (and the label) that was sent at `sent`. `opened`: there was no
        claim on the node before it."""
        node = self._nodes.get(name)
        if node is None or node.record is None or node.record.uid != node_uid:
            return
        if node.record.version >= version and not (node.record.labelled and pool_uid in node.record.claims):
            return  # the watch was quicker, and shows that it has been undone since
        self._tables.generation += 1
        there = self._tables.pool_on_node(node, pool_uid)
        if there.version <= version:
            if there.value != value and node.record.version < version:
                self._set_claim(node, pool_uid, there, value, now)
            there.sent, there.version = max(there.sent, sent), version
        alone = node.record.version < version or self.is_ours(name, node.record.claims)
        if opened and alone and node.others_version < version:
            node.own = True
        self._tables.tell_node(name)

    # Questions.

    def is_ours(self, name: str, claims: Mapping[str, str]) -> bool:
        """Whether each of a node's claims says what this process wrote there, last or (while it is ours) before."""
        node = self._nodes.get(name)
        return node is not None and all(
            value == node.wrote.get(pool) or (node.own and pool in node.pools and value == node.pools[pool].value)
            for pool, value in claims.items()
        )

    def live(self, name: str, pool_uid: str) -> int:
        """How many pods hold (or would hold) this pool's claim on that node."""
        pool = self._pools.get(pool_uid)
        there = pool.nodes.get(name) if pool else None
        return there.holders(warm=pool.warm) if pool and there else 0

    def state(self, name: str, pool_uid: str) -> State:
        pool = self._pools.get(pool_uid)
        there = pool.nodes.get(name) if pool else None
        if pool is None or there is None or there.value is None:
            return State.NONE
        if there.holders(warm=pool.warm):
            return State.HELD
        return State.LINGERING if there.unused > there.changed else State.FRESH

    # Inside.

    def _set_claim(self, node: Node, pool_uid: str, there: PoolOnNode, value: str | None, now: float) -> None:
        node.claim_count += (value is not None) - (there.value is not None)
        there.value, there.changed = value, now
        if value is None:
            there.sent, there.version = -inf, 0
            self._tables.drop_pool_on_node(node, pool_uid, there)
        if node.claim_count:
            self.nodes[node.name] = node
            node.claimed_since = min(node.claimed_since, now)
        else:
            self.nodes.pop(node.name, None)
            node.claimed_since = inf
            _not_own(node)
            node.review_atelets(now)
        self._tables.tell_pool(pool_uid)


def answerable(there: PoolOnNode | None, after: float) -> bool:
    """The reply rule: whether this process wrote the claim, acknowledged, since that moment (`boottime`).

    `after` is half a linger ago, or the beginning of the call if that is earlier. Why such a claim is still there: the
    reconciler removes one only after it has seen it unchanged for a whole linger, and then read consistently that no
    pod of the pool is on the node and none is unbound, with the version that it decided on. Suppose it did so after our
    write. If it had not seen the write, its version is too old and the removal conflicts. If it had, that read came a
    linger after the write, and so after our answer; the pod that we answered was there then, unbound or on the node.
    The same holds however short the linger is for a write sent since the call began: the pod was there before it.
    """
    return there is not None and there.sent >= after


def boottime() -> float:
    """The reply rule's clock: seconds since the machine started, suspended ones included.

    `time.monotonic` stands still while a Linux machine is suspended, so that a write of an hour ago would look young
    to a virtual machine that was paused. On systems without such a clock, monotonic time.
    """
    return time.clock_gettime(_CLOCK)


def claim_value() -> str:
    """The value of a claim that is written now."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def claim_metadata(node_uid: str, pools: Iterable[str], value: str) -> dict[str, Any]:
    """The metadata of a merge patch that claims a Node for these pools, the same from every role. The API server
    refuses it for another Node of that name."""
    return {
        "uid": node_uid,
        "labels": {names.NODE_LABEL: "true"},
        "annotations": {names.claim_key(pool): value for pool in pools},
    }


def headroom_cooled(pool: Pool, now: float) -> None:
    """Its placeholders hold nothing from now on."""
    for there in pool.nodes.values():
        if there.placeholders and not there.ateoms:
            there.unused = now


def _not_own(node: Node) -> None:
    node.own = False
    node.wrote.clear()
