"""Claims: every one has a reason, every ateom has one, and the label says the same."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from ateplace import names
from ateplace.commands.checks.look import Look
from ateplace.commands.findings import Finding, fail, ok, some, warn
from ateplace.model import Pod
from ateplace.records import NodeRecord, PodRecord, PoolRecord, node_record, pod_record, pool_record

FORGOTTEN = 3.0
"""An unused claim older than so many lingers (and a minute) should have been released."""


async def check(look: Look) -> list[Finding]:
    label = look.settings.substrate.pool_label
    pods: list[Pod] = [*await look.ateoms(), *await look.placeholders()]
    return judge(
        [node_record(node) for node in await look.nodes()],
        [record for pod in pods if (record := pod_record(pod, label))],
        [pool_record(pool) for pool in await look.pools()],
        age=FORGOTTEN * look.settings.reconciler.linger + 60,
        now=datetime.now(UTC),
        logs=f"kubectl logs -n {look.namespace} deployment/ateplace-reconciler",
    )


def judge(
    nodes: Sequence[NodeRecord],
    pods: Iterable[PodRecord],
    pools: Sequence[PoolRecord],
    *,
    age: float,
    now: datetime,
    logs: str,
) -> list[Finding]:
    """An orphan: a claim of a pool that does not exist, with no live pod of it on the node."""
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
    idle = [key for key in claims if key not in used]
    orphans = [key for key in idle if key[1] not in alive]
    forgotten = [key for key in idle if key[1] in alive and _older(claims[key], age, now)]
    found = []
    if orphans:
        says = f"orphan claims of pools that are gone, on {some({node for node, _ in orphans})}"
        node, uid = min(orphans)
        fix = f"the reconciler removes them: {logs}; by hand: kubectl annotate node {node} {names.claim_key(uid)}-"
        found.append(fail(says, fix))
    if forgotten:
        says = f"claims without a pod for more than {age:.0f} s, on {some({node for node, _ in forgotten})}"
        found.append(warn(says, f"the reconciler should have released them: {logs}"))
    if unclaimed:
        says = f"ateoms without a claim on {some(unclaimed)}: atelet may leave them"
        found.append(fail(says, f"the reconciler adds claims within a second: {logs}"))
    wrong = [node.name for node in nodes if node.labelled != bool(node.claims)]
    if wrong:
        says = f"the label {names.NODE_LABEL} and the claims disagree on {some(wrong)}"
        found.append(fail(says, f"the reconciler repairs it: {logs}"))
    count = sum(bool(node.claims) for node in nodes)
    return found or [ok(f"{len(claims)} claims on {count} nodes, each with a reason")]


def _older(value: str, age: float, now: datetime) -> bool:
    """Whether a claim's value is a time so long ago; one that says nothing is not."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return False
    return moment.tzinfo is not None and (now - moment).total_seconds() > age
