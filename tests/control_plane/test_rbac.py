"""The rights that we ship are the rights that we use: proved from the API server's audit log.

Every role runs under its ServiceAccount with exactly the shipped roles, on an API server without streaming lists (so
that the paged ones, which are granted too, are needed), through everything that any of them ever does.
"""

import base64
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from ateplace.local import ApiError, ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.kubeconfig import connect
from ateplace.local.pods import Installation
from tests.control_plane.auditing import ACCOUNTS, Audit, Grant, WithoutStreamingLists, grants, unused
from tests.deploying import SECOND_SCHEDULER, assert_no_difference

QUICK = {
    "reconciler__linger": 2,
    "certs__settle": 1,
    "serve__drain": 0,
    "extender__deadline": 8,
    "extender__nominate_nodes": 1,
}
NAMESPACE = "agents"
LOOKING = "claim's outcome is unknown, looking"
"""What the extender says when it has given up on an answer."""


def test_a_request_is_a_use_of_the_narrowest_grant_only() -> None:
    every = Grant("reconciler", "get", "apps", "deployments", "", "")
    ours = every._replace(namespace="ateplace-system", name="ateplace-scheduler")
    theirs = every._replace(namespace="agents", name="web")
    assert unused({every, ours}, {ours}) == [every]
    assert unused({every, ours}, {theirs}) == [ours]
    assert unused({every, ours}, {ours, theirs}) == []
    assert unused({ours}, {ours._replace(namespace="agents")}) == [ours]


@pytest.fixture(scope="module")
def plane_under_audit() -> Iterator[WithoutStreamingLists]:
    running = WithoutStreamingLists(nodes=3, audit=True)
    with running:
        substrate.install(running)
        yield running


@pytest.fixture(scope="module")
def installed(plane_under_audit: WithoutStreamingLists) -> Installation:
    """The default installation on it, and a namespace for pools."""
    running = Installation(plane_under_audit, SECOND_SCHEDULER, **QUICK)
    running.start()
    plane_under_audit.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    return running


@pytest.mark.versions
def test_every_right_is_used_and_none_is_missing(
    plane_under_audit: WithoutStreamingLists, installed: Installation, tmp_path: Path
) -> None:
    plane = plane_under_audit
    audit = Audit(plane)

    grow_and_shrink(plane)
    wait_behind_another(plane)
    take_a_placeholders_room(plane)
    ask_for_a_pool_that_is_not_there(plane)
    say_the_same_again(plane)
    lose_a_pool(plane, installed)
    make_a_pool_again(plane)
    lose_an_answer(plane, installed, tmp_path)
    change_the_authority(plane)
    bring_a_new_version_of_atelet(plane)
    plane.wait(installed.ready, timeout=60, why="ateplace to be ready still")

    assert (unused(grants(), audit.requests()), audit.refused()) == ([], [])
    assert {request.role for request in audit.requests()} == set(ACCOUNTS)
    assert_no_difference(plane, SECOND_SCHEDULER)


def ateoms(plane: ControlPlane, pool: str) -> int:
    """How many run on nodes."""
    pods = plane.api.list(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=f"ate.dev/worker-pool={pool}")
    return sum(pod["status"].get("phase") == "Running" for pod in pods)


def placeholders(plane: ControlPlane, pool: str) -> int:
    path, selector = f"/api/v1/namespaces/{NAMESPACE}/pods", f"ateplace.ate.dev/placeholder={pool}"
    return sum("nodeName" in pod["spec"] for pod in plane.api.list(path, labelSelector=selector))


def annotate(plane: ControlPlane, pool: str, headroom: str | None) -> None:
    path = f"{substrate.POOLS.format(NAMESPACE)}/{pool}"
    plane.api.patch(path, {"metadata": {"annotations": {"ateplace.ate.dev/headroom": headroom}}})


def grow_and_shrink(plane: ControlPlane) -> None:
    """A pool with headroom that changes, and goes; a pool that comes, grows and goes."""
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    substrate.pool(plane, NAMESPACE, "web", 3, annotations={"ateplace.ate.dev/headroom": "1"}, resources=resources)
    plane.wait(lambda: (ateoms(plane, "web"), placeholders(plane, "web")) == (3, 1), timeout=60, why="web's pods")
    annotate(plane, "web", "2")
    plane.wait(lambda: placeholders(plane, "web") == 2, timeout=60, why="more headroom")
    annotate(plane, "web", None)
    plane.wait(lambda: placeholders(plane, "web") == 0, timeout=60, why="no headroom")
    annotate(plane, "web", "1")
    substrate.scale(plane, NAMESPACE, "web", 6)
    plane.wait(lambda: (ateoms(plane, "web"), placeholders(plane, "web")) == (6, 1), timeout=60, why="web to grow")
    substrate.delete(plane, NAMESPACE, "web")
    path = f"{substrate.POOLS.format(NAMESPACE)}/web"
    plane.wait(lambda: not plane.api.exists(path), timeout=60, why="web to be gone")


