"""Where the atelet DaemonSet can run: what its controller and the scheduler will say, decided beforehand (pure).

An ateom on a node where atelet never comes waits for ever, so such nodes are refused to ateoms. The rules are the
DaemonSet controller's: nodeSelector (our own label aside, which a claim puts there), required node affinity, taints.

Source: pkg/controller/daemon/daemon_controller.go (NodeShouldRunDaemonPod) and util.AddOrUpdateDaemonPodTolerations,
v1.36; k8s.io/component-helpers/scheduling/corev1/nodeaffinity.
"""

import functools
from typing import Final

from ateplace.cluster.records import AteletTemplate, NodeRecord
from ateplace.kube.objects import NodeSelectorTerm, Requirement, Toleration

GIVEN: Final = frozenset(
    {
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    }
)
"""Taints that every DaemonSet's pods tolerate."""

SELECTOR: Final = "atelet's nodeSelector does not match"
AFFINITY: Final = "atelet's node affinity does not match"


def cannot_run(template: AteletTemplate, node: NodeRecord) -> str:
    """Why atelet can never run on the node; empty when it can."""
    labels = node.labels
    for key, value in template.selector:
        if labels.get(key) != value:
            return SELECTOR
    if template.terms is not None and not any(_term(term, node) for term in template.terms):
        return AFFINITY
    for key, value, effect in node.taints:
        if (key, effect) not in GIVEN and not any(_tolerates(t, key, value, effect) for t in template.tolerations):
            return _taint_reason(key)
    return ""


@functools.lru_cache(maxsize=256)
def _taint_reason(key: str) -> str:
    return f"atelet does not tolerate the taint {key}"


def _tolerates(toleration: Toleration, key: str, value: str, effect: str) -> bool:
    if toleration.effect and toleration.effect != effect:
        return False
    if toleration.key and toleration.key != key:
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.key == key and toleration.value == value
        case "Exists":
            return True
        case "Gt" | "Lt":
            return _compare(toleration.operator, value, toleration.value)
        case _:
            return False


def _term(term: NodeSelectorTerm, node: NodeRecord) -> bool:
    """All of its requirements; a term without any matches nothing."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.name}
    return all(_requirement(one, node.labels) for one in term.match_expressions or ()) and all(
        _requirement(one, fields) for one in term.match_fields or ()
    )


def _requirement(one: Requirement, labels: dict[str, str]) -> bool:
    value = labels.get(one.key)
    values = one.values or []
    match one.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return value is not None and len(values) == 1 and _compare(one.operator, value, values[0])
        case _:
            return False


def _compare(operator: str, left: str, right: str) -> bool:
    try:
        return int(left) > int(right) if operator == "Gt" else int(left) < int(right)
    except ValueError:
        return False
