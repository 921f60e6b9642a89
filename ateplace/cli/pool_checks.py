"""One pool's situation, judged (pure): what it wants, what it holds, and what it waits for."""

from collections import Counter
from collections.abc import Iterable, Iterator

from ateplace import names
from ateplace.cli.findings import Finding, count, fail, ok, some, verb, warn
from ateplace.cli.pod_checks import judge_unbound
from ateplace.cli.snapshot import NOWHERE, Picture, PoolRow
from ateplace.cli.tables import shown_rules, shown_zones
from ateplace.cluster.pool_rules import Quota
from ateplace.cluster.records import pool_record
from ateplace.kube.objects import Pod, WorkerPool
from ateplace.reconciler.headroom.size import quota
from ateplace.settings import Settings

REASONS = 3
"""Different reasons for waiting that are told."""


def findings(pool: WorkerPool, picture: Picture, pods: Iterable[Pod], settings: Settings) -> list[Finding]:
    """`picture`: all nodes and pools, and the pods of this one; `pods`: the same pods."""
    name = f"{pool.metadata.namespace}/{pool.metadata.name}"
    row = picture.rows[name]
    return [
        *_wanted(row, pool, settings),
        *([ok(f"its ateoms by zone: {zones}")] if row.ateoms and (zones := shown_zones(picture, name)) else ()),
        *_rules(row, picture),
        *_waiting(pods, settings),
        *_claims(row, picture, settings),
        *_headroom(row, pool, settings),
    ]


def _wanted(row: PoolRow, pool: WorkerPool, settings: Settings) -> Iterator[Finding]:
    there = row.ateoms + row.waiting
    if row.deleting:
        pods = there + row.placeholders + row.unplaced
        left = f"{count(pods, 'pod')} and claims on {count(row.nodes, 'node')} are left"
        draining = f", {row.draining} of the pods {verb(row.draining, 'are')} draining" if row.draining else ""
        after = " after the last of them is gone" if row.draining else ""
        yield warn(
            f"it is being deleted: {left}{draining}",
            f"nothing to do; if this lasts for more than a minute{after}: ateplace doctor",
        )
    elif there < row.replicas:
        namespace = pool.metadata.namespace
        yield warn(
            f"it wants {count(row.replicas, 'ateom')}, and {there} {verb(there, 'exist')}: the rest was not created",
            f"if this lasts: kubectl get events -n {namespace} (a quota?); kubectl get deployments -n {namespace}",
        )
    elif there > row.replicas:
        yield warn(
            f"it wants {count(row.replicas, 'ateom')}, and {there} exist: the others are on their way out", "wait"
        )
    else:
        yield ok(f"it wants {count(row.replicas, 'ateom')}, and as many exist")
    if row.overdue:
        yield fail(
            f"{count(row.overdue, 'ateom')} {verb(row.overdue, 'are')} Terminating, and over the grace period",
            f"kubectl get pods -n {pool.metadata.namespace}: is their node there, do they have finalizers?",
        )
    if row.ateoms:
        placed = f"{count(row.ateoms, 'ateom')} {verb(row.ateoms, 'are')} on nodes, {row.ready} of them Ready"
        if row.ready == row.ateoms:
            yield ok(placed)
        else:
            yield warn(placed, f"wait; if this lasts: kubectl get pods -n {pool.metadata.namespace}, then explain one")


def _rules(row: PoolRow, picture: Picture) -> Iterator[Finding]:
    """What it asks for by annotations, and whether its ateoms are so. Nothing is moved for a rule."""
    rules = picture.rules[row.name]
    if rules.wrong:
        yield fail(f"none of its ateoms is placed: {rules.wrong}", "fix or remove the annotation")
        return
    there = {node.name: here.ateoms for node in picture.nodes.values() if (here := node.pools.get(row.name))}
    used = [name for name, ateoms in there.items() if ateoms]
    most = max(there.values(), default=0)
    values = Counter(picture.nodes[name].labels.get(rules.same) or "no value" for name in used)
    broken = {
        "min-nodes": len(used) < min(rules.min_nodes, row.ateoms),
        "max-per-node": most > rules.max_per_node > 0,
        "same": bool(rules.same) and len(values) > 1,
    }
    numbers = {
        "min-nodes": f"its ateoms are on {count(len(used), 'node')}",
        "max-per-node": f"at most {most} are on one node",
        "same": f"its nodes have {', '.join(sorted(values)) or 'none yet'}",
    }
    for rule in shown_rules(rules):
        name = rule.partition("=")[0]
        says = f"rule {rule}: {numbers[name]}"
        fix = "nothing is moved for a rule: delete some of its pods, and the next ones follow it"
        yield warn(says, fix) if broken[name] else ok(says)