def wait_behind_another(plane: ControlPlane) -> None:
    """Pods of one template that are there before the scheduler looks: they are nominated."""
    substrate.pool(plane, NAMESPACE, "many", 40)
    plane.wait(lambda: ateoms(plane, "many") == 40, timeout=90, why="many's pods")
    substrate.delete(plane, NAMESPACE, "many")
    plane.wait(lambda: not plane.api.exists(f"{substrate.POOLS.format(NAMESPACE)}/many"), timeout=60, why="its end")


def take_a_placeholders_room(plane: ControlPlane) -> None:
    """One node for one pod, and a placeholder is there."""
    plane.add_nodes(1, prefix="single", cpu="4", labels={"room": "single"})
    resources = {"requests": {"cpu": "3", "memory": "64Mi"}}
    notes = {"ateplace.ate.dev/headroom": "1"}
    only = {"room": "single"}
    substrate.pool(plane, NAMESPACE, "tight", 0, annotations=notes, resources=resources, nodeSelector=only)
    plane.wait(lambda: placeholders(plane, "tight") == 1, timeout=60, why="a placeholder")
    substrate.scale(plane, NAMESPACE, "tight", 1)
    plane.wait(lambda: ateoms(plane, "tight") == 1, timeout=60, why="the ateom in its place")
    substrate.delete(plane, NAMESPACE, "tight")
    plane.wait(lambda: not plane.api.exists(f"{substrate.POOLS.format(NAMESPACE)}/tight"), timeout=60, why="its end")
    plane.remove_nodes(["single-0000"])


def ask_for_a_pool_that_is_not_there(plane: ControlPlane) -> None:
    spec = {"containers": [{"name": "ateom", "image": "registry.example/ateom:1"}]}
    labels = {"ate.dev/worker-pool": "nobody"}
    with pytest.raises(ApiError, match="there is no WorkerPool"):
        plane.api.post(
            f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": "stray", "labels": labels}, "spec": spec}
        )


def say_the_same_again(plane: ControlPlane) -> None:
    """Words about the same thing within ten minutes raise the count of the Event that is there."""
    substrate.pool(plane, NAMESPACE, "odd", 0)
    path = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"

    def counted() -> int:
        said = [event for event in plane.api.list(path) if event["reason"] == "BadHeadroom"]
        return sum(event.get("series", {}).get("count", 1) for event in said)

    # Each change is seen by what comes of it, so that no two are taken for one; the words are the same both times.
    for times in (1, 2):
        annotate(plane, "odd", "1")
        plane.wait(lambda: placeholders(plane, "odd") == 1, timeout=60, why="a placeholder")
        annotate(plane, "odd", "many")
        plane.wait(lambda times=times: counted() == times, timeout=60, why="an Event about a bad annotation")  # type: ignore[misc]
        annotate(plane, "odd", None)
        plane.wait(lambda: placeholders(plane, "odd") == 0, timeout=60, why="the placeholder to go")


def lose_a_pool(plane: ControlPlane, installed: Installation) -> None:
    """A pool that went while nobody was looking, by force; its placeholders go once a read has proved it."""
    substrate.pool(plane, NAMESPACE, "gone", 0, annotations={"ateplace.ate.dev/headroom": "1"})
    plane.wait(lambda: placeholders(plane, "gone") == 1, timeout=60, why="a placeholder")
    reconciler = installed.pods["reconciler"]
    plane.stop(reconciler.name)
    substrate.delete(plane, NAMESPACE, "gone", "Orphan")
    path = f"{substrate.POOLS.format(NAMESPACE)}/gone"
    plane.api.patch(path, {"metadata": {"finalizers": None}})
    plane.wait(lambda: not plane.api.exists(path), timeout=30, why="the pool to be gone")
    reconciler.run()
    plane.wait(lambda: placeholders(plane, "gone") == 0, timeout=60, why="the placeholder to go")


