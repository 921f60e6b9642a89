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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from ateplace.cluster.records import PoolRecord
from ateplace.settings import Settings
from local import ApiError, ControlPlane, substrate
from local.api import Api, Object
from local.kubeconfig import connect
from local.pods import Installation
from reconciler.headroom import placeholder
from tests.deploying import ACCOUNT, ROLES, SECOND_SCHEDULER, assert_no_difference, of_kind, render

QUICK = {
    "reconciler__linger": 2,
    "certs__settle": 1,
    "serve__drain": 0,
    "extender__deadline": 8,
}
NAMESPACE = "agents"
LOOKING = "claim's outcome is unknown, looking"
"""What the extender says when it has given up on an answer."""


ACCOUNTS = (*ROLES, "scheduler")


class Grant(NamedTuple):
    """One verb on one kind of object; `namespace` and `name` are empty where all are meant. Also what was asked for."""

    role: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str

    def covers(self, request: "Grant") -> bool:
        return self[:4] == request[:4] and self.namespace in {"", request.namespace} and self.name in {"", request.name}


def unused(granted: set[Grant], requests: set[Grant]) -> list[Grant]:
    """Grants that nothing needed: a request is a use of the narrowest one that covers it, and of no other."""
    used = set()
    for request in requests:
        covering = [grant for grant in granted if grant.covers(request)]
        if covering:
            used.add(max(covering, key=lambda grant: (bool(grant.name), bool(grant.namespace))))
    return sorted(granted - used)


def test_a_request_is_a_use_of_the_narrowest_grant_only() -> None:
    every = Grant("reconciler", "get", "apps", "deployments", "", "")
    ours = every._replace(namespace="ateplace-system", name="ateplace-scheduler")
    theirs = every._replace(namespace="agents", name="web")
    assert unused({every, ours}, {ours}) == [every]
    assert unused({every, ours}, {theirs}) == [ours]
    assert unused({every, ours}, {ours, theirs}) == []
    assert unused({ours}, {ours._replace(namespace="agents")}) == [ours]


def grants() -> set[Grant]:
    """What the manifests give to our ServiceAccounts, verb by verb. Roles of Kubernetes' own, which the scheduler is
    bound to, are left out: a stock kube-scheduler is meant to have them whole, whatever our pods happen to need."""
    objects = render(SECOND_SCHEDULER)
    rules = {kind: of_kind(objects, kind) for kind in ("Role", "ClusterRole")}
    found = set()
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in of_kind(objects, kind).values():
            reference = binding["roleRef"]
            for subject in binding["subjects"]:
                role = subject["name"].removeprefix("ateplace-")
                assert role in ACCOUNTS
                for rule in rules[reference["kind"]].get(reference["name"], {"rules": []})["rules"]:
                    namespace = binding["metadata"].get("namespace", "")
                    found |= {
                        Grant(role, verb, group, resource, namespace, name)
                        for verb in rule["verbs"]
                        for group in rule["apiGroups"]
                        for resource in rule["resources"]
                        for name in rule.get("resourceNames", [""])
                    }
    return found


class WithoutStreamingLists(ControlPlane):
    """An API server as it was before it could stream lists; `pids` are those of the plane's processes."""

    def _spawn(self, name: str, argv: list[str], env: Mapping[str, str] | None = None) -> int:
        if name == "kube-apiserver":
            argv = [*argv, "--feature-gates=WatchList=false"]
        pid = super()._spawn(name, argv, env)
        self.pids: dict[str, int] = {**getattr(self, "pids", {}), name: pid}
        return pid


