"""atelet: gated by our label, with room, and able to go wherever pools send their ateoms."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import structs

from ateplace import names
from ateplace.cli.doctor.look import Look
from ateplace.cli.doctor.priorities import PriorityClass
from ateplace.cli.findings import Finding, fail, ok, some, warn
from ateplace.cli.migrate import no_atelet
from ateplace.cluster.atelets import AFFINITY, SELECTOR, Templates, cannot_run
from ateplace.cluster.records import (
    AteletRecord,
    AteletTemplate,
    NodeRecord,
    atelet_record,
    atelet_template,
    node_record,
)
from ateplace.cluster.state import CRASH_LOOP
from ateplace.kube import paths
from ateplace.kube.objects import DaemonSet, DaemonSetSpec, Deployment

HIGH: Final = 1_000_000_000
"""A class of this value or more lets atelet in wherever others have filled a node: Agent Substrate's own is this."""
CRITICAL: Final = "system-node-critical"
QUOTA: Final = (
    "where critical pods need a quota (GKE), before that: "
    "kubectl apply -f deploy/components/atelet-priority/quota.yaml"
)  # fmt: skip


async def gate(look: Look) -> list[Finding]:
    substrate = look.settings.substrate
    daemonsets = await look.daemonsets()
    if not daemonsets:
        fix = "install Agent Substrate, or set substrate.atelet_namespace and substrate.atelet_selector"
        return [fail(no_atelet(substrate), fix)]
    nodes = [node_record(node) for node in await look.nodes()]
    classes = await look.every(paths.PRIORITY_CLASSES.everywhere, PriorityClass)
    priorities = {one.metadata.name: one.value for one in classes}
    labelled, ateoms = sum(node.labelled for node in nodes), len(await look.ateoms())
    return judge_gates(daemonsets, labelled, ateoms, priorities, substrate.atelet_namespace)


def judge_gates(
    daemonsets: Sequence[DaemonSet], labelled: int, ateoms: int, priorities: Mapping[str, int], namespace: str
) -> list[Finding]:
    """`labelled`: nodes with our label; `priorities`: value by class. Without ateoms 0 desired is what should be."""
    open_ = [one for one in daemonsets if not atelet_template(one).gated]
    found = [_ungated(one, others=len(open_) < len(daemonsets)) for one in open_]
    found += filter(None, (_priority(one, priorities, namespace) for one in daemonsets))
    if open_:
        return found
    named = " and ".join(one.metadata.name for one in daemonsets) + (" is" if len(daemonsets) == 1 else " are")
    desired = sum(map(_desired, daemonsets))
    if desired < labelled:
        says = f"{labelled} nodes carry {names.NODE_LABEL}, but {named} wanted on {desired} only"
        return [*found, warn(says, "see the checks `atelet taints` and `claims`; new labels take a second to be seen")]
    idle = ", which is right: there are no ateoms" if not desired and not ateoms else ""
    return [*found, ok(f"{named} gated by {names.NODE_LABEL} and wanted on {desired} nodes{idle}")]


def _desired(daemonset: DaemonSet) -> int:
    return daemonset.status.desired_number_scheduled if daemonset.status else 0


def _ungated(daemonset: DaemonSet, *, others: bool) -> Finding:
    """`others`: whether there are gated ones. Then a new one without pods is the reconciler's to gate."""
    name, desired = daemonset.metadata.name, _desired(daemonset)
    if others and not desired:
        says = f"{name} is not gated by {names.NODE_LABEL}, as others are; it has no pods yet"
        return fail(says, "the reconciler's leader gates it within seconds, if one runs; else: ateplace migrate")
    says = f"{name} is not gated by {names.NODE_LABEL}: it runs on {desired} nodes, whether ateoms are there or not"
    return fail(says, "ateplace migrate (a patch of the nodeSelector would restart every atelet)")


def _priority(daemonset: DaemonSet, priorities: Mapping[str, int], namespace: str) -> Finding | None:
    """Any high class will do; one that is set is never to be overwritten, which would restart every atelet."""
    name, given = daemonset.metadata.name, daemonset.spec.template.spec.priority_class_name
    if priorities.get(given, 0) >= HIGH:
        return None
    if given:
        value = f"is {priorities[given]}" if given in priorities else "does not exist"
        says = f"{name}'s priority class {given} {value}: on a node that others have filled it stays Pending"
        return warn(says, f"where Agent Substrate is installed, give it a class of {HIGH} or more")
    critical = json.dumps({"spec": {"template": {"spec": {"priorityClassName": CRITICAL}}}})
    says = f"{name} has no priority class: on a node that others have filled it stays Pending"
    patch = f"kubectl patch daemonset/{name} -n {namespace} -p '{critical}' (restarts each atelet in turn)"
    return warn(says, f"{patch}; {QUOTA}")


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
        says = f"atelet is Pending for lack of room on {some(one.node for one in homeless)}: ateoms there wait"
        fix = (
            f"make room: kubectl describe pod -n {namespace} {homeless[0].name}; "
            f"with a priority class of {HIGH} or more atelet makes room by itself"
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
    daemonsets = await look.daemonsets()
    if not daemonsets:
        return [warn("there is no atelet DaemonSet to compare with", "see the check `atelet gate`")]
    nodes = [node_record(node) for node in await look.nodes()]
    templates, namespace = Templates(map(atelet_template, daemonsets)), look.settings.substrate.atelet_namespace
    found = []
    for deployment in await look.ateom_deployments():
        found += judge_taints(deployment, templates, nodes, namespace)
    return found or [ok("atelet can run on every node that a pool selects")]


def judge_taints(
    deployment: Deployment, atelets: Templates, nodes: Sequence[NodeRecord], namespace: str
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
    barred = {node.name: reason for node in selected if (reason := atelets.need(node).barred)}
    if not barred:
        return []
    reasons = "; ".join(f"{reason} ({count} nodes)" for reason, count in Counter(barred.values()).items())
    says = f"pool {pool}: atelet cannot run on {len(barred)} of {len(selected)} nodes that it selects: {reasons}"
    level = fail if len(barred) == len(selected) else warn
    lacking = [node for node in selected if node.name in barred]
    fixes = [fix for atelet in atelets if (fix := _tolerate(atelet, lacking, namespace))]
    if {SELECTOR, AFFINITY} & set(barred.values()):
        fixes.append(
            f"let atelet's nodeSelector and affinity match them (see namespace {namespace}), or the pool's not"
        )
    return [level(says, "; ".join(fixes))]


def _tolerate(atelet: AteletTemplate, nodes: Sequence[NodeRecord], namespace: str) -> str:
    """A command that lets this DaemonSet tolerate the taints that alone keep it off some nodes, whatever their values;
    empty when there are none."""
    tainted = [node for node in nodes if cannot_run(atelet, node) not in {SELECTOR, AFFINITY, ""}]
    missing = sorted({taint[0] for node in tainted for taint in node.taints if _repels(atelet, node, taint)})
    if not missing:
        return ""
    patch = [{"op": "add", "path": "/spec/template/spec/tolerations/-", "value": {"key": key, "operator": "Exists"}}
             for key in missing]  # fmt: skip
    if not atelet.tolerations:
        patch.insert(0, {"op": "add", "path": "/spec/template/spec/tolerations", "value": []})
    return f"kubectl patch daemonset/{atelet.name} -n {namespace} --type=json -p '{json.dumps(patch)}'"


def _repels(atelet: AteletTemplate, node: NodeRecord, taint: tuple[str, str, str]) -> bool:
    return bool(cannot_run(atelet, structs.replace(node, taints=(taint,))))
