"""The judgements of doctor's checks, as tables; the same faults are seeded on a real cluster in tests/control_plane."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from ateplace.cli.doctor import atelet as atelet_checks
from ateplace.cli.doctor import claims, configured, priorities, rbac, scheduler, versions, webhook
from ateplace.cli.doctor.command import checks
from ateplace.cli.doctor.look import Look
from ateplace.cli.doctor.priorities import PriorityClass
from ateplace.cli.findings import APPLY, Finding, some
from ateplace.cluster.atelets import Templates
from ateplace.cluster.records import atelet_record, atelet_template, node_record, pod_record, pool_record
from ateplace.kube.objects import DaemonSet, Deployment, Node, Pod
from ateplace.settings import Loaded, Settings, load
from certs import authority
from certs.pem import load_certificates
from tests.unit.objects import atelet, daemonset, node, pod, pool

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


@pytest.mark.parametrize("name", CLASSES)
def test_priority_classes(name: str) -> None:
    ateom, placeholder, expected = CLASSES[name]
    begins(priorities.judge(("ateplace-ateom", ateom), ("ateplace-placeholder", placeholder)), *expected)


def test_a_class_of_another_name_is_not_in_our_manifests() -> None:
    found = priorities.judge(("gold", None), ("ateplace-placeholder", PriorityClass(-10, "Never")))
    assert [one.fix for one in found] == ["create it, or set webhook.priority_class to one that exists"]


def test_the_shipped_scheduler_configuration_is_what_doctor_wants() -> None:
    assert scheduler.judge((DEPLOY / "scheduler" / "second-scheduler.yaml").read_text(), Settings()) == []


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


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_scheduler_configurations(name: str) -> None:
    change, expected = CONFIGURATIONS[name]
    config = yaml.safe_load((DEPLOY / "scheduler" / "second-scheduler.yaml").read_text())
    for key, value in change.items():
        inner = key in {"ignorable", "nodeCacheCapable", "enableHTTPS", "tlsConfig", "httpTimeout"}
        (config["extenders"][0] if inner else config)[key] = value
    if name == "sampling":
        for profile in config["profiles"]:
            profile.pop("percentageOfNodesToScore", None)
    begins(scheduler.judge(yaml.safe_dump(config), Settings()), *expected)


@pytest.mark.parametrize("text", ["", "- a", "{", "x: [}"])
def test_a_scheduler_configuration_that_is_none_is_said_to_be(text: str) -> None:
    assert [one.level for one in scheduler.judge(text, Settings())] == ["fail"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("5s", 5), ("1m30s", 90), ("1500ms", 1.5), ("1.5h", 5400), ("x", 0), ("5", 0), ("", 0)]
)
def test_go_durations(text: str, seconds: float) -> None:
    assert scheduler.seconds(text) == seconds


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


@pytest.mark.parametrize("name", GATES)
def test_the_gate(name: str) -> None:
    found, labelled, ateoms, expected = GATES[name]
    begins(judge_gates(found, labelled=labelled, ateoms=ateoms), *expected)


def test_an_open_gate_is_closed_by_the_command_that_restarts_no_atelet() -> None:
    found = judge_gates(daemonset(gated=False, desired=9), ateoms=5)
    assert [one.fix for one in found] == ["ateplace migrate (a patch of the nodeSelector would restart every atelet)"]


def test_every_daemonset_of_atelet_must_be_gated() -> None:
    old, new = daemonset(desired=3), daemonset(name="atelet-v2", gated=False, desired=0)
    new_says = "atelet-v2 is not gated by ate.dev/atelet, as others are; it has no pods yet"
    begins(judge_gates(old, new, labelled=3, ateoms=5), ("fail", new_says))
    running = daemonset(name="atelet-v2", gated=False, desired=4)
    begins(
        judge_gates(old, running, labelled=3), ("fail", "atelet-v2 is not gated by ate.dev/atelet: it runs on 4 nodes")
    )
    third = daemonset(name="atelet-v3", desired=1)
    begins(
        judge_gates(old, third, labelled=4), ("ok", "atelet and atelet-v3 are gated by ate.dev/atelet and wanted on 4")
    )
    begins(
        judge_gates(old, third, labelled=5), ("warn", "5 nodes carry ate.dev/atelet, but atelet and atelet-v3 are wan")
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("ate-node-critical", []),
        ("low", [("warn", "atelet's priority class low is 5")]),
        ("lost", [("warn", "atelet's priority class lost does not exist")]),
    ],
)
def test_any_high_priority_class_is_right_and_none_that_is_set_is_to_be_overwritten(
    given: str, expected: list[tuple[str, str]]
) -> None:
    found = judge_gates(daemonset(priorityClassName=given))
    begins(found, *expected, ("ok", "atelet is gated"))
    assert not any("kubectl patch" in one.fix for one in found)


def test_who_makes_atelet_critical_is_told_of_the_quota_that_some_clusters_want_first() -> None:
    """Without it they would refuse every new atelet."""
    fix = judge_gates(daemonset(priorityClassName=""))[0].fix
    assert "kubectl patch daemonset/atelet -n ate-system -p " in fix
    assert "kubectl apply -f deploy/components/atelet-priority/quota.yaml" in fix
    assert (DEPLOY / "components" / "atelet-priority" / "quota.yaml").exists()


def test_an_atelet_that_has_never_run_has_no_earlier_log_to_look_at() -> None:
    crashing = atelet("n1", ready=False, trouble="CrashLoopBackOff")
    unpulled = atelet("n2", ready=False, trouble="ErrImagePull")
    found = [record for record in map(atelet_record, (crashing, unpulled)) if record]
    assert [one.fix for one in atelet_checks.judge_room(found, {"n1", "n2"}, "ate-system")] == [
        f"kubectl logs -n ate-system {crashing.metadata.name} --previous",
        f"kubectl describe pod -n ate-system {unpulled.metadata.name}",
    ]


def test_atelets_without_room_and_broken_ones_are_named() -> None:
    pods = [atelet("n1"), atelet("n2", bound=False), atelet("n3", ready=False, trouble="CrashLoopBackOff")]
    pods += [atelet("n4", bound=False), atelet("n5", ready=False, trouble="ErrImagePull")]
    wanted = {"n1", "n2", "n3", "n5"}
    found = [record for record in map(atelet_record, pods) if record]
    begins(
        atelet_checks.judge_room(found, wanted, "ate-system"),
        ("fail", "atelet is Pending for want of room on n2"),
        ("warn", "Pending atelets are left over for n4"),
        ("fail", "atelet does not run on 1 nodes: CrashLoopBackOff (n3)"),
        ("fail", "atelet does not run on 1 nodes: ErrImagePull (n5)"),
    )
    begins(atelet_checks.judge_room(found[:1], wanted, "ate-system"), ("ok", "1 of 1 atelets are Ready"))


MICROVM = {"key": "ate.dev/sandboxClass", "value": "microvm", "effect": "NoSchedule"}


def deployment(**spec: Any) -> Deployment:
    meta = {"name": "vm-deployment", "namespace": "demo", "labels": {"ate.dev/worker-pool": "vm"}}
    return msgspec.convert({"metadata": meta, "spec": {"template": {"spec": spec}}}, Deployment)


def test_nodes_that_a_pool_selects_and_atelet_does_not_tolerate_are_found() -> None:
    selector = {"ate.dev/sandboxClass": "microvm"}
    tainted = node_record(node("n1", labels=selector, taints=[MICROVM]))
    plain = node_record(node("n2", labels=selector))
    other = node_record(node("n3"))
    ateoms = deployment(nodeSelector=selector, tolerations=[{**MICROVM, "operator": "Equal"}])
    judge, target = atelet_checks.judge_taints, "ate-system"
    blind = Templates([atelet_template(daemonset())])
    all_of_them = judge(ateoms, blind, [tainted, other], target)
    begins(all_of_them, ("fail", "pool demo/vm: atelet cannot run on 1 of 1 nodes that it selects: atelet does not"))
    assert '"key": "ate.dev/sandboxClass", "operator": "Exists"' in all_of_them[0].fix
    begins(judge(ateoms, blind, [tainted, plain], target), ("warn", "pool demo/vm: atelet cannot run on 1 of 2 nodes"))
    begins(judge(ateoms, blind, [other], target), ("warn", "no node suits the pool demo/vm"))
    tolerant = Templates([atelet_template(daemonset(tolerations=[{"operator": "Exists"}]))])
    assert judge(ateoms, tolerant, [tainted, plain], target) == []


def test_the_fix_names_what_keeps_atelet_away_and_nothing_else() -> None:
    """Tolerations do not help where the nodeSelector does not match, and what is tolerated needs none."""
    unschedulable = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    tainted = node_record(node("n1", labels={"disk": "ssd"}, taints=[MICROVM, unschedulable]))
    elsewhere = node_record(node("n2", taints=[MICROVM]))
    ateoms = deployment(tolerations=[{"operator": "Exists"}])
    picky = daemonset()
    picky.spec.template.spec.node_selector = {"ate.dev/atelet": "true", "disk": "ssd"}
    atelets = Templates([atelet_template(picky)])
    (selector,) = atelet_checks.judge_taints(ateoms, atelets, [elsewhere], "ate-system")
    assert "tolerations" not in selector.fix and "nodeSelector" in selector.fix
    (taint,) = atelet_checks.judge_taints(ateoms, atelets, [tainted], "ate-system")
    assert "ate.dev/sandboxClass" in taint.fix and "nodeSelector" not in taint.fix
    assert "unschedulable" not in taint.fix
    (both,) = atelet_checks.judge_taints(ateoms, atelets, [tainted, elsewhere], "ate-system")
    assert "tolerations" in both.fix and "nodeSelector" in both.fix


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


@pytest.mark.parametrize("name", CLAIMS)
def test_claims(name: str) -> None:
    nodes, pods, expected = CLAIMS[name]
    begins(claims.judge(compared(nodes, pods), age=420, led=False, logs="kubectl logs"), *expected)


def compared(nodes: list[Node], pods: list[Pod]) -> claims.Claims:
    return claims.compare(
        [node_record(one) for one in nodes],
        [record for one in pods if (record := pod_record(one))],
        [pool_record(pool())],
        age=420,
        now=NOW,
    )


def test_an_old_claim_whose_last_pod_has_just_left_is_no_trouble_while_a_reconciler_leads() -> None:
    left = compared([node("n1", "u1")], [])
    begins(claims.judge(left, age=420, led=True, logs=""), ("ok", "1 claims on 1 nodes"))


def test_only_what_two_looks_find_is_told() -> None:
    """Between the reads of the first look a node was claimed and a pod bound to it, and an orphan's claim released."""
    first = compared([node("n1"), node("n2"), node("n3", "u9")], [pod("a", "n1"), pod("b", "n2")])
    later = compared([node("n1", "u1"), node("n2"), node("n3")], [pod("a", "n1"), pod("b", "n2")])
    assert first.suspicious
    begins(
        claims.judge(first.still(later), age=420, led=True, logs="kubectl logs"),
        ("fail", "ateoms without a claim on n2: atelet may leave them"),
    )