class Audit:
    """The audit log's entries about our ServiceAccounts."""

    def __init__(self, plane: ControlPlane) -> None:
        self._log = plane.log("audit")

    def entries(self) -> Iterator[tuple[str, dict[str, str], dict[str, object]]]:
        for line in self._log.read_text("utf-8").splitlines():
            if ACCOUNT in line:
                entry = json.loads(line)
                role = entry["user"]["username"].removeprefix(ACCOUNT)
                if role in ACCOUNTS:
                    yield role, entry.get("objectRef", {}), entry

    def requests(self) -> set[Grant]:
        """Everything that was asked for."""
        found = set()
        for role, what, entry in self.entries():
            verb, group, resource = str(entry["verb"]), what.get("apiGroup", ""), what.get("resource", "")
            subresource = what.get("subresource")
            resource = f"{resource}/{subresource}" if subresource else resource
            name = what.get("name", "") or _selected(str(entry["requestURI"]))
            found.add(Grant(role, verb, group, resource, what.get("namespace", ""), name))
        return found

    def refused(self) -> list[str]:
        return [
            f"{role}: {entry['verb']} {entry['requestURI']}"
            for role, _, entry in self.entries()
            if entry.get("responseStatus", {}).get("code") == 403  # type: ignore[attr-defined]
        ]


def _selected(uri: str) -> str:
    """The name in a list's or watch's field selector: resourceNames are checked against it."""
    marker = "fieldSelector=metadata.name%3D"
    return uri.partition(marker)[2].partition("&")[0] if marker in uri else ""


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
    plane_under_audit.wait(running.ready, timeout=90, why="ateplace to be ready")
    plane_under_audit.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    return running


def test_every_right_is_used_and_none_is_missing(
    plane_under_audit: WithoutStreamingLists, installed: Installation, tmp_path: Path
) -> None:
    """First in this file: the tests below make refusals of their own."""
    plane = plane_under_audit
    audit = Audit(plane)

    grow_and_shrink(plane)
    take_a_placeholders_room(plane)
    ask_for_a_pool_that_is_not_there(plane)
    say_the_same_again(plane)
    lose_a_pool(plane, installed)
    lose_an_answer(plane, installed, tmp_path)
    change_the_authority(plane)
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


def deployment(name: str, **metadata: object) -> Object:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "registry.example/c:1"}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name, **metadata}, "spec": spec}


@pytest.fixture
def accounts(plane_under_audit: ControlPlane, installed: Installation) -> Iterator[tuple[Api, Api]]:
    """The API as the reconciler and the extender may use it."""
    with ExitStack() as stack:
        leader, extender = (
            stack.enter_context(closing(connect(plane_under_audit.kubeconfig_for(service_account=name))))
            for name in ("ateplace-system/ateplace-reconciler", "ateplace-system/ateplace-extender")
        )
        yield leader, extender


