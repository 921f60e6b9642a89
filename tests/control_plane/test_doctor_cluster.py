"""The commands that look, on a real cluster with all of ateplace running: a fault for every check, found and mended."""

import itertools
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ateplace import names
from ateplace.cli.doctor.command import checks
from ateplace.cli.findings import Finding
from ateplace.local import ControlPlane, substrate
from ateplace.local.pods import Installation
from ateplace.local.scene import OVERLAY
from ateplace.local.versions import chosen
from tests.control_plane.doctor_rig import (
    HOOKS,
    LINGER,
    LINGER_VARIABLE,
    POOL,
    STOPPED,
    WORKERS,
    Running,
    bound,
    patched,
    quiet,
    says,
    spoil,
)
from tests.deploying import compose

ROOM = {"requests": {"cpu": "500m", "memory": "512Mi"}}
SYSTEM = f"/apis/apps/v1/namespaces/{names.NAMESPACE}"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A cluster of its own, because these tests break it. Our scheduler is of its version, as it must be."""
    with ControlPlane(nodes=4) as plane:
        substrate.install(plane)
        settings = {LINGER_VARIABLE: str(LINGER)}
        directory = tmp_path_factory.mktemp("overlay")
        overlay = compose(directory, OVERLAY, scheduler=chosen().kubernetes, settings=settings)
        installed = Installation(plane, overlay)
        installed.start()
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": "demo"}})
        substrate.pool(plane, "demo", POOL, WORKERS, resources=ROOM)
        found = Running(plane, installed)
        plane.wait(lambda: bound(plane) == WORKERS, timeout=60, why="the pool's ateoms to be bound")
        plane.wait(lambda: quiet(plane), timeout=60, why="the claims made ahead to be released")
        plane.wait(lambda: not (trouble := found.trouble()) or says(trouble), timeout=60, why="a healthy start")
        yield found


@pytest.mark.versions
def test_a_healthy_installation_passes_every_check(running: Running) -> None:
    found = running.doctor()
    assert {one.check for one in found} == set(checks())
    done = running.cli("doctor", "--output=json", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {(row["check"], row["level"]) for row in json.loads(done.stdout)} == {(name, "ok") for name in checks()}


@pytest.mark.versions
def test_versions_a_scheduler_that_is_too_new(running: Running) -> None:
    path = f"{SYSTEM}/deployments/{names.SCHEDULER}"
    spec = running.plane.api.get(path)["spec"]["template"]["spec"]["containers"][0]

    def image(tag: str) -> Any:
        return {"spec": {"template": {"spec": {"containers": [{"name": spec["name"], "image": tag}]}}}}

    running.plane.api.patch(path, image("registry.example/kube-scheduler:v1.99.0"), "strategic")
    try:
        assert running.trouble("versions") == [
            "fail: the scheduler (1.99) is newer than the API server, which is not supported"
        ]
    finally:
        running.plane.api.patch(path, image(spec["image"]), "strategic")


def test_roles_a_deployment_that_is_scaled_to_nothing(running: Running) -> None:
    path = f"{SYSTEM}/deployments/ateplace-webhook"
    with patched(running.plane, path, {"spec": {"replicas": 0}}, {"spec": {"replicas": 2}}):
        assert running.trouble("roles") == ["fail: ateplace-webhook is scaled to 0"]
        done = running.cli("doctor", "--check=roles")
        assert done.returncode == 3
        assert "kubectl scale -n ateplace-system deployment/ateplace-webhook --replicas=2" in done.stdout


def test_settings_that_doctor_is_given_and_settings_that_nobody_takes(running: Running) -> None:
    (name,) = (
        one["metadata"]["name"]
        for one in running.plane.api.list(f"/api/v1/namespaces/{names.NAMESPACE}/configmaps")
        if one["metadata"]["name"].startswith("ateplace-settings")
    )
    path = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/{name}"
    done = running.cli("doctor", "--check=settings", "--output=json", "--set=reconciler.linger=60")
    told = {row["says"] for row in json.loads(done.stdout)}
    roles = ("webhook", "extender", "reconciler")
    assert told == {f"doctor was given reconciler.linger = 60.0, but ateplace-{role} has 5.0" for role in roles}
    unknown = "ATEPLACE_RECONCILER_TO_COME"
    with patched(running.plane, path, {"data": {unknown: "1"}}, {"data": {unknown: None}}):
        said = "unknown setting 'reconciler.to_come' (environment); `ateplace settings` lists them all"
        assert running.trouble("settings") == [
            f"fail: this version of ateplace does not start with the settings of ateplace-{role}: {said}"
            for role in roles
        ]
    found = running.plane.api.get(path)
    running.plane.api.delete(path)
    try:
        assert running.trouble("settings") == [
            f"fail: ateplace-{role} takes its settings from the ConfigMap {name}, which is not there: "
            "its next pod cannot start"
            for role in roles
        ]
    finally:
        kept = {"name": name, "labels": found["metadata"].get("labels", {})}
        running.plane.api.post(f"/api/v1/namespaces/{names.NAMESPACE}/configmaps", {**found, "metadata": kept})


def test_an_old_idle_claim_is_trouble_only_while_no_reconciler_leads(running: Running) -> None:
    """How old is too old is judged by the linger that the installation has."""
    node = running.plane.add_nodes(1, "lingering")[0]
    pool = running.plane.api.get(f"{substrate.POOLS.format('demo')}/{POOL}")
    old = (datetime.now(UTC) - timedelta(seconds=640)).strftime("%Y-%m-%dT%H:%M:%SZ")
    running.installed.pods["reconciler"].kill()  # else it would release the claim
    try:
        claim = {"annotations": {names.claim_key(pool["metadata"]["uid"]): old}, "labels": {names.NODE_LABEL: "true"}}
        running.plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": claim})
        # Its Lease is good for some seconds more, and so long another reconciler may be about to take over.
        (only,) = running.plane.wait(lambda: running.trouble("claims"), timeout=60, why="the Lease to run out")
        sentence = (
            f"claims without a pod, written more than {LINGER + 600:.0f} s ago, and no reconciler to release them"
        )
        assert only == f"warn: {sentence}, on {node}"
        done = running.cli("doctor", "--check=claims", "--output=json", "--set=reconciler.linger=120")
        assert {row["level"] for row in json.loads(done.stdout)} == {"ok"}
    finally:
        running.installed.pods["reconciler"].run()
    running.plane.wait(lambda: not running.trouble(), timeout=90, why="a reconciler to lead")
    running.plane.wait(lambda: quiet(running.plane), timeout=90, why="the claim to be released")
    running.plane.remove_nodes([node])


def test_rbac_a_role_that_lacks_its_rights(running: Running) -> None:
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/ateplace-webhook"
    rules = running.plane.api.get(path)["rules"]
    fewer = [rule for rule in rules if rule["apiGroups"] != [names.GROUP]]
    with patched(running.plane, path, {"rules": fewer}, {"rules": rules}):
        running.plane.wait(lambda: running.trouble("rbac"), why="the authorizer to see it")
        assert running.trouble("rbac") == [
            "fail: the ServiceAccount ateplace-webhook may not: get workerpools.ate.dev, list workerpools.ate.dev, "
            "watch workerpools.ate.dev"
        ]
    running.plane.wait(lambda: not running.trouble("rbac"), why="the rights to be back")


def test_priority_classes_one_on_the_wrong_side_of_the_cutoff(running: Running) -> None:
    path = f"{CLASSES}/{names.PLACEHOLDER_PRIORITY_CLASS}"
    good = running.plane.api.get(path)
    body = {"metadata": {"name": names.PLACEHOLDER_PRIORITY_CLASS, "labels": good["metadata"]["labels"]}}
    running.plane.api.delete(path)
    try:
        assert running.trouble("priority classes") == ["fail: there is no PriorityClass ateplace-placeholder"]
        running.plane.api.post(CLASSES, {**body, "value": -11, "preemptionPolicy": "Never"})
        assert running.trouble("priority classes") == [
            "fail: ateplace-placeholder is -11, below -10: cluster-autoscaler does not grow for placeholders"
        ]
        running.plane.api.delete(path)
    finally:
        running.plane.api.post(CLASSES, {**body, "value": -10, "preemptionPolicy": "Never"})


def test_webhook_one_that_does_not_answer(running: Running) -> None:
    running.plane.stop("ateplace-webhook", timeout=60)
    try:
        (only,) = running.trouble("webhook")
        assert only.startswith("fail: the API server cannot call the webhook: ")
    finally:
        running.installed.pods["webhook"].run()
    running.plane.wait(lambda: not running.trouble("webhook"), timeout=60, why="the webhook to be back")


def test_webhook_a_configuration_that_does_not_match(running: Running) -> None:
    hooks = running.plane.api.get(HOOKS)["webhooks"]
    nobody = {"matchLabels": {"no": "namespace"}}
    away = [{**hook, "namespaceSelector": nobody} for hook in hooks]
    with patched(running.plane, HOOKS, {"webhooks": away}, {"webhooks": hooks}):
        running.plane.wait(lambda: running.trouble("webhook"), why="the API server to see it")
        (only,) = running.trouble("webhook")
        assert only.startswith("fail: a pod of a pool that does not exist was admitted")
    running.plane.wait(lambda: not running.trouble("webhook"), why="the API server to see it")


def test_scheduler_one_that_samples_nodes(running: Running) -> None:
    (config,) = (
        one["metadata"]["name"]
        for one in running.plane.api.list(f"/api/v1/namespaces/{names.NAMESPACE}/configmaps")
        if one["metadata"]["name"].startswith(names.SCHEDULER)
    )
    path = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/{config}"
    data = running.plane.api.get(path)["data"]
    worse = {
        key: text.replace("percentageOfNodesToScore: 100", "percentageOfNodesToScore: 30") for key, text in data.items()
    }
    with patched(running.plane, path, {"data": worse}, {"data": data}):
        assert running.trouble("scheduler") == [
            "fail: the scheduler samples nodes (percentageOfNodesToScore 30): warm nodes are missed"
        ]


def test_atelet_gate_a_daemonset_on_every_node(running: Running) -> None:
    def gate(value: str | None) -> Any:
        return {"spec": {"template": {"spec": {"nodeSelector": {names.NODE_LABEL: value}}}}}

    with patched(running.plane, substrate.daemonset(running.plane), gate(None), gate("true")):
        (only,) = running.trouble("atelet gate")
        assert only.startswith("fail: atelet-v1 is not gated by ate.dev/atelet: it runs on ")
    running.plane.wait(lambda: not running.trouble("atelet gate"), why="the gate to be back")


def test_atelet_taints_nodes_that_a_pool_selects_and_atelet_does_not_tolerate(running: Running) -> None:
    taint = {"key": "example.com/dedicated", "value": "vm", "effect": "NoSchedule"}
    added = running.plane.add_nodes(1, "vm", labels={"dedicated": "vm"}, taints=[taint])
    tolerations = [{"key": "example.com/dedicated", "operator": "Exists"}]
    substrate.pool(running.plane, "demo", "vm", 1, nodeSelector={"dedicated": "vm"}, tolerations=tolerations)
    try:
        running.plane.wait(lambda: running.trouble("atelet taints"), why="the controller to make the Deployment")
        assert running.trouble("atelet taints") == [
            "fail: pool demo/vm: atelet cannot run on 1 of 1 nodes that it selects: "
            "atelet does not tolerate the taint example.com/dedicated (1 nodes)"
        ]
        selector = f"{names.POOL_LABEL}=vm"
        pods = running.plane.wait(
            lambda: running.plane.api.list("/api/v1/namespaces/demo/pods", labelSelector=selector), why="the pool's pod"
        )
        name = pods[0]["metadata"]["name"]

        def refused() -> Any:
            done = running.cli("explain", "pod", f"demo/{name}", "--output=json", running.extender)
            found = json.loads(done.stdout) if done.returncode == 0 else {"decisions": []}
            return found if found["decisions"] else None

        told = running.plane.wait(refused, timeout=60, why="the extender to have refused the pod")
        assert told["decisions"][-1]["outcome"] == "refused all 1 nodes"
        assert told["decisions"][-1]["notes"] == [
            f"1 node: atelet does not tolerate the taint example.com/dedicated ({added[0]})"
        ]
        assert [one["level"] for one in told["findings"]] == ["ok", "ok", "fail"]
        assert "atelet does not tolerate the taint" in told["findings"][-1]["says"]
    finally:
        substrate.delete(running.plane, "demo", "vm")
        running.plane.remove_nodes(added)
    running.plane.wait(lambda: not running.trouble("atelet taints"), timeout=60, why="the pool to be gone")


def test_faults_that_ateplace_mends_are_found_while_it_cannot(running: Running) -> None:
    """Claims, certificates and the caBundle are looked after by the leader: kill it, and the scheduler too."""
    plane, pods = running.plane, running.installed.pods
    full = plane.add_nodes(1, "full", pods=0)[0]
    pods["reconciler"].kill()
    pods["scheduler"].kill()
    try:
        spoil(plane, full)
        looked = ("leader", "scheduler", "certificates", "webhook", "claims", "atelet room")

        def bad() -> list[Finding]:
            found = [one for one in running.doctor(*looked) if one.level != "ok"]
            return found if len(found) >= 7 else says([one.says for one in found])

        found = plane.wait(bad, timeout=90, why="both Leases to run out, and the full node to refuse atelet", every=1)
        seen = {(one.check, one.level, one.says.split(": ")[0]) for one in found}
        assert seen == {
            ("leader", "fail", "no reconciler leads (Lease ateplace-reconciler)"),
            ("scheduler", "fail", "no scheduler holds the Lease ateplace-scheduler"),
            ("certificates", "fail", "ateplace-scheduler-client"),
            ("webhook", "fail", "the caBundle is not the authority that signed the webhook's certificate"),
            ("webhook", "fail", "the API server cannot call the webhook"),
            ("claims", "fail", "orphan claims of pools that are gone, on full-0000"),
            ("atelet room", "fail", "atelet is Pending for lack of room on full-0000"),
        }
        assert all(one.fix for one in found)
    finally:
        pods["reconciler"].run()
        pods["scheduler"].run()
    # The label goes with the orphan claim; the Pending atelet stays, because the DaemonSet controller forgets it.
    left = ["warn: Pending atelets are left over for full-0000, where none is wanted any more"]
    plane.wait(lambda: (found := running.trouble()) == left or says(found), timeout=90, why="ateplace to mend it all")
    (leftover,) = (one for one in running.doctor("atelet room") if one.level == "warn")
    plane.kubectl(*leftover.fix.partition("kubectl ")[2].split())
    plane.wait(lambda: not running.trouble(), why="the fix to help")
    plane.remove_nodes([full])


def test_status_shows_a_busy_cluster(running: Running) -> None:
    done = running.cli("status", "--output=json", running.extender)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["notes"] == []
    assert set(seen["roles"]) == {"ateplace-webhook", "ateplace-extender", "ateplace-reconciler", "ateplace-scheduler"}
    (pool,) = seen["pools"]
    assert (pool["pool"], pool["replicas"], pool["ateoms"], pool["ready"], pool["waiting"]) == (
        f"demo/{POOL}",
        WORKERS,
        WORKERS,
        WORKERS,
        0,
    )
    busy = [node for node in seen["nodes"] if node["pools"]]
    assert {node["atelet"] for node in busy} == {"ready"}
    assert sum(tenant["ateoms"] for node in busy for tenant in node["pools"]) == WORKERS
    assert all(tenant["claimed"] for node in busy for tenant in node["pools"])
    screen = running.cli("status", "--all", running.extender)
    assert f"{WORKERS} ateoms on {len(busy)} claimed nodes of 4, 0 waiting for a node" in screen.stdout
    assert screen.stdout.count("●") == WORKERS + 1  # and the legend


def test_status_goes_on_until_it_is_told_to_stop(running: Running) -> None:
    flags = [f"--set=cluster.kubeconfig={running.plane.kubeconfig}", "--watch", "--interval=0.2", running.extender]
    argv = [sys.executable, "-m", "ateplace.cli", "status", *flags]
    for output, mark in (("json", '"notes"'), ("table", "claimed nodes of")):
        with subprocess.Popen([*argv, f"--output={output}"], stdout=subprocess.PIPE, text=True) as watching:
            deadline = threading.Timer(60, watching.kill)
            deadline.start()
            assert watching.stdout
            looks = (line for line in watching.stdout if mark in line)
            assert len(list(itertools.islice(looks, 3))) == 3
            watching.send_signal(signal.SIGINT)
            assert watching.wait(30) == STOPPED
            deadline.cancel()


def test_explain_tells_a_placed_pod_s_story(running: Running) -> None:
    name = running.plane.api.list("/api/v1/namespaces/demo/pods")[0]["metadata"]["name"]
    done = running.cli("explain", "pod", name, "-n", "demo", running.extender)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert told[0] == f"pod demo/{name}"
    assert [line.split()[0] for line in told[1:6]] == ["ok"] * 5
    unknown = running.cli("explain", "pod", "demo/nobody", running.extender)
    assert unknown.returncode == 1
    assert unknown.stderr == "ateplace: there is no pod demo/nobody, and no extender that answered remembers one\n"


def test_without_a_cluster_the_commands_say_so(running: Running) -> None:
    argv = [sys.executable, "-m", "ateplace.cli", "doctor", "--set=cluster.kubeconfig=/nowhere"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("ateplace: cannot use the cluster configuration from /nowhere")