@pytest.mark.parametrize(
    ("version", "level"),
    [("v1.36.3", "ok"), ("v1.36.0-gke.100", "ok"), ("v1.35.1", "warn"), ("v1.29.9", "fail"), ("master", "warn")],
)
def test_api_server_versions(version: str, level: str) -> None:
    assert versions.judge_server(version).level == level


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


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    tags, expected = IMAGES[name]
    begins(versions.judge_images(images(**tags), "v1.36.3", LOOK), *expected)


@pytest.mark.parametrize(
    ("server", "tag"),
    [("v1.35.4", "v1.35.4"), ("v1.35.4-gke.100", "v1.35.4"), ("v1.35.4+k3s1", "v1.35.4"), ("v1.35", "v1.35.x")],
)
def test_the_image_for_a_scheduler_that_is_too_new_exists(server: str, tag: str) -> None:
    """Its tags have three numbers, and a digest that stays would win over the tag."""
    fix = versions.judge_images(images(scheduler="r/s:v1.36.3@sha256:00"), server, LOOK)[0].fix
    assert fix == f"in deploy/scheduler/kustomization.yaml set newTag to {tag} and remove the digest, then apply"


def test_what_somebody_has_changed_is_applied_over() -> None:
    """Server-side apply refuses otherwise: who changes a field becomes its owner."""
    assert "kubectl apply --server-side --force-conflicts -k deploy/overlays/second-scheduler" in APPLY


