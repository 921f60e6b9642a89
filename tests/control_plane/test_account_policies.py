"""What our ServiceAccounts may not do although RBAC, which cannot say it more narrowly, grants it.

What a placeholder may be is tried field by field in test_placeholder_policy.py.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pytest

from ateplace.local import ApiError, ControlPlane, substrate
from ateplace.local.api import Api, Object
from ateplace.local.kubeconfig import connect
from tests.deploying import SECOND_SCHEDULER, render
from tests.placeholders import placeholders_of

pytestmark = pytest.mark.versions

NAMESPACE = "agents"
DRY: Any = {"dryRun": "All"}


@pytest.fixture(scope="module")
def installed() -> Iterator[ControlPlane]:
    """The default installation as objects; none of its processes runs, so nothing is mutated or undone."""
    with ControlPlane(nodes=1) as plane:
        substrate.install(plane, controller=False)
        plane.apply([each for each in render(SECOND_SCHEDULER) if each["kind"] != "MutatingWebhookConfiguration"])
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        yield plane


def deployment(name: str, **metadata: object) -> Object:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "registry.example/c:1"}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name, **metadata}, "spec": spec}


@pytest.fixture
def accounts(installed: ControlPlane) -> Iterator[tuple[Api, Api]]:
    """The API as the reconciler and the extender may use it."""
    with ExitStack() as stack:
        leader, extender = (
            stack.enter_context(closing(connect(installed.kubeconfig_for(service_account=name))))
            for name in ("ateplace-system/ateplace-reconciler", "ateplace-system/ateplace-extender")
        )
        yield leader, extender


def refused(attempt: Callable[[], object], why: str) -> bool:
    try:
        attempt()
    except ApiError as error:
        return why in str(error)
    return False


def test_what_rbac_grants_too_much_is_refused_by_policies(installed: ControlPlane, accounts: tuple[Api, Api]) -> None:
    plane = installed
    leader, extender = accounts
    deployments = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    plane.api.post(deployments, deployment("theirs"))
    substrate.pool(plane, NAMESPACE, "mine", 0)
    pool = f"{substrate.POOLS.format(NAMESPACE)}/mine"
    node = "/api/v1/nodes/node-0000"
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "0-0"}
    secret = {"metadata": {"name": "another"}, "type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}}
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("may delete no Deployment but", lambda: leader.delete(f"{deployments}/theirs", **DRY)),
        ("may write no Deployment but", lambda: leader.post(deployments, deployment("more"), **DRY)),
        ("nothing of a WorkerPool but", lambda: leader.patch(pool, {"spec": {"replicas": 9}}, **DRY)),
        ("nothing of a WorkerPool but", lambda: leader.patch(pool, {"metadata": {"labels": {"a": "b"}}}, **DRY)),
        ("nothing of a WorkerPool but", lambda: leader.patch(pool, {"metadata": {"annotations": {"a": "b"}}}, **DRY)),
        ("nothing of a WorkerPool but", lambda: leader.patch(pool, {"metadata": {"ownerReferences": [owner]}}, **DRY)),
        (
            "nothing of a WorkerPool but",
            lambda: leader.patch(pool, {"metadata": {"finalizers": ["example.com/x"]}}, **DRY),
        ),
        ("no Secret but", lambda: leader.post("/api/v1/namespaces/ateplace-system/secrets", secret, **DRY)),
        ("Forbidden", lambda: leader.get("/api/v1/namespaces/kube-system/secrets")),
        ("Forbidden", lambda: leader.get("/api/v1/namespaces/ateplace-system/secrets")),
        ("Forbidden", lambda: extender.get("/api/v1/namespaces/ateplace-system/secrets/ateplace-ca")),
        ("Forbidden", lambda: extender.patch(f"{node}/status", {"status": {"phase": "x"}}, **DRY)),
    ]
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    label = {"ateplace.ate.dev/placeholder": "mine"}
    for name, labels, importance in (
        ("ordinary", {}, ""),
        ("labelled", label, ""),
        ("both", {**label, "ate.dev/worker-pool": "mine"}, "ateplace-placeholder"),
        ("placeholder", label, "ateplace-placeholder"),
    ):
        spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "registry.example/c:1"}]}
        spec |= {"priorityClassName": importance} if importance else {}
        plane.api.post(pods, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        if name != "placeholder":
            attempts.append(("no pod but placeholders", partial(extender.delete, f"{pods}/{name}", **DRY)))
        attempts.append(("no pod but an ateom that", partial(leader.delete, f"{pods}/{name}", **DRY)))
    attempts.append(("Forbidden", partial(extender.delete, pods, **DRY)))
    for who in (leader, extender):
        patches: list[tuple[str, Object]] = [
            ("no label of a Node but", {"metadata": {"labels": {"example.com/a": "b"}}}),
            ("no label of a Node but", {"metadata": {"labels": {"kubernetes.io/os": None}}}),
            ("no label of a Node but", {"metadata": {"labels": {"ate.dev/atelet": "false"}}}),
            ("no annotation of a Node but", {"metadata": {"annotations": {"example.com/a": "b"}}}),
            ("nothing else of a Node", {"spec": {"unschedulable": True}}),
            ("nothing else of a Node", {"metadata": {"finalizers": ["example.com/x"]}}),
        ]
        attempts += [(why, partial(who.patch, node, patch, **DRY)) for why, patch in patches]
    for why, attempt in attempts:
        plane.wait(partial(refused, attempt, why), why=why)  # a policy works a moment after it was written
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


ATEOM = {"ate.dev/worker-pool": "mine", "ate.dev/worker-pool-uid": "0-0"}


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("waiting", True), ("bound", False), ("alone", False), ("owned", False), ("no-uid", False), ("no-pool", False)],
)
def test_the_reconciler_may_delete_no_pod_but_an_ateom_that_was_never_bound_and_is_made_anew(
    installed: ControlPlane, accounts: tuple[Api, Api], name: str, allowed: bool
) -> None:
    there = f"/api/v1/namespaces/{NAMESPACE}/configmaps/kube-root-ca.crt"
    installed.wait(lambda: installed.api.exists(there), why="something that can own a pod")
    uid = installed.api.get(there)["metadata"]["uid"]
    owner: Object = {"apiVersion": "v1", "kind": "ConfigMap", "name": "kube-root-ca.crt", "uid": uid}
    owners = {"alone": [], "owned": [owner]}.get(name, [{**owner, "controller": True}])
    without = {"no-uid": "ate.dev/worker-pool-uid", "no-pool": "ate.dev/worker-pool"}.get(name)
    labels = {key: value for key, value in ATEOM.items() if key != without}
    meta = {"generateName": f"{name}-", "labels": labels, "ownerReferences": owners}
    spec = {
        "nodeName": "node-0000" if name == "bound" else "",
        "schedulerName": "nobody",
        "containers": [{"name": "c", "image": "registry.example/c:1"}],
    }
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    made = installed.api.post(pods, {"metadata": meta, "spec": spec})
    path = f"{pods}/{made['metadata']['name']}"
    if allowed:
        accounts[0].delete(path, **DRY)
    else:
        assert refused(lambda: accounts[0].delete(path, **DRY), "no pod but an ateom that")


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
    installed: ControlPlane, accounts: tuple[Api, Api]
) -> None:
    """Not even after somebody has made the Deployment look like a placeholder's, which it may delete."""
    leader, _ = accounts
    key = "ateplace.ate.dev/placeholder"
    installed.api.patch(SCHEDULER, {"metadata": {"labels": {key: "x"}}})
    try:
        with pytest.raises(ApiError, match="may not delete its own Deployments"):
            leader.delete(SCHEDULER, dryRun="All")
    finally:
        installed.api.patch(SCHEDULER, {"metadata": {"labels": {key: None}}})
    collection = SCHEDULER.rpartition("/")[0]
    impostor = deployment("ateplace-scheduler")
    impostor["spec"]["template"]["spec"]["serviceAccountName"] = "ateplace-scheduler"
    for body in (impostor, placeholders_of("web", "ateplace-system")):
        with pytest.raises(ApiError, match="no Deployment in its own namespace"):
            leader.post(collection, body, dryRun="All")


