"""One node's situation, judged (pure): why it is open, for which pools, and until when."""

from collections.abc import Iterator

from ateplace import names
from ateplace.cli.findings import Finding, count, fail, ok, verb, warn
from ateplace.cli.pod_checks import judge_atelet
from ateplace.cli.snapshot import NOWHERE, NodeRow, Picture, PoolOnNode
from ateplace.cluster.records import AteletRecord
from ateplace.kube.objects import Node
from ateplace.settings import Settings


def findings(node: Node, picture: Picture, atelets: list[AteletRecord], settings: Settings) -> list[Finding]:
    """`picture`: this node, all pools, their pods here and their pods without a node; `atelets`: those of this node."""
    row = picture.nodes[node.metadata.name]
    found = []
    if node.metadata.deletion_timestamp is not None:
        found.append(warn("it is being deleted", "nothing to do"))
    elif node.spec and node.spec.unschedulable:
        found.append(
            warn(
                "it is cordoned: nothing new is placed on it", f"kubectl uncordon {row.name}, when it may be used again"
            )
        )
    for pool, tenant in sorted(row.pools.items()):
        found += _pool(pool, tenant, picture, settings)
    if row.claims:
        if not row.labelled:
            found.append(
                fail(f"{row.name} has no label {names.NODE_LABEL}=true, so atelet does not come", "ateplace doctor")
            )
        found.append(judge_atelet(atelets, row.name, settings))
    else:
        found += _unclaimed(row)
    return found


def _unclaimed(row: NodeRow) -> Iterator[Finding]:
    if row.labelled:
        yield fail(
            f"it has the label {names.NODE_LABEL}=true although no pool claims it",
            "the reconciler removes it within seconds; if not: ateplace doctor",
        )
    if row.atelet != NOWHERE:
        yield warn(
            f"atelet is {row.atelet} although no pool claims the node",
            "it goes with the label; if it stays: ateplace doctor --check 'atelet gate'",
        )
    elif not row.pools and not row.labelled:
        yield ok("cold: no pool claims it, so atelet does not run here")


def _pool(pool: str, tenant: PoolOnNode, picture: Picture, settings: Settings) -> Iterator[Finding]:
    if tenant.in_flight:
        coming = f"{count(tenant.in_flight, 'pod')} of {pool} {verb(tenant.in_flight, 'are')} on the way here"
        yield ok(f"{coming}: picked, not bound yet")
    here, pods = holders(tenant), tenant.ateoms + tenant.placeholders
    row = picture.rows.get(pool)
    if tenant.claimed is None:
        if tenant.ateoms:
            yield fail(
                f"{here} of {pool} {verb(pods, 'are')} here without a claim of the pool",
                "the reconciler adds it within seconds; if not: ateplace doctor",
            )
        elif tenant.placeholders:
            yield ok(f"{here} of {pool}, whose placeholders are not warm, so there need not be a claim")
        return
    touched = f" (last touched {tenant.claimed})" if tenant.claimed else ""
    linger = f"{settings.reconciler.linger:g} s"
    if row is None:
        left = f"{here} of it must go first" if here else "the reconciler releases the claim within seconds"
        yield warn(f"claimed for a WorkerPool that does not exist any more, {pool}{touched}: {left}", "nothing to do")
    elif here:
        until = "until the last of them is gone" + ("" if row.deleting else f" and {linger} have passed")
        yield ok(f"open for {pool}{touched}: {here} {verb(pods, 'hold')} the claim, {until}")
    elif row.waiting + row.unplaced:
        unplaced = row.waiting + row.unplaced
        yield ok(
            f"claimed for {pool}{touched}, of which {count(unplaced, 'pod')} still {verb(unplaced, 'wait')} for a node"
        )
    else:
        yield ok(
            f"claimed for {pool}{touched}, of which no pod is here: released {linger} after its last pod or its last "
            "touch, whichever was later"
        )


def holders(tenant: PoolOnNode) -> str:
    """The pods of a pool on a node, in words; empty when there is none."""
    parts = []
    if tenant.ateoms:
        unready = "" if tenant.ready == tenant.ateoms else f" ({tenant.ready} ready)"
        parts.append(count(tenant.ateoms, "ateom") + unready)
    if tenant.placeholders:
        parts.append(count(tenant.placeholders, "placeholder"))
    return " and ".join(parts)