def test_the_ca_bundle_must_be_the_authority_of_the_serving_certificate() -> None:
    now = datetime.now(UTC)
    ca, other = authority.make_authority(now, days=1), authority.make_authority(now, days=1)
    name = "ateplace-webhook.ateplace-system.svc"
    leaf = load_certificates(authority.issue(ca, authority.Wanted(authority.Use.SERVER, (name,)), now, 1).certificate)[
        0
    ]
    bundle = load_certificates(ca.certificate)
    assert webhook.judge(bundle, leaf, name, LOOK).level == "ok"
    assert "not the authority" in webhook.judge(load_certificates(other.certificate), leaf, name, LOOK).says
    assert "is not for other.svc" in webhook.judge(bundle, leaf, "other.svc", LOOK).says
    assert "holds no certificate" in webhook.judge(bundle, None, name, LOOK).says


@pytest.mark.parametrize(
    ("message", "level"),
    [
        ('403 admission webhook "pods.x" denied the request: there is no WorkerPool', "ok"),
        ('500 failed calling webhook "pods.x": connection refused', "fail"),
        ('403 pods is forbidden: User "eve" cannot create resource "pods"', "warn"),
    ],
)
def test_what_the_answer_to_the_dry_run_says_about_the_webhook(message: str, level: str) -> None:
    assert webhook.answered(message, "pods.x", "kubectl logs").level == level


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


