"""atelet: gated by our label, with room, and able to go wherever pools send their ateoms."""

import json
from collections import Counter
from collections.abc import Collection, Sequence

from msgspec import structs

from ateplace import names
from ateplace.cli.doctor.look import Look
from ateplace.cli.findings import Finding, fail, ok, some, warn
from ateplace.cluster.atelets import AFFINITY, SELECTOR, cannot_run
from ateplace.cluster.records import (
    AteletRecord,
    AteletTemplate,
    NodeRecord,
    atelet_record,
    atelet_template,
    node_record,
)
from ateplace.cluster.state import CRASH_LOOP
from ateplace.kube.objects import DaemonSet, DaemonSetSpec, Deployment

CRITICAL = "system-node-critical"
QUOTA = "where critical pods need a quota (GKE), before that: kubectl apply -f deploy/components/atelet-gate/quota.yaml"


async def gate(look: Look) -> list[Finding]:
    daemonset = await look.daemonset()
    if daemonset is None:
        substrate = look.settings.substrate
        says = f"there is no DaemonSet {substrate.atelet_daemonset} in the namespace {substrate.atelet_namespace}"
        return [fail(says, "install Agent Substrate, or set substrate.atelet_namespace and substrate.atelet_daemonset")]
    nodes = [node_record(node) for node in await look.nodes()]
    return judge_gate(daemonset, sum(node.labelled for node in nodes), len(await look.ateoms()), look.atelet)


def judge_gate(daemonset: DaemonSet, labelled: int, ateoms: int, atelet: str) -> list[Finding]:
    """`labelled`: nodes with our label. Without ateoms 0 desired is what should be."""
    desired = daemonset.status.desired_number_scheduled if daemonset.status else 0
    if not atelet_template(daemonset).gated:
        says = f"atelet is not gated by {names.NODE_LABEL}: it runs on {desired} nodes, whether ateoms are there or not"
        return [fail(says, "ateplace migrate (a patch of the nodeSelector would restart every atelet)")]
    found = []
    if daemonset.spec.template.spec.priority_class_name != CRITICAL:
        critical = json.dumps({"spec": {"template": {"spec": {"priorityClassName": CRITICAL}}}})
        says = f"atelet is not {CRITICAL}: on a node that others have filled it stays Pending"
        found.append(warn(says, f"kubectl patch {atelet} -p '{critical}'; {QUOTA}"))
    if desired < labelled:
        says = f"{labelled} nodes carry {names.NODE_LABEL}, but atelet is wanted on {desired} only"
        found.append(warn(says, "see the checks `atelet taints` and `claims`; new labels take a second to be seen"))
        return found
    idle = ", which is right: there are no ateoms" if not desired and not ateoms else ""
    return [*found, ok(f"atelet is gated by {names.NODE_LABEL} and wanted on {desired} nodes{idle}")]


async def room(look: Look) -> list[Finding]:
    found = [record for pod in await look.atelets() if (record := atelet_record(pod)) and not record.terminating]
    wanted = {node.name for node in map(node_record, await look.nodes()) if node.labelled}
    return judge_room(found, wanted, look.settings.substrate.atelet_namespace)


