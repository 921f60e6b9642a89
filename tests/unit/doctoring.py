"""Short words for the judgements of doctor, and an installation that is as it should be."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml

from ateplace.cli.doctor import atelet as atelet_checks
from ateplace.cli.doctor import claims, configured
from ateplace.cli.doctor.look import Look
from ateplace.cli.doctor.priorities import PriorityClass
from ateplace.cli.findings import Finding
from ateplace.cluster.records import node_record, pod_record, pool_record
from ateplace.kube.objects import DaemonSet, Deployment, Node, Pod
from ateplace.settings import Loaded, Settings, load
from tests.unit.objects import daemonset, node, pod, pool

DEPLOY = Path(__file__).parents[2] / "deploy"


NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)


def said(findings: list[Finding]) -> list[tuple[str, str]]:
    """(level, the beginning of the sentence); every fix that must be there is."""
    assert all(bool(one.fix) == (one.level != "ok") for one in findings)
    return [(one.level, one.says) for one in findings]


def begins(findings: list[Finding], *expected: tuple[str, str]) -> None:
    told = said(findings)
    assert len(told) == len(expected), told
    for (level, sentence), (wanted, beginning) in zip(told, expected, strict=True):
        assert level == wanted
        assert sentence.startswith(beginning)


LOOK = Look(None, Loaded(settings=Settings(), origins={}))  # type: ignore[arg-type]
"""For sentences only: these judgements read nothing."""


CLASSES = {
    "good": (PriorityClass(1000), PriorityClass(-10, "Never"), [("ok", "ateplace-ateom is 1000")]),
    "none": (
        None,
        None,
        [("fail", "there is no PriorityClass ateplace-ateom"), ("fail", "there is no PriorityClass ateplace-pl")],
    ),
    "below the cutoff": (PriorityClass(1000), PriorityClass(-11, "Never"), [("fail", "ateplace-placeholder is -11")]),
    "not below pods": (PriorityClass(1000), PriorityClass(0, "Never"), [("fail", "ateplace-placeholder is 0")]),
    "takes": (PriorityClass(1000), PriorityClass(-10), [("warn", "ateplace-placeholder may preempt")]),
    "too low": (PriorityClass(-10), PriorityClass(-10, "Never"), [("fail", "ateplace-ateom is -10")]),
    "default": (
        PriorityClass(1000, global_default=True),
        PriorityClass(-10, "Never"),
        [("fail", "ateplace-ateom is the cluster's default")],
    ),
}


CONFIGURATIONS: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "sampling": (
        {"percentageOfNodesToScore": 50},
        [("fail", "the scheduler samples nodes (percentageOfNodesToScore 50")],
    ),
    "another name": ({"profiles": [{"schedulerName": "x"}]}, [("fail", "no profile of the scheduler is named")]),
    "asks nobody": ({"extenders": []}, [("fail", "the scheduler asks no extender")]),
    "ignorable": ({"ignorable": True}, [("fail", "the extender is ignorable")]),
    "whole nodes": ({"nodeCacheCapable": False}, [("fail", "nodeCacheCapable is off")]),
    "plain": ({"enableHTTPS": False}, [("fail", "the scheduler does not verify the extender")]),
    "unverified": ({"tlsConfig": {}}, [("fail", "the scheduler does not verify the extender")]),
    "impatient": ({"httpTimeout": "5s"}, [("warn", "httpTimeout is 5 s")]),
}


GATES = {
    "idle": (daemonset(), 0, 0, [("ok", "atelet is gated by ate.dev/atelet and wanted on 0 nodes, which is right")]),
    "busy": (daemonset(desired=2), 2, 5, [("ok", "atelet is gated by ate.dev/atelet and wanted on 2 nodes")]),
    "everywhere": (
        daemonset(gated=False, desired=9),
        0,
        0,
        [("fail", "atelet is not gated by ate.dev/atelet: it runs on 9")],
    ),
    "kept away": (
        daemonset(desired=1),
        2,
        5,
        [("warn", "2 nodes carry ate.dev/atelet, but atelet is wanted on 1 only")],
    ),
    "gives way": (
        daemonset(priorityClassName=""),
        0,
        0,
        [("warn", "atelet has no priority class"), ("ok", "atelet is gated")],
    ),
}


PRIORITIES = {"system-node-critical": 2_000_001_000, "ate-node-critical": 1_000_000_000, "low": 5}


def judge_gates(*found: DaemonSet, labelled: int = 0, ateoms: int = 0) -> list[Finding]:
    return atelet_checks.judge_gates(found, labelled, ateoms, PRIORITIES, "ate-system")


MICROVM = {"key": "ate.dev/sandboxClass", "value": "microvm", "effect": "NoSchedule"}


def deployment(**spec: Any) -> Deployment:
    meta = {"name": "vm-deployment", "namespace": "demo", "labels": {"ate.dev/worker-pool": "vm"}}
    return msgspec.convert({"metadata": meta, "spec": {"template": {"spec": spec}}}, Deployment)


CLAIMS = {
    "in order": ([node("n1", "u1")], [pod("a", "n1")], [("ok", "1 claims on 1 nodes")]),
    "orphan": ([node("n1", "u9")], [], [("fail", "orphan claims of pools that are gone, on n1")]),
    "orphan of a living pod": ([node("n1", "u9")], [pod("a", "n1", uid="u9")], [("ok", "1 claims")]),
    "old and idle": (
        [node("n1", "u1")],
        [],
        [("warn", "claims without a pod, written more than 420 s ago, and no reconciler to release them, on n1")],
    ),
    "finished pods hold nothing": (
        [node("n1", "u1")],
        [pod("a", "n1", phase="Succeeded")],
        [("warn", "claims without a pod")],
    ),
    "unclaimed": ([node("n1")], [pod("a", "n1")], [("fail", "ateoms without a claim on n1")]),
    "made before us": ([node("n1")], [pod("a", "n1", uid="")], [("fail", "ateoms without a claim on n1")]),
    "cold placeholder": ([node("n1")], [pod("a", "n1", placeholder=True)], [("ok", "0 claims")]),
    "no label": (
        [node("n1", "u1", labelled=False)],
        [pod("a", "n1")],
        [("fail", "the label ate.dev/atelet and the claims disagree on n1")],
    ),
    "only a label": ([node("n1", labelled=True)], [], [("fail", "the label ate.dev/atelet and the claims disagree")]),
}


def compared(nodes: list[Node], pods: list[Pod]) -> claims.Claims:
    return claims.compare(
        [node_record(one) for one in nodes],
        [record for one in pods if (record := pod_record(one))],
        [pool_record(pool())],
        age=420,
        now=NOW,
    )


def images(**tags: str) -> dict[str, Deployment]:
    found = {}
    for role, image in tags.items():
        name = f"ateplace-{role}"
        template = {"spec": {"containers": [{"name": "c", "image": image}]}}
        found[name] = msgspec.convert({"metadata": {"name": name}, "spec": {"template": template}}, Deployment)
    return found


IMAGES = {
    "one": ({"webhook": "r/a:v0.1.0", "extender": "r/a:v0.1.0"}, [("ok", "ateplace 0.1.0 everywhere")]),
    "digest": ({"webhook": "r:5000/a:v0.1.0@sha256:00"}, [("ok", "ateplace 0.1.0")]),
    "digest alone": ({"webhook": "r:5000/a@sha256:00"}, [("ok", "the images are named by digest alone")]),
    "port alone": ({"scheduler": "r:5000/s"}, [("ok", "ateplace 0.1.0")]),
    "two": ({"webhook": "r/a:v0.1.0", "extender": "r/a:v0.2.0"}, [("warn", "the roles run different versions")]),
    "other": ({"webhook": "r/a:v0.2.0"}, [("warn", "this is ateplace 0.1.0, the cluster runs v0.2.0")]),
    "new scheduler": ({"scheduler": "r/s:v1.37.0@sha256:00"}, [("fail", "the scheduler (1.37) is newer")]),
    "old scheduler": ({"scheduler": "r/s:v1.34.0"}, [("warn", "the scheduler (1.34) is more than one minor version")]),
}


def granted(account: str) -> set[tuple[str, str, str, bool, str]]:
    """(group, resource, verb, in our namespace only, name) that the shipped manifests grant to a ServiceAccount."""
    documents = [
        document
        for path in (DEPLOY / "base").glob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
        if document and document["kind"] in {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
    ]
    roles = {(one["kind"], one["metadata"]["name"]): one.get("rules", ()) for one in documents}
    found = set()
    for binding in documents:
        if not any(subject["name"] == account for subject in binding.get("subjects", ())):
            continue
        own = binding["kind"] == "RoleBinding"
        for rule in roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]:
            for group in rule["apiGroups"]:
                found |= {
                    (group, resource, verb, own, name)
                    for resource in rule["resources"]
                    for verb in rule["verbs"]
                    for name in rule.get("resourceNames", [""])
                }
    return found


def given(*flags: str) -> Loaded:
    return load({}, flags)


def installed(**roles: dict[str, str]) -> dict[str, configured.Environment]:
    return {f"ateplace-{role}": configured.Environment(variables) for role, variables in roles.items()}


LINGER = "ATEPLACE_RECONCILER_LINGER"


SETTINGS: dict[str, tuple[dict[str, configured.Environment], Loaded, list[tuple[str, str]]]] = {
    "none": ({}, given(), [("ok", "no role is installed")]),
    "all alike": (
        installed(webhook={LINGER: "60"}, reconciler={LINGER: "60.0"}),
        given("cluster.namespace=elsewhere", "log.level=debug"),
        [("ok", "every role has the same settings: 1 of its own")],
    ),
    "in the middle of a rollout": (
        installed(webhook={LINGER: "60"}, reconciler={}),
        given(),
        [("warn", "the roles do not have the same settings: reconciler.linger")],
    ),
    "an extender that answers for longer than claims stay": (
        installed(extender={LINGER: "121"}, reconciler={LINGER: "60"}),
        given(),
        [
            ("fail", "the extender answers by a claim for 60.5 s, and the reconciler releases it after 60 s"),
            ("warn", "the roles do not have the same settings: reconciler.linger"),
        ],
    ),
    "an extender that answers for as long as claims stay": (
        installed(extender={LINGER: "120"}, reconciler={LINGER: "60"}),
        given(),
        [("warn", "the roles do not have the same settings: reconciler.linger")],
    ),
    "told the same": (
        installed(reconciler={LINGER: "60"}),
        given("reconciler.linger=60"),
        [("ok", "every role has the same settings")],
    ),
    "told otherwise": (
        installed(reconciler={LINGER: "60"}),
        given("reconciler.linger=7"),
        [("warn", "doctor was given reconciler.linger = 7.0, but ateplace-reconciler has 60.0")],
    ),
    "unknown": (
        installed(webhook={"ATEPLACE_WEBHOOK_TO_COME": "1"}),
        given(),
        [("fail", "this version of ateplace does not start with the settings of ateplace-webhook: unknown setting")],
    ),
    "out of range": (
        installed(extender={"ATEPLACE_EXTENDER_PORT": "70000"}),
        given(),
        [("fail", "this version of ateplace does not start with the settings of ateplace-extender: setting")],
    ),
    "pruned": (
        {"ateplace-webhook": configured.Environment({}, ("ateplace-settings-1",))},
        given(),
        [("fail", "ateplace-webhook takes its settings from the ConfigMap ateplace-settings-1, which is not there")],
    ),
    "a file": (
        installed(webhook={"ATEPLACE_SETTINGS": "/etc/ateplace/settings.yaml"}),
        given(),
        [("warn", "ateplace-webhook reads settings from a file in its pods")],
    ),
}