STATUS: Object = {
    "allocatedResources": {"cpu": "1"},
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [
        {"name": "c", "image": "i", "imageID": "i", "ready": True, "restartCount": 0, "state": {"running": {}}}
    ],
    "ephemeralContainerStatuses": [
        {"name": "e", "image": "i", "imageID": "i", "ready": True, "restartCount": 0, "state": {"running": {}}}
    ],
    "extendedResourceClaimStatus": {"resourceClaimName": "x", "requestMappings": []},
    "hostIP": "192.0.2.1",
    "hostIPs": [{"ip": "192.0.2.1"}],
    "initContainerStatuses": [{"name": "c", "image": "i", "imageID": "i", "ready": True, "restartCount": 0}],
    "message": "x",
    "nodeAllocatableResourceClaimStatuses": [
        {"resourceClaimName": "x", "containers": ["c"], "resources": {"cpu": "1"}}
    ],
    "observedGeneration": 9,
    "phase": "Failed",
    "podIP": "192.0.2.1",
    "podIPs": [{"ip": "192.0.2.1"}],
    "qosClass": "Guaranteed",
    "reason": "Evicted",
    "resize": "Proposed",
    "resourceClaimStatuses": [{"name": "x", "resourceClaimName": "y"}],
    "resources": {"requests": {"cpu": "1"}},
    "startTime": "2026-11-18T00:00:00Z",
    "volumeHealth": [{"name": "v", "healthConditions": [{"status": "Degraded", "reason": "x"}]}],
}
"""Every field of a pod's status but the nominated node, with something that is not there."""
METADATA: Object = {
    "annotations": {"a": "b"},
    "finalizers": ["example.com/x"],
    "labels": {"a": "b"},
    "ownerReferences": [POOL_OWNER],
}