def test_what_rbac_grants_too_much_is_refused_by_policies(
    plane_under_audit: ControlPlane, accounts: tuple[Api, Api]
) -> None:
    plane = plane_under_audit
    leader, extender = accounts
    deployments = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    plane.api.post(deployments, deployment("theirs"))
    substrate.pool(plane, NAMESPACE, "mine", 0)
    pool = f"{substrate.POOLS.format(NAMESPACE)}/mine"
    node = "/api/v1/nodes/node-0000"
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "0-0"}
    secret = {"metadata": {"name": "another"}, "type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}}
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("may delete no Deployment but", lambda: leader.delete(f"{deployments}/theirs")),
        ("may write no Deployment but", lambda: leader.post(deployments, deployment("more"))),
        ("nothing of a WorkerPool but", lambda: leader.patch(pool, {"spec": {"replicas": 9}})),
        ("nothing of a WorkerPool but", lambda: leader.patch(pool, {"metadata": {"labels": {"a": "b"}}})),
        ("nothing of a WorkerPool but", lambda: leader.patch(pool, {"metadata": {"annotations": {"a": "b"}}})),
        ("nothing of a WorkerPool but", lambda: leader.patch(pool, {"metadata": {"ownerReferences": [owner]}})),
        ("nothing of a WorkerPool but", lambda: leader.patch(pool, {"metadata": {"finalizers": ["example.com/x"]}})),
        ("no Secret but", lambda: leader.post("/api/v1/namespaces/ateplace-system/secrets", secret)),
        ("Forbidden", lambda: leader.get("/api/v1/namespaces/kube-system/secrets")),
        ("Forbidden", lambda: leader.get("/api/v1/namespaces/ateplace-system/secrets")),
        ("Forbidden", lambda: extender.get("/api/v1/namespaces/ateplace-system/secrets/ateplace-ca")),
        ("Forbidden", lambda: extender.patch(f"{node}/status", {"status": {"phase": "x"}})),
    ]
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    label = {"ateplace.ate.dev/placeholder": "mine"}
    for name, labels, importance in (
        ("ordinary", {}, ""),
        ("labelled", label, ""),
        ("unimportant", {}, "ateplace-placeholder"),
        ("both", {**label, "ate.dev/worker-pool": "mine"}, "ateplace-placeholder"),
        ("placeholder", label, "ateplace-placeholder"),
    ):
        spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "registry.example/c:1"}]}
        spec |= {"priorityClassName": importance} if importance else {}
        plane.api.post(pods, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        if name != "placeholder":
            attempts.append(("no pod but placeholders", partial(extender.delete, f"{pods}/{name}")))
        attempts.append(("Forbidden", partial(leader.delete, f"{pods}/{name}")))
    attempts.append(("Forbidden", partial(extender.delete, pods)))
    for who in (leader, extender):
        patches: list[tuple[str, Object]] = [
            ("no label of a Node but", {"metadata": {"labels": {"example.com/a": "b"}}}),
            ("no label of a Node but", {"metadata": {"labels": {"kubernetes.io/os": None}}}),
            ("no label of a Node but", {"metadata": {"labels": {"ate.dev/atelet": "false"}}}),
            ("no annotation of a Node but", {"metadata": {"annotations": {"example.com/a": "b"}}}),
            ("nothing else of a Node", {"spec": {"unschedulable": True}}),
            ("nothing else of a Node", {"metadata": {"finalizers": ["example.com/x"]}}),
        ]
        attempts += [(why, partial(who.patch, node, patch)) for why, patch in patches]
    for why, attempt in attempts:
        with pytest.raises(ApiError, match=why):
            attempt()
    claim = {"annotations": {"ate.dev/claim.0-0": ""}, "labels": {"ate.dev/atelet": "true"}}
    extender.patch(node, {"metadata": claim})
    extender.delete(f"{pods}/placeholder")
    leader.patch(node, {"metadata": {"annotations": {"ate.dev/claim.0-0": None}, "labels": {"ate.dev/atelet": None}}})


SCHEDULER = "/apis/apps/v1/namespaces/ateplace-system/deployments/ateplace-scheduler"
POOL_OWNER = {"apiVersion": "ate.dev/v1alpha1", "kind": "WorkerPool", "name": "x", "uid": "0-0"}
OTHER_CHANGES: list[Object] = [
    {"metadata": {"labels": {"ateplace.ate.dev/placeholder": "x"}}},
    {"metadata": {"annotations": {"example.com/a": "b"}}},
    {"metadata": {"ownerReferences": [POOL_OWNER]}},
    {"metadata": {"finalizers": ["example.com/x"]}},
    {"spec": {"replicas": 0}},
    {"spec": {"paused": True}},
    {"spec": {"minReadySeconds": 9}},
    {"spec": {"revisionHistoryLimit": 0}},
    {"spec": {"progressDeadlineSeconds": 900}},
    {"spec": {"strategy": {"type": "Recreate", "rollingUpdate": None}}},
    {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}},
    {"spec": {"template": {"metadata": {"annotations": {"example.com/a": "b"}}}}},
    {"spec": {"template": {"spec": {"serviceAccountName": "default"}}}},
]