@pytest.mark.parametrize("account", rbac.NEEDED)
def test_doctor_asks_for_exactly_the_rights_that_are_shipped(account: str) -> None:
    asked = {
        (right.group, right.resource, verb, right.own, right.name)
        for right in rbac.needed(Settings())[account]
        for verb in right.verbs
    }
    assert asked == granted(account)


def test_rights_are_asked_for_by_the_names_that_are_set() -> None:
    settings = load({}, ["certs.scheduler_deployment=mine"]).settings
    asked = {(right.resource, right.name) for right in rbac.needed(settings)["ateplace-reconciler"]}
    assert ("deployments", "mine") in asked
    assert ("daemonsets", "atelet") not in asked


def test_some_names_of_many() -> None:
    assert some(["b", "a"]) == "a, b"
    assert some("edcba") == "a, b, c and 2 more"


def test_every_check_has_a_name() -> None:
    assert list(checks()) == [
        "versions",
        "roles",
        "settings",
        "leader",
        "rbac",
        "priority classes",
        "certificates",
        "webhook",
        "scheduler",
        "atelet gate",
        "atelet room",
        "atelet taints",
        "claims",
    ]


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


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_an_installation(name: str) -> None:
    found, told, expected = SETTINGS[name]
    begins(configured.judge(found, told), *expected)


def test_doctor_judges_by_the_installations_settings_except_where_it_is_given_others() -> None:
    found = installed(
        reconciler={LINGER: "60", "ATEPLACE_WEBHOOK_PORT": "9443", "ATEPLACE_CLUSTER_REQUEST_TIMEOUT": "3"}
    )
    wanted = given("reconciler.linger=60", "webhook.port=8443").settings
    assert configured.effective(found, given("webhook.port=8443")) == wanted
    broken = installed(reconciler={LINGER: "never"})
    assert configured.effective(broken, given("webhook.port=9443")) == given("webhook.port=9443").settings