@pytest.fixture
def waiting(installed: ControlPlane) -> Iterator[str]:
    """The status of an ateom that waits."""
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "registry.example/c:1"}]}
    installed.api.post(pods, {"metadata": {"name": "nominee", "labels": ATEOM}, "spec": spec})
    yield f"{pods}/nominee/status"
    installed.api.delete(f"{pods}/nominee", gracePeriodSeconds="0")


def test_of_a_waiting_ateoms_status_the_extender_may_write_the_nominated_node_and_nothing_else(
    installed: ControlPlane, accounts: tuple[Api, Api], waiting: str
) -> None:
    """A change that the API server drops by itself, for every client, is none."""
    _, extender = accounts
    schema = installed.api.get("/openapi/v3/api/v1")["components"]["schemas"]["io.k8s.api.core.v1.PodStatus"]
    fields = set(schema["properties"]) - {"nominatedNodeName"}
    assert fields <= STATUS.keys(), "each field is tried"
    attempts = [{"status": {name: STATUS[name]}} for name in sorted(fields)]
    attempts += [{"status": {name: STATUS[name], "nominatedNodeName": "node-0000"}} for name in sorted(fields)]
    attempts += [{"metadata": {name: value}} for name, value in METADATA.items()]
    taken = {"status": {"message": "x"}}  # in every version; some have fields that they drop
    installed.wait(lambda: refused(lambda: extender.patch(waiting, taken, **DRY), "ateplace may"), why="a policy")
    before = installed.api.get(waiting)
    denied = 0
    for attempt in attempts:
        try:
            made = extender.patch(waiting, attempt, **DRY)
        except ApiError as error:
            denied += "ateplace may change nothing" in str(error)
            continue
        made["status"].pop("nominatedNodeName", None)
        assert made["status"] == before["status"], attempt
        assert all(made["metadata"].get(name) == before["metadata"].get(name) for name in METADATA), attempt
    assert denied > len(attempts) / 2, "most are denied, not dropped"
    extender.patch(waiting, {"status": {"nominatedNodeName": "node-0000"}})
    assert installed.api.get(waiting)["status"]["nominatedNodeName"] == "node-0000"
    extender.patch(waiting, {"status": {"nominatedNodeName": None}})


@pytest.mark.parametrize("without", ["ate.dev/worker-pool", "ate.dev/worker-pool-uid"])
def test_the_extender_may_nominate_no_pod_but_an_ateom(
    installed: ControlPlane, accounts: tuple[Api, Api], without: str
) -> None:
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    labels = {key: value for key, value in ATEOM.items() if key != without}
    spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "registry.example/c:1"}]}
    made = installed.api.post(pods, {"metadata": {"generateName": "other-", "labels": labels}, "spec": spec})
    path = f"{pods}/{made['metadata']['name']}/status"
    attempt = {"status": {"nominatedNodeName": "node-0000"}}
    installed.wait(
        lambda: refused(lambda: accounts[1].patch(path, attempt, **DRY), "nominate no pod but"), why="the policy"
    )
