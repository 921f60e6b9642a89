"""Claims: every one has a reason, every ateom has one, and the label says the same.

On a busy cluster a pod can come or go between two reads. So what looks wrong is looked at again, pods before nodes: a
pod that is bound was claimed for before, so its claim must be on a node that is read later. Only what is wrong both
times is told.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from ateplace import names
from ateplace.cli.doctor.look import Look
from ateplace.cli.doctor.ours import RECONCILER_LEASE, held
from ateplace.cli.findings import Finding, fail, ok, some, warn
from ateplace.cluster.records import NodeRecord, PodRecord, PoolRecord, node_record, pod_record, pool_record

LOOK_AGAIN: Final = 2.0
"""Seconds until the second look: by then the reconciler has claimed what was bound past us."""

Claim = tuple[str, str]
"""Node and pool UID."""


class Claims(Struct, frozen=True):
    """What one look found."""

    total: int
    nodes: int
    """With a claim."""
    orphans: frozenset[Claim] = frozenset()
    """Of pools that do not exist, with no live pod of them on the node."""
    idle: frozenset[Claim] = frozenset()
    """Of living pools, with no live pod of them on the node, and written long ago."""
    unclaimed: frozenset[str] = frozenset()
    """Nodes with ateoms whose pool has no claim there."""
    mislabelled: frozenset[str] = frozenset()
    """Nodes whose label and claims disagree."""

    @property
    def suspicious(self) -> bool:
        return bool(self.orphans or self.idle or self.unclaimed or self.mislabelled)

    def still(self, later: "Claims") -> "Claims":
        """What both looks found."""
        return Claims(
            later.total,
            later.nodes,
            self.orphans & later.orphans,
            self.idle & later.idle,
            self.unclaimed & later.unclaimed,
            self.mislabelled & later.mislabelled,
        )


async def check(look: Look) -> list[Finding]:
    reconciler = look.settings.reconciler
    age = reconciler.linger + reconciler.unbound_wait
    found = await _read(look, age)
    if found.suspicious:
        await asyncio.sleep(LOOK_AGAIN)
        found = found.still(await _read(look.afresh(), age))
    led = not found.idle or await held(look, RECONCILER_LEASE) is not None
    return judge(found, age=age, led=led, logs=f"kubectl logs -n {look.namespace} deployment/ateplace-reconciler")


async def _read(look: Look, age: float) -> Claims:
    label = look.settings.substrate.pool_label
    pods = [*await look.ateoms(), *await look.placeholders()]
    pools = await look.pools()
    nodes = await look.nodes()
    return compare(
        [node_record(node) for node in nodes],
        [record for pod in pods if (record := pod_record(pod, label))],
        [pool_record(pool) for pool in pools],
        age=age,
        now=datetime.now(UTC),
    )


def compare(
    nodes: Sequence[NodeRecord], pods: Iterable[PodRecord], pools: Sequence[PoolRecord], *, age: float, now: datetime
) -> Claims:
    """Hold claims against pods and pools."""
    by_name = {(pool.namespace, pool.name): pool.uid for pool in pools}
    alive = {pool.uid for pool in pools}
    used, unclaimed = set(), set()
    claims = {(node.name, uid): value for node in nodes for uid, value in node.claims.items()}
    known = {node.name for node in nodes}
    for pod in pods:
        uid = pod.pool_uid or by_name.get((pod.namespace, pod.pool), "")
        if pod.finished or pod.node not in known:
            continue
        used.add((pod.node, uid))
        if not pod.placeholder and (pod.node, uid) not in claims and (uid in alive or pod.pool_uid):
            unclaimed.add(pod.node)
    unused = [key for key in claims if key not in used]
    return Claims(
        total=len(claims),
        nodes=sum(bool(node.claims) for node in nodes),
        orphans=frozenset(key for key in unused if key[1] not in alive),
        idle=frozenset(key for key in unused if key[1] in alive and _older(claims[key], age, now)),
        unclaimed=frozenset(unclaimed),
        mislabelled=frozenset(node.name for node in nodes if node.labelled != bool(node.claims)),
    )


def judge(claims: Claims, *, age: float, led: bool, logs: str) -> list[Finding]:
    """`led`: whether a reconciler leads. A claim says when it was written and not when its last pod left, so that
    an idle one, however old, may be lingering as it should while a leader is there to release it."""
    found = []
    if claims.orphans:
        says = f"orphan claims of pools that are gone, on {some({node for node, _ in claims.orphans})}"
        node, uid = min(claims.orphans)
        fix = f"the reconciler removes them: {logs}; by hand: kubectl annotate node {node} {names.claim_key(uid)}-"
        found.append(fail(says, fix))
    if claims.idle and not led:
        where = some({node for node, _ in claims.idle})
        says = f"claims without a pod, written more than {age:.0f} s ago, and no reconciler to release them, on {where}"
        found.append(warn(says, f"see the check `leader`; {logs}"))
    if claims.unclaimed:
        says = f"ateoms without a claim on {some(claims.unclaimed)}: atelet may leave them"
        found.append(fail(says, f"the reconciler adds claims within a second: {logs}"))
    if claims.mislabelled:
        says = f"the label {names.NODE_LABEL} and the claims disagree on {some(claims.mislabelled)}"
        found.append(fail(says, f"the reconciler repairs it: {logs}"))
    return found or [ok(f"{claims.total} claims on {claims.nodes} nodes, each with a reason")]


def _older(value: str, age: float, now: datetime) -> bool:
    """Whether a claim's value is a time so long ago; one that says nothing is not."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return False
    return moment.tzinfo is not None and (now - moment).total_seconds() > age
