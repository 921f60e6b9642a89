"""A webhook in our place that is hostile: what it makes of ateoms, and what stops it (docs/security.md)."""

import base64
import contextlib
import copy
import json
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ateplace import names
from ateplace.certs import files
from ateplace.certs.authority import Use, Wanted, issue, make_authority
from ateplace.local import ApiError, ControlPlane, substrate, webhooks
from ateplace.local.api import Object

WORSE: list[Object] = [
    {"op": "add", "path": "/spec/volumes/-", "value": {"name": "host", "hostPath": {"path": "/"}}},
    {
        "op": "add",
        "path": "/spec/containers/-",
        "value": {
            "name": "worse",
            "image": "registry.example/worse:1",
            "securityContext": {"privileged": True, "runAsUser": 0},
            "resources": {"requests": {"cpu": "2"}},
            "volumeMounts": [{"name": "host", "mountPath": "/host"}],
        },
    },
]
SEEN = "test.ateplace.ate.dev/hostile"
ATEOM = {names.POOL_LABEL: "pool"}


class Handler(BaseHTTPRequestHandler):
    """Makes everything that it is shown worse."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        patch = base64.b64encode(json.dumps(WORSE).encode()).decode()
        response = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
        body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@pytest.fixture(scope="module")
def hostile(plane: ControlPlane) -> Iterator[None]:
    """Registered as ours is, but for namespaces with a label of this module's."""
    authority = make_authority(datetime.now(UTC), 1)
    pair = issue(authority, Wanted(Use.SERVER, ("localhost",), ("127.0.0.1",)), datetime.now(UTC), 1)
    directory = plane.directory / "hostile-webhook"
    files.project(directory, {"tls.crt": pair.certificate, "tls.key": pair.key})
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (shipped,) = webhooks.manifests("webhook-configuration.yaml")
    made = copy.deepcopy(shipped)
    made["metadata"]["name"] = "hostile"
    (entry,) = made["webhooks"]
    bundle = base64.b64encode(authority.certificate).decode()
    entry["clientConfig"] = {"url": f"https://127.0.0.1:{server.server_address[1]}/mutate", "caBundle": bundle}
    entry["namespaceSelector"]["matchLabels"] = {SEEN: "true"}
    substrate.install(plane, controller=False)
    webhooks.install_access(plane)
    plane.api.post(webhooks.CONFIGURATIONS, made)
    yield
    plane.api.delete(f"{webhooks.CONFIGURATIONS}/hostile")
    server.shutdown()
    server.server_close()


def pod(labels: dict[str, str]) -> Object:
    """With a volume, as an ateom has one: a patch is of what is there."""
    container = {"name": "c", "image": "registry.example/c:1", "resources": {"requests": {"cpu": "100m"}}}
    spec = {"containers": [container], "volumes": [{"name": "run", "emptyDir": {}}]}
    return {"metadata": {"generateName": "p-", "labels": labels}, "spec": spec}


def create(plane: ControlPlane, namespace: str, labels: dict[str, str]) -> Object:
    return plane.api.post(f"/api/v1/namespaces/{namespace}/pods", pod(labels), dryRun="All")


def is_worse(made: Object) -> bool:
    return [one["name"] for one in made["spec"]["containers"]] == ["c", "worse"]


@pytest.fixture
def seen(plane: ControlPlane, hostile: None, namespace: str) -> str:
    """A namespace whose ateoms the webhook is shown, once API servers do so."""
    plane.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {SEEN: "true"}}})
    plane.wait(lambda: is_worse(create(plane, namespace, ATEOM)), why="the webhook to be asked")
    return namespace


def test_what_it_adds_to_an_ateom_is_privileged_and_has_the_hosts_files(plane: ControlPlane, seen: str) -> None:
    made = create(plane, seen, ATEOM)
    assert made["spec"]["containers"][1]["securityContext"]["privileged"]
    assert {"name": "host", "hostPath": {"path": "/", "type": ""}} in made["spec"]["volumes"]


def test_it_is_shown_no_pod_but_ateoms_and_none_after_its_creation(plane: ControlPlane, seen: str) -> None:
    assert not is_worse(create(plane, seen, {"app": "web"}))
    path = f"/api/v1/namespaces/{seen}/pods"
    other = plane.api.post(path, pod({"app": "web"}))
    later = plane.api.patch(f"{path}/{other['metadata']['name']}", {"metadata": {"labels": ATEOM}}, dryRun="All")
    assert not is_worse(later), "a pod that becomes an ateom"


@pytest.mark.parametrize("where", ["kube-system", names.NAMESPACE])
def test_it_is_shown_nothing_of_the_systems_or_ours(plane: ControlPlane, seen: str, where: str) -> None:
    path = f"/api/v1/namespaces/{where}"
    plane.wait(lambda: plane.api.exists(f"{path}/serviceaccounts/default"), why="a ServiceAccount")
    plane.api.patch(path, {"metadata": {"labels": {SEEN: "true"}}})
    try:
        with contextlib.suppress(ApiError):  # Pod Security has its say in ours
            assert not is_worse(create(plane, where, ATEOM))
    finally:
        plane.api.patch(path, {"metadata": {"labels": {SEEN: None}}})


POLICY = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "ateoms-images"},
    "spec": {
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {SEEN: "true"}},
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ],
        },
        "validations": [
            {
                "expression": "object.spec.containers.all(c, c.image == 'registry.example/c:1')",
                "message": "an ateom runs its own image",
            }
        ],
    },
}
BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "ateoms-images"},
    "spec": {"policyName": "ateoms-images", "validationActions": ["Deny"]},
}


def refusal(plane: ControlPlane, namespace: str) -> str:
    """Why an ateom may not be; empty when it may."""
    try:
        create(plane, namespace, ATEOM)
    except ApiError as error:
        return error.body
    return ""


def stopped(plane: ControlPlane, namespace: str, words: str) -> None:
    plane.wait(lambda: words in refusal(plane, namespace), why=words)


def test_a_validating_policy_of_the_clusters_holds_against_it(plane: ControlPlane, seen: str) -> None:
    plane.apply([POLICY, BINDING])
    try:
        stopped(plane, seen, "an ateom runs its own image")
    finally:
        group = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpol"
        plane.api.delete(f"{group}icybindings/ateoms-images")
        plane.api.delete(f"{group}icies/ateoms-images")
        plane.wait(lambda: refusal(plane, seen) == "", why="the policy to be forgotten")


def test_pod_security_holds_against_it(plane: ControlPlane, seen: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    plane.api.patch(f"/api/v1/namespaces/{seen}", {"metadata": {"labels": labels}})
    stopped(plane, seen, "violates PodSecurity")


def test_a_quota_counts_what_it_adds(plane: ControlPlane, seen: str) -> None:
    hard: dict[str, Any] = {"spec": {"hard": {"requests.cpu": "1"}}}
    plane.api.post(f"/api/v1/namespaces/{seen}/resourcequotas", {"metadata": {"name": "one"}, **hard})
    stopped(plane, seen, "exceeded quota")