@pytest.mark.parametrize("change", OTHER_CHANGES, ids=json.dumps)
def test_of_the_schedulers_deployment_the_reconciler_may_change_the_trust_mark_and_nothing_else(
    accounts: tuple[Api, Api], change: Object
) -> None:
    leader, _ = accounts
    with pytest.raises(ApiError, match="change nothing else of it"):
        leader.patch(SCHEDULER, change, dryRun="All")
    mark = {"metadata": {"annotations": {"ateplace.ate.dev/trusts": "another"}}}
    leader.patch(SCHEDULER, {"spec": {"template": mark}}, dryRun="All")


def test_the_reconciler_cannot_put_another_in_the_schedulers_place(
    plane_under_audit: ControlPlane, accounts: tuple[Api, Api]
) -> None:
    """Not even after somebody has made the Deployment look like a placeholder's, which it may delete."""
    leader, _ = accounts
    key = "ateplace.ate.dev/placeholder"
    plane_under_audit.api.patch(SCHEDULER, {"metadata": {"labels": {key: "x"}}})
    try:
        with pytest.raises(ApiError, match="may not delete its own Deployments"):
            leader.delete(SCHEDULER, dryRun="All")
    finally:
        plane_under_audit.api.patch(SCHEDULER, {"metadata": {"labels": {key: None}}})
    collection = SCHEDULER.rpartition("/")[0]
    impostor = deployment("ateplace-scheduler")
    impostor["spec"]["template"]["spec"]["serviceAccountName"] = "ateplace-scheduler"
    for body in (impostor, placeholders_of("web", "ateplace-system")):
        with pytest.raises(ApiError, match="no Deployment in its own namespace"):
            leader.post(collection, body, dryRun="All")


def placeholders_of(pool: str, namespace: str) -> Object:
    """The Deployment that the reconciler makes, with everything that it ever copies."""
    record = PoolRecord("u", namespace, pool, 1, deleting=False, finalizers=(), headroom="1", warm=True)
    shape = placeholder.Mould(
        requests=(("cpu", 100), ("memory", 1 << 26), ("example.com/kvm", 1)),
        ports=(("TCP", 9000),),
        image="registry.example/ateom:1",
        node_selector={"ate.dev/sandboxClass": "microvm"},
        tolerations=[{"operator": "Exists"}],
        affinity={"podAntiAffinity": {}},
        runtime_class="kata",
        service_account="default",
        pull_secrets=[{"name": "pull"}],
    )
    made: Object = json.loads(json.dumps(placeholder.deployment(record, shape, 0, Settings(), prepull=True)))
    return made