def make_a_pool_again(plane: ControlPlane) -> None:
    """Its ateoms were waiting for the first one, and cannot say otherwise."""
    later = {"room": "later"}
    first = substrate.pool(plane, NAMESPACE, "again", 2, nodeSelector=later)
    path, selector = f"/api/v1/namespaces/{NAMESPACE}/pods", "ate.dev/worker-pool=again"

    def waiting_for(uid: str) -> int:
        pods = plane.api.list(path, labelSelector=selector)
        return sum(pod["metadata"]["labels"].get("ate.dev/worker-pool-uid") == uid for pod in pods)

    plane.wait(lambda: waiting_for(first["metadata"]["uid"]) == 2, timeout=60, why="ateoms that wait")
    substrate.delete(plane, NAMESPACE, "again", "Orphan")
    pool = f"{substrate.POOLS.format(NAMESPACE)}/again"
    plane.wait(lambda: not plane.api.exists(pool), timeout=90, why="the pool to be gone")
    second = substrate.pool(plane, NAMESPACE, "again", 2, nodeSelector=later)
    plane.wait(lambda: waiting_for(second["metadata"]["uid"]) == 2, timeout=60, why="them to be made anew")
    plane.add_nodes(1, prefix="later", cpu="4", labels=later)
    plane.wait(lambda: ateoms(plane, "again") == 2, timeout=60, why="them to run")


def lose_an_answer(plane: WithoutStreamingLists, installed: Installation, directory: Path) -> None:
    """A claim whose answer is lost is looked up: the API server stands still while it is being written."""
    scheduler = installed.pods["scheduler"]
    scheduler.kill()
    substrate.pool(plane, NAMESPACE, "lost", 1)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    (pod,) = plane.wait(
        lambda: plane.api.list(path, labelSelector="ate.dev/worker-pool=lost"), timeout=60, why="a pod to be placed"
    )
    nodes = [node["metadata"]["name"] for node in plane.api.list("/api/v1/nodes")]
    secret = plane.api.get("/api/v1/namespaces/ateplace-system/secrets/ateplace-scheduler-client")["data"]
    files = {name: base64.b64decode(text) for name, text in secret.items()}
    pair = directory / "pair.pem"
    pair.write_bytes(files["tls.crt"] + files["tls.key"])
    context = ssl.create_default_context(cadata=files["ca.crt"].decode())
    context.load_cert_chain(pair)
    url = f"https://{installed.pods['extender'].address}:8444/filter"
    with httpx.Client(verify=context, trust_env=False, timeout=30) as client:

        def ask(pod: Object) -> httpx.Response:
            extensions = {"sni_hostname": "ateplace-extender.ateplace-system.svc"}
            return client.post(url, json={"Pod": pod, "Nodes": None, "NodeNames": nodes}, extensions=extensions)

        labels = {**pod["metadata"]["labels"], "ate.dev/worker-pool": "nobody", "ate.dev/worker-pool-uid": "0-0"}
        stranger = {**pod, "metadata": {**pod["metadata"], "labels": labels}}
        assert "nobody" in ask(stranger).text

        pid, log = plane.pids["kube-apiserver"], plane.log(installed.pods["extender"].name)
        before = log.read_text("utf-8").count(LOOKING)

        def resume() -> None:
            """As soon as the extender looks, after 20 s at the latest."""
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and log.read_text("utf-8").count(LOOKING) == before:
                time.sleep(0.05)
            os.kill(pid, signal.SIGCONT)

        os.kill(pid, signal.SIGSTOP)
        resuming = threading.Thread(target=resume)
        resuming.start()
        answer = ask(pod)
        resuming.join()
        if answer.json().get("Error"):  # the API server had seconds to come round, which a busy machine may not give it
            answer = ask(pod)
        assert log.read_text("utf-8").count(LOOKING) > before, "no answer was lost"
        assert answer.status_code == 200 and not answer.json().get("Error"), answer.text
    scheduler.run()
    plane.wait(lambda: ateoms(plane, "lost") == 1, timeout=60, why="lost's pod after all")