def judge_room(atelets: Sequence[AteletRecord], wanted: Collection[str], namespace: str) -> list[Finding]:
    """`wanted`: nodes with our label. For others the DaemonSet controller (seen in 1.36) forgets Pending pods."""
    homeless = [one for one in atelets if not one.bound and one.trouble and one.node in wanted]
    forgotten = [one for one in atelets if not one.bound and one.node not in wanted]
    broken = [one for one in atelets if one.bound and not one.ready and one.trouble]
    found = []
    if homeless:
        says = f"atelet is Pending for want of room on {some(one.node for one in homeless)}: ateoms there wait"
        fix = (
            f"make room: kubectl describe pod -n {namespace} {homeless[0].name}; "
            f"with the component deploy/components/atelet-gate atelet is {CRITICAL} and makes room by itself"
        )
        found.append(fail(says, fix))
    if forgotten:
        says = f"Pending atelets are left over for {some(one.node for one in forgotten)}, where none is wanted any more"
        fix = f"harmless; kubectl delete pod -n {namespace} {' '.join(one.name for one in forgotten[:5])}"
        found.append(warn(says, fix))
    for reason in dict.fromkeys(one.trouble for one in broken):
        alike = [one for one in broken if one.trouble == reason]
        says = f"atelet does not run on {len(alike)} nodes: {reason} ({some(one.node for one in alike)})"
        name = f"-n {namespace} {alike[0].name}"
        found.append(
            fail(says, f"kubectl logs {name} --previous" if reason == CRASH_LOOP else f"kubectl describe pod {name}")
        )
    return found or [ok(f"{sum(one.ready for one in atelets)} of {len(atelets)} atelets are Ready, none lacks room")]


async def taints(look: Look) -> list[Finding]:
    daemonset = await look.daemonset()
    if daemonset is None:
        return [warn("there is no atelet DaemonSet to compare with", "see the check `atelet gate`")]
    nodes = [node_record(node) for node in await look.nodes()]
    found = []
    for deployment in await look.ateom_deployments():
        found += judge_taints(deployment, atelet_template(daemonset), nodes, look.atelet)
    return found or [ok("atelet can run on every node that a pool selects")]


def judge_taints(
    deployment: Deployment, atelet: AteletTemplate, nodes: Sequence[NodeRecord], target: str
) -> list[Finding]:
    """Nodes that a pool's ateoms may go to, and atelet may not: our filter refuses them."""
    meta = deployment.metadata
    pool = f"{meta.namespace}/{meta.label(names.POOL_LABEL) or meta.name}"
    # The ateoms' own template is judged by the same rules: selector, required affinity, tolerations.
    ateoms = atelet_template(DaemonSet(meta, DaemonSetSpec(deployment.spec.template)))
    selected = [node for node in nodes if not cannot_run(ateoms, node)]
    if not selected:
        return [
            warn(f"no node suits the pool {pool}", "add nodes with its nodeSelector, or change the pool's template")
        ]
    barred = {node.name: reason for node in selected if (reason := cannot_run(atelet, node))}
    if not barred:
        return []
    reasons = "; ".join(f"{reason} ({count} nodes)" for reason, count in Counter(barred.values()).items())
    says = f"pool {pool}: atelet cannot run on {len(barred)} of {len(selected)} nodes that it selects: {reasons}"
    level = fail if len(barred) == len(selected) else warn
    tainted = [node for node in selected if barred.get(node.name, SELECTOR) not in {SELECTOR, AFFINITY}]
    missing = sorted({taint[0] for node in tainted for taint in node.taints if _repels(atelet, node, taint)})
    fixes = [_tolerate(missing, atelet, target)] if missing else []
    if len(tainted) < len(barred):
        fixes.append(f"let atelet's nodeSelector and affinity match them (kubectl edit {target}), or the pool's not")
    return [level(says, "; ".join(fixes))]


def _repels(atelet: AteletTemplate, node: NodeRecord, taint: tuple[str, str, str]) -> bool:
    return bool(cannot_run(atelet, structs.replace(node, taints=(taint,))))


def _tolerate(missing: Sequence[str], atelet: AteletTemplate, target: str) -> str:
    """A command that lets atelet tolerate these taints, whatever their values."""
    patch = [{"op": "add", "path": "/spec/template/spec/tolerations/-", "value": {"key": key, "operator": "Exists"}}
             for key in missing]  # fmt: skip
    if not atelet.tolerations:
        patch.insert(0, {"op": "add", "path": "/spec/template/spec/tolerations", "value": []})
    return f"kubectl patch {target} --type=json -p '{json.dumps(patch)}'"
