"""Where atelet can run, and what it takes there: what controller and scheduler will say, decided beforehand (pure).

An ateom on a node where atelet never comes waits for ever, so such nodes are refused to ateoms. The rules are the
DaemonSet controller's: nodeSelector (our own label aside, which a claim puts there), required node affinity, taints.

Agent Substrate has one atelet DaemonSet for each version of itself, so two or more during an upgrade. They take the
same host port, so a node has one of them at a time. A node will do if any of them fits it; the room kept back is the
largest of those that fit; only the pod of one that fits makes a node warm.

Source: pkg/controller/daemon/daemon_controller.go (NodeShouldRunDaemonPod) and util.AddOrUpdateDaemonPodTolerations,
v1.36; k8s.io/component-helpers/scheduling/corev1/nodeaffinity.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from ateplace.cluster.records import AteletTemplate, NodeRecord
from ateplace.cluster.resources import Amounts
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


class AteletNeed(Struct, frozen=True, gc=False):
    """What atelet takes on one node."""

    barred: str = ""
    """Why it can never run there; empty when it can."""
    requests: Amounts = ()
    ports: frozenset[tuple[str, int]] = frozenset()
    daemonsets: frozenset[str] = frozenset()
    """UIDs of the DaemonSets that have a pod there, or would have one if the node were claimed."""


class Templates:
    """The atelet DaemonSets of a cluster, by UID."""

    def __init__(self, templates: Iterable[AteletTemplate] = ()) -> None:
        self._templates = {template.uid: template for template in templates}
        self._needs: dict[tuple[str, ...], AteletNeed] = {}
        """By the UIDs of the DaemonSets that fit: thousands of nodes share a few."""

    def __iter__(self) -> Iterator[AteletTemplate]:
        return iter(self._templates.values())

    def __len__(self) -> int:
        return len(self._templates)

    def __contains__(self, uid: str) -> bool:
        return uid in self._templates

    def put(self, template: AteletTemplate) -> bool:
        """Whether that is news: a DaemonSet's status changes with each of its pods."""
        if self._templates.get(template.uid) == template:
            return False
        self._templates[template.uid] = template
        self._needs.clear()
        return True

    def drop(self, uid: str) -> bool:
        """Whether it was there."""
        self._needs.clear()
        return self._templates.pop(uid, None) is not None

    def need(self, node: NodeRecord) -> AteletNeed:
        """What atelet takes on this node. Of the reasons why none fits, the one that a DaemonSet got furthest with."""
        fitting: list[AteletTemplate] = []
        reasons: list[str] = []
        for template in self._templates.values():
            reason = cannot_run(template, node)
            if reason:
                reasons.append(reason)
            else:
                fitting.append(template)
        if not fitting:
            return AteletNeed(barred=min(reasons, key=_progress)) if reasons else AteletNeed()
        key = tuple(template.uid for template in fitting)
        found = self._needs.get(key)
        if found is None:
            found = self._needs[key] = _largest(fitting)
        return found


def _largest(templates: list[AteletTemplate]) -> AteletNeed:
    most: dict[str, int] = {}
    for template in templates:
        for name, amount in template.requests:
            most[name] = max(amount, most.get(name, 0))
    return AteletNeed(
        requests=tuple(sorted(most.items())),
        ports=frozenset[tuple[str, int]]().union(*(template.ports for template in templates)),
        daemonsets=frozenset(template.uid for template in templates),
    )


def _progress(reason: str) -> int:
    """Taints are looked at last: a DaemonSet that only lacks a toleration is the one that is meant for the node."""
    return {SELECTOR: 2, AFFINITY: 1}.get(reason, 0)


def cannot_run(template: AteletTemplate, node: NodeRecord) -> str:
    """Why this DaemonSet can never run atelet on the node; empty when it can."""
    labels = node.labels
    for key, value in template.selector:
        if labels.get(key) != value:
            return SELECTOR
    if template.terms is not None and not any(matches(term, node) for term in template.terms):
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


def matches(term: NodeSelectorTerm, node: NodeRecord) -> bool:
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