def change_the_authority(plane: ControlPlane) -> None:
    """Begun by an administrator, carried out by the leader under its own rights."""
    flags = ["--set", f"cluster.kubeconfig={plane.kubeconfig}", "--set", "certs.settle=1"]
    command = [sys.executable, "-m", "ateplace.cli", "certs"]
    done = subprocess.run([*command, "rotate-ca", *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

    def phase() -> str:
        shown = subprocess.run([*command, "show", "-o", "json", *flags], capture_output=True, text=True, timeout=60)
        return str(json.loads(shown.stdout)["phase"])

    plane.wait(lambda: phase() == "Steady", timeout=120, why="the change of authority to end", every=1)


def bring_a_new_version_of_atelet(plane: ControlPlane) -> None:
    """As in an upgrade: it has no pods, because no node has its version, and it comes without our label."""
    path = f"{substrate.DAEMONSETS}/atelet-v2"
    plane.apply(substrate.ungated(substrate.atelet(plane, "v2")))
    plane.wait(lambda: GATE in template(plane, path)["nodeSelector"], why="the reconciler to gate it")
    assert template(plane, path)["nodeSelector"] == {GATE: "true", substrate.VERSION_LABEL: "v2"}


GATE = "ate.dev/atelet"


def template(plane: ControlPlane, path: str) -> Object:
    found: Object = plane.api.get(path)["spec"]["template"]["spec"]
    return found


def test_a_daemonset_that_has_pods_already_is_not_restarted_but_spoken_of(
    plane_under_audit: ControlPlane, installed: Installation
) -> None:
    plane, path = plane_under_audit, f"{substrate.DAEMONSETS}/atelet-v3"
    (node,) = plane.add_nodes(1, prefix="third", labels={substrate.VERSION_LABEL: "v3"})
    plane.apply(substrate.ungated(substrate.atelet(plane, "v3")))
    events = "/apis/events.k8s.io/v1/namespaces/ate-system/events"

    def said() -> list[str]:
        return [one["note"] for one in plane.api.list(events) if one["reason"] == "NotGated"]

    assert plane.wait(said, timeout=60, why="an Event about it") == [
        "it runs on 1 nodes without ate.dev/atelet in its nodeSelector: "
        "`ateplace migrate` adds it, and restarts no atelet"
    ]
    assert GATE not in template(plane, path)["nodeSelector"]
    plane.api.delete(path)
    plane.remove_nodes([node])


def pod_with(**fields: object) -> Object:
    return {"template": {"spec": fields}}


@pytest.mark.versions
@pytest.mark.parametrize(
    ("namespace", "spec", "message"),
    [
        pytest.param("ate-system", pod_with(nodeSelector={GATE: "true"}), "", id="our label"),
        pytest.param("kube-system", pod_with(nodeSelector={GATE: "true"}), "but atelet's", id="another namespace's"),
        pytest.param("ate-system", pod_with(nodeSelector={GATE: "x"}), "change no other key", id="another value"),
        pytest.param("ate-system", pod_with(nodeSelector={"a": "b"}), "change no other key", id="another key"),
        pytest.param("ate-system", pod_with(nodeSelector=None), "change no other key", id="removal"),
        pytest.param("ate-system", pod_with(hostPID=True), "nothing of a DaemonSet", id="a new field"),
        pytest.param("ate-system", pod_with(tolerations=None), "nothing of a DaemonSet", id="a field less"),
        pytest.param(
            "ate-system",
            {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}},
            "nothing of a DaemonSet",
            id="the update strategy",
        ),
        pytest.param(
            "ate-system",
            {"template": {"metadata": {"annotations": {"a": "b"}}}},
            "nothing of a DaemonSet",
            id="annotations",
        ),
    ],
)
def test_of_a_daemonset_the_reconciler_may_change_our_label_and_nothing_else(
    plane_under_audit: ControlPlane, installed: Installation, namespace: str, spec: Object, message: str
) -> None:
    plane = plane_under_audit
    (found,) = (one for one in yaml.safe_load_all(substrate.atelet(plane, "v4")) if one["kind"] == "DaemonSet")
    found["metadata"]["namespace"] = namespace
    del found["spec"]["template"]["spec"]["nodeSelector"][GATE]
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/atelet-v4"
    plane.apply([found])
    groups = ["system:serviceaccounts", "system:authenticated"]
    ours = connect(
        plane.kubeconfig_for(user="system:serviceaccount:ateplace-system:ateplace-reconciler", groups=groups)
    )
    try:
        if message:
            with pytest.raises(ApiError, match=message):
                ours.patch(path, {"spec": spec})
        else:
            ours.patch(path, {"spec": spec})
    finally:
        ours.close()
        plane.api.delete(path)


def test_a_pool_in_our_own_namespace_can_be_deleted(plane_under_audit: ControlPlane, installed: Installation) -> None:
    """Nobody should put one there, but its Deployment is not one of ours, and goes with it."""
    plane, ours = plane_under_audit, "ateplace-system"
    substrate.pool(plane, ours, "stray", 0)
    path = f"{substrate.POOLS.format(ours)}/stray"
    made = substrate.deployment_path(plane, ours, "stray")
    plane.wait(lambda: plane.api.exists(made), timeout=60, why="its Deployment")
    plane.wait(lambda: plane.api.get(path)["metadata"].get("finalizers"), timeout=60, why="our finalizer")
    substrate.delete(plane, ours, "stray")
    plane.wait(lambda: not plane.api.exists(path) and not plane.api.exists(made), timeout=60, why="both to be gone")