EXEC = {"exec": {"command": ["sh"]}}
VIOLATIONS: list[tuple[str, Object, str]] = [
    ("pod", {"nodeName": "node-0000"}, "no node of its choice"),
    ("pod", {"hostNetwork": True}, "nothing of the host's"),
    ("pod", {"hostPID": True}, "nothing of the host's"),
    ("pod", {"hostIPC": True}, "nothing of the host's"),
    ("pod", {"volumes": [{"name": "ateom", "hostPath": {"path": "/"}}]}, "nothing of the host's"),
    ("pod", {"volumes": [{"name": "ateom", "secret": {"secretName": "ateplace-ca"}}]}, "no volume but an image"),
    ("pod", {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}, "nothing of the host's"),
    ("pod", {"automountServiceAccountToken": True}, "no token"),
    ("pod", {"priorityClassName": "system-node-critical"}, "its priority class"),
    ("pod", {"initContainers": [{"name": "i", "image": "registry.example/i:1"}]}, "is one container"),
    ("pod", {"securityContext": None}, "a user who is nobody"),
    ("user", {"runAsNonRoot": None}, "a user who is nobody"),
    ("user", {"runAsUser": 0}, "a user who is nobody"),
    ("user", {"seccompProfile": {"type": "Unconfined"}}, "confined as the runtime does"),
    ("user", {"seccompProfile": None}, "confined as the runtime does"),
    ("user", {"appArmorProfile": {"type": "Unconfined"}}, "confined as the runtime does"),
    ("user", {"seLinuxOptions": {"type": "spc_t"}}, "confined as the runtime does"),
    ("user", {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}, "confined as the runtime does"),
    ("user", {"supplementalGroups": [0]}, "a user who is nobody"),
    ("container", {"command": ["sh"]}, "runs its image as it is"),
    ("container", {"args": ["sh"]}, "runs its image as it is"),
    ("container", {"env": [{"name": "A", "value": "b"}]}, "runs its image as it is"),
    ("container", {"envFrom": [{"secretRef": {"name": "s"}}]}, "runs its image as it is"),
    ("container", {"lifecycle": {"postStart": EXEC}}, "runs its image as it is"),
    ("container", {"livenessProbe": EXEC}, "runs its image as it is"),
    ("container", {"readinessProbe": EXEC}, "runs its image as it is"),
    ("container", {"startupProbe": EXEC}, "runs its image as it is"),
    ("rights", {"privileged": True, "allowPrivilegeEscalation": None}, "without privileges"),
    ("rights", {"allowPrivilegeEscalation": True}, "without privileges"),
    ("rights", {"allowPrivilegeEscalation": None}, "without privileges"),
    ("rights", {"readOnlyRootFilesystem": None}, "without privileges"),
    ("rights", {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}, "drops all capabilities"),
    ("rights", {"capabilities": {"drop": ["NET_RAW"]}}, "drops all capabilities"),
    ("rights", {"capabilities": None}, "drops all capabilities"),
    ("rights", {"runAsUser": 0}, "without privileges"),
    ("rights", {"runAsNonRoot": False}, "without privileges"),
    ("rights", {"seccompProfile": {"type": "Unconfined"}}, "without privileges"),
    ("rights", {"appArmorProfile": {"type": "Unconfined"}}, "without privileges"),
    ("rights", {"seLinuxOptions": {"type": "spc_t"}}, "without privileges"),
    ("labels", {"ate.dev/worker-pool": "web"}, "has its label"),
    ("annotations", {"container.apparmor.security.beta.kubernetes.io/placeholder": "unconfined"}, "no annotation but"),
]


@pytest.mark.parametrize(("where", "change", "message"), VIOLATIONS, ids=str)
def test_the_reconciler_may_write_a_placeholder_and_nothing_that_differs_from_one(
    accounts: tuple[Api, Api], where: str, change: Object, message: str
) -> None:
    leader, _ = accounts
    collection = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    good, bad = (placeholders_of("web", NAMESPACE) for _ in range(2))
    leader.post(collection, good, dryRun="All")
    template = bad["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    places = {
        "pod": pod,
        "user": pod["securityContext"],
        "container": container,
        "rights": container["securityContext"],
        "labels": template["metadata"]["labels"],
        "annotations": template["metadata"]["annotations"],
    }
    places[where].update(change)
    with pytest.raises(ApiError, match=message):
        leader.post(collection, bad, dryRun="All")


def test_a_pool_in_our_own_namespace_can_be_deleted(plane_under_audit: ControlPlane, installed: Installation) -> None:
    """Nobody should put one there, but its Deployment is not one of ours, and goes with it."""
    plane, ours = plane_under_audit, "ateplace-system"
    substrate.pool(plane, ours, "stray", 0)
    path = f"{substrate.POOLS.format(ours)}/stray"
    made = f"/apis/apps/v1/namespaces/{ours}/deployments/stray-deployment"
    plane.wait(lambda: plane.api.exists(made), timeout=60, why="its Deployment")
    plane.wait(lambda: plane.api.get(path)["metadata"].get("finalizers"), timeout=60, why="our finalizer")
    substrate.delete(plane, ours, "stray")
    plane.wait(lambda: not plane.api.exists(path) and not plane.api.exists(made), timeout=60, why="both to be gone")
