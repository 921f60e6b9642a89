"""The judgements of doctor's checks, as tables; the same faults are seeded on a real cluster in tests/control_plane."""

import pytest
import yaml

from ateplace.cli.doctor import atelet as atelet_checks
from ateplace.cli.doctor import claims, priorities, scheduler
from ateplace.cli.doctor.command import checks
from ateplace.cli.doctor.priorities import PriorityClass
from ateplace.cli.findings import APPLY
from ateplace.cluster.atelets import Templates
from ateplace.cluster.records import atelet_record, atelet_template, node_record
from ateplace.settings import Settings
from tests.unit.doctoring import (
    CLAIMS,
    CLASSES,
    CONFIGURATIONS,
    DEPLOY,
    GATES,
    MICROVM,
    begins,
    compared,
    deployment,
    judge_gates,
)
from tests.unit.objects import atelet, daemonset, node, pod


@pytest.mark.parametrize("name", CLASSES)
def test_priority_classes(name: str) -> None:
    ateom, placeholder, expected = CLASSES[name]
    begins(priorities.judge(("ateplace-ateom", ateom), ("ateplace-placeholder", placeholder)), *expected)


def test_a_class_of_another_name_is_not_in_our_manifests() -> None:
    found = priorities.judge(("gold", None), ("ateplace-placeholder", PriorityClass(-10, "Never")))
    assert [one.fix for one in found] == ["create it, or set webhook.priority_class to one that exists"]


def test_the_shipped_scheduler_configuration_is_what_doctor_wants() -> None:
    assert scheduler.judge((DEPLOY / "scheduler" / "second-scheduler.yaml").read_text(), Settings()) == []


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
        ("fail", "atelet is Pending for lack of room on n2"),
        ("warn", "Pending atelets are left over for n4"),
        ("fail", "atelet does not run on 1 nodes: CrashLoopBackOff (n3)"),
        ("fail", "atelet does not run on 1 nodes: ErrImagePull (n5)"),
    )
    begins(atelet_checks.judge_room(found[:1], wanted, "ate-system"), ("ok", "1 of 1 atelets are Ready"))


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


@pytest.mark.parametrize("name", CLAIMS)
def test_claims(name: str) -> None:
    nodes, pods, expected = CLAIMS[name]
    begins(claims.judge(compared(nodes, pods), age=420, led=False, logs="kubectl logs"), *expected)


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


def test_what_somebody_has_changed_is_applied_over() -> None:
    """Server-side apply refuses otherwise: who changes a field becomes its owner."""
    assert "kubectl apply --server-side --force-conflicts -k deploy/overlays/second-scheduler" in APPLY


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