def quota_findings(namespace: str, quota: Quota, held: int, placeholders: int) -> Iterator[Finding]:
    """What the pools of a namespace may have together. `held`: nodes with a claim or a pod of theirs."""
    if quota.wrong:
        yield fail(
            f"the pools of namespace {namespace} get nothing more: {quota.wrong}", "fix the Namespace's annotation"
        )
    if quota.max_nodes is not None:
        says = f"rule max-nodes={quota.max_nodes}: the pools of namespace {namespace} hold {count(held, 'node')}"
        reached = held >= quota.max_nodes
        yield warn(says, "an administrator may raise it on the Namespace") if reached else ok(says)
    if quota.max_headroom is not None:
        there = count(placeholders, "placeholder")
        yield ok(f"rule max-headroom={quota.max_headroom}: the pools of namespace {namespace} have {there}")


def _waiting(pods: Iterable[Pod], settings: Settings) -> Iterator[Finding]:
    """What the waiting ateoms wait for, the most frequent reason first."""
    unbound = [
        pod
        for pod in pods
        if not pod.spec.node_name
        and not pod.metadata.label(names.PLACEHOLDER_LABEL)
        and pod.metadata.deletion_timestamp is None
    ]
    reasons = Counter(judge_unbound(pod, settings) for pod in unbound)
    for one, number in reasons.most_common(REASONS):
        yield Finding(one.level, f"{count(number, 'ateom')} {verb(number, 'wait')} for a node: {one.says}", one.fix)
    if len(reasons) > REASONS:
        yield warn(f"and {len(reasons) - REASONS} more reasons", "ateplace explain pod says them one by one")


def _claims(row: PoolRow, picture: Picture, settings: Settings) -> Iterator[Finding]:
    claimed, unused, missing, cold = [], [], [], []
    for name, node in picture.nodes.items():
        tenant = node.pools.get(row.name)
        if tenant is None:
            continue
        if tenant.claimed is not None:
            claimed.append(name)
            if not (tenant.ateoms or tenant.placeholders):
                unused.append(name)
            if node.atelet != "ready":
                cold.append(f"{name} ({'none' if node.atelet == NOWHERE else node.atelet})")
        elif tenant.ateoms:
            missing.append(name)
    if claimed:
        yield ok(f"it holds claims on {_nodes(claimed)}")
    elif not row.deleting:
        yield ok("it holds no claim on any node")
    if unused:
        linger = f"{settings.reconciler.linger:g} s"
        yield ok(
            f"unused are those on {_nodes(unused)}: released when they have been for {linger}, unless pods of it wait"
        )
    if missing:
        yield fail(
            f"it has ateoms without a claim on {_nodes(missing)}",
            "the reconciler adds it within seconds; if not: ateplace doctor",
        )
    if cold:
        yield warn(f"atelet is not Ready on {_nodes(cold)}", "wait; if this lasts: ateplace doctor")


def _headroom(row: PoolRow, pool: WorkerPool, settings: Settings) -> Iterator[Finding]:
    there = row.placeholders + row.unplaced
    wanted = quota(pool_record(pool).headroom, there, row.replicas, settings.headroom)
    if wanted.message:
        yield warn(wanted.message, f"kubectl annotate workerpool -n {pool.metadata.namespace} {pool.metadata.name} ...")
    if not (wanted.count or there) or row.deleting:
        return
    placed = f"{count(row.placeholders, 'placeholder')} {verb(row.placeholders, 'are')} on nodes"
    says = f"its headroom is {wanted.count}: {placed}"
    if row.unplaced:
        yield warn(
            f"{says}, {row.unplaced} {verb(row.unplaced, 'wait')} for room",
            "nothing, if the cluster is full; an autoscaler adds nodes for them",
        )
    elif there < wanted.count:
        yield warn(says, "wait; if this lasts: ateplace doctor")
    else:
        yield ok(says)


def _nodes(found: list[str]) -> str:
    return f"1 node, {found[0]}" if len(found) == 1 else f"{len(found)} nodes: {some(found)}"
