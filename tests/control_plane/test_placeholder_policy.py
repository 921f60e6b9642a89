"""What the reconciler may write as a placeholder, field by field, on the API server.

The good Deployment comes from `reconciler/headroom/placeholder.py`; each case changes one field of it.
"""

import copy
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from ateplace.cli.doctor.versions import minor
from ateplace.local import ApiError, ControlPlane, substrate, webhooks
from ateplace.local.api import Api, Object
from ateplace.local.kubeconfig import connect
from ateplace.local.versions import chosen
from tests.placeholders import placeholders_of

pytestmark = pytest.mark.versions

SYSTEM = ["kube-system", "kube-public", "kube-node-lease"]
EXEC = {"exec": {"command": ["sh"]}}
OWNER = {"apiVersion": "ate.dev/v1alpha1", "kind": "WorkerPool", "name": "web", "uid": "u", "controller": True}
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "0-0"}


@pytest.fixture(scope="module")
def leader(plane: ControlPlane) -> Iterator[Api]:
    """The API as the reconciler may use it, once its policy works."""
    access = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
    wanted = [each for each in webhooks.manifests("namespace.yaml") if each["kind"] == "Namespace"]
    wanted += [each for each in webhooks.manifests("reconciler.yaml") if each["kind"] in access]
    plane.apply([*wanted, *webhooks.manifests("headroom-policy.yaml")])
    with closing(connect(plane.kubeconfig_for(service_account="ateplace-system/ateplace-reconciler"))) as api:
        body = placeholders_of("web", "default")
        body["spec"]["template"]["spec"]["hostNetwork"] = True
        plane.wait(lambda: "nothing of the host's" in refusal(api, "default", body), why="the policy to work")
        yield api
    plane.kubectl("delete", "-f", str(webhooks.BASE / "headroom-policy.yaml"))


def write(api: Api, namespace: str, body: Object) -> Object:
    return api.post(f"/apis/apps/v1/namespaces/{namespace}/deployments", body, dryRun="All")


def refusal(api: Api, namespace: str, body: Object) -> str:
    """Why it may not be written; empty when it may."""
    try:
        write(api, namespace, body)
    except ApiError as error:
        return error.body
    return ""


def parts(deployment: Object) -> dict[str, Any]:
    """The levels of a Deployment that the policy looks at."""
    template = deployment["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    volumes = {"mount": container["volumeMounts"][0], "volume": pod["volumes"][0]} if "volumes" in pod else {}
    return {
        "metadata": deployment["metadata"],
        "labels of the Deployment": deployment["metadata"]["labels"],
        "template": template["metadata"],
        "labels": template["metadata"]["labels"],
        "annotations": template["metadata"]["annotations"],
        "pod": pod,
        "user": pod["securityContext"],
        "container": container,
        "rights": container["securityContext"],
        "resources": container["resources"],
        **volumes,
    }


HOST = "nothing of the host's"
ONE = "runs its image as it is, without ports"
USER = "runs as an unprivileged user"
RIGHTS = "without privileges"
OWNED = "controlled by the WorkerPool that its labels name, and by nothing else"
LABELS = "has its three labels and no other"

VIOLATIONS: list[tuple[str, str, Any, str]] = [
    ("metadata", "ownerReferences", None, OWNED),
    ("metadata", "ownerReferences", [], OWNED),
    ("metadata", "ownerReferences", [CONFIG_MAP], OWNED),
    ("metadata", "ownerReferences", [OWNER, CONFIG_MAP], OWNED),
    ("metadata", "ownerReferences", [{**OWNER, "controller": False}], OWNED),
    ("metadata", "ownerReferences", [{**OWNER, "apiVersion": "example.com/v1"}], OWNED),
    ("metadata", "ownerReferences", [{**OWNER, "kind": "Pool"}], OWNED),
    ("metadata", "ownerReferences", [{**OWNER, "name": "other"}], OWNED),
    ("metadata", "ownerReferences", [{**OWNER, "uid": "other"}], OWNED),
    ("metadata", "name", "web", "no Deployment but those of its placeholders"),
    ("labels of the Deployment", "ateplace.ate.dev/placeholder", None, "no Deployment but those of its placeholders"),
    ("labels of the Deployment", "ateplace.ate.dev/placeholder", "x", "no Deployment but those of its placeholders"),
    ("labels of the Deployment", "ate.dev/worker-pool-uid", None, "no Deployment but those of its placeholders"),
    ("labels of the Deployment", "ate.dev/worker-pool-uid", "x", "no Deployment but those of its placeholders"),
    ("template", "finalizers", ["example.com/x"], "no annotation but"),
    ("labels", "k8s-app", "kube-dns", LABELS),
    ("labels", "ate.dev/worker-pool", "web", LABELS),
    ("labels", "app.kubernetes.io/managed-by", "x", LABELS),
    ("labels", "app.kubernetes.io/managed-by", None, LABELS),
    ("annotations", "container.apparmor.security.beta.kubernetes.io/placeholder", "unconfined", "no annotation but"),
    ("pod", "dnsConfig", {"nameservers": ["192.0.2.1"]}, HOST),
    ("pod", "hostAliases", [{"ip": "192.0.2.1", "hostnames": ["kubernetes.default"]}], HOST),
    ("pod", "hostIPC", True, HOST),
    ("pod", "hostNetwork", True, HOST),
    ("pod", "hostPID", True, HOST),
    ("pod", "hostUsers", False, HOST),
    ("pod", "hostname", "kube-dns", HOST),
    ("pod", "hostnameOverride", "kube-dns", HOST),
    ("pod", "imagePullSecrets", [{"name": "pull"}], HOST),
    ("pod", "initContainers", [{"name": "i", "image": "registry.example/i:1"}], HOST),
    ("pod", "nodeName", "node-0000", HOST),
    ("pod", "os", {"name": "linux"}, HOST),
    ("pod", "overhead", {"cpu": "1"}, HOST),
    ("pod", "preemptionPolicy", "Never", HOST),
    ("pod", "priority", -10, HOST),
    ("pod", "priorityClassName", "system-node-critical", "its priority class"),
    ("pod", "priorityClassName", "ateplace-ateom", "its priority class"),
    ("pod", "priorityClassName", None, "its priority class"),
    ("pod", "automountServiceAccountToken", True, "no token"),
    ("pod", "automountServiceAccountToken", None, "no token"),
    ("pod", "readinessGates", [{"conditionType": "example.com/x"}], HOST),
    ("pod", "resourceClaims", [{"name": "gpu", "resourceClaimName": "gpu"}], HOST),
    ("pod", "resources", {"limits": {"cpu": "9"}}, HOST),
    ("pod", "schedulingGates", [{"name": "example.com/x"}], HOST),
    ("pod", "serviceAccount", "ateplace-reconciler", HOST),
    ("pod", "serviceAccountName", "ateplace-reconciler", HOST),
    ("pod", "setHostnameAsFQDN", True, HOST),
    ("pod", "shareProcessNamespace", True, HOST),
    ("pod", "subdomain", "kube-dns", HOST),
    ("pod", "securityContext", None, USER),
    ("volume", "image", None, HOST),
    ("user", "appArmorProfile", {"type": "Unconfined"}, USER),
    ("user", "fsGroup", 0, USER),
    ("user", "fsGroupChangePolicy", "OnRootMismatch", USER),
    ("user", "runAsGroup", 0, USER),
    ("user", "runAsNonRoot", None, USER),
    ("user", "runAsUser", 0, USER),
    ("user", "seLinuxChangePolicy", "Recursive", USER),
    ("user", "seLinuxOptions", {"type": "spc_t"}, USER),
    ("user", "seccompProfile", {"type": "Unconfined"}, USER),
    ("user", "seccompProfile", {"type": "Localhost", "localhostProfile": "x"}, USER),
    ("user", "seccompProfile", None, USER),
    ("user", "supplementalGroups", [0], USER),
    ("user", "supplementalGroupsPolicy", "Merge", USER),
    ("user", "sysctls", [{"name": "kernel.shm_rmid_forced", "value": "1"}], USER),
    ("user", "windowsOptions", {"hostProcess": False}, USER),
    ("container", "args", ["sh"], ONE),
    ("container", "command", ["sh"], ONE),
    ("container", "env", [{"name": "A", "value": "b"}], ONE),
    ("container", "envFrom", [{"secretRef": {"name": "s"}}], ONE),
    ("container", "lifecycle", {"postStart": EXEC}, ONE),
    ("container", "livenessProbe", EXEC, ONE),
    ("container", "ports", [{"containerPort": 53}], ONE),
    ("container", "ports", [{"containerPort": 53, "hostPort": 53, "protocol": "UDP"}], ONE),
    ("container", "readinessProbe", EXEC, ONE),
    ("container", "resizePolicy", [{"resourceName": "cpu", "restartPolicy": "NotRequired"}], ONE),
    ("container", "restartPolicy", "Always", ONE),
    ("container", "startupProbe", EXEC, ONE),
    ("container", "stdin", True, ONE),
    ("container", "stdinOnce", True, ONE),
    ("container", "terminationMessagePath", "/x", ONE),
    ("container", "tty", True, ONE),
    ("container", "workingDir", "/ateom", ONE),
    ("container", "securityContext", None, RIGHTS),
    ("mount", "mountPropagation", "HostToContainer", ONE),
    ("mount", "readOnly", None, ONE),
    ("mount", "recursiveReadOnly", "IfPossible", ONE),
    ("mount", "subPath", "x", ONE),
    ("mount", "subPathExpr", "x", ONE),
    ("rights", "allowPrivilegeEscalation", True, RIGHTS),
    ("rights", "allowPrivilegeEscalation", None, RIGHTS),
    ("rights", "appArmorProfile", {"type": "Unconfined"}, RIGHTS),
    ("rights", "capabilities", {"drop": ["ALL"], "add": ["SYS_ADMIN"]}, RIGHTS),
    ("rights", "capabilities", {"drop": ["NET_RAW"]}, RIGHTS),
    ("rights", "capabilities", None, RIGHTS),
    ("rights", "procMount", "Default", RIGHTS),
    ("rights", "readOnlyRootFilesystem", None, RIGHTS),
    ("rights", "runAsGroup", 0, RIGHTS),
    ("rights", "runAsNonRoot", False, RIGHTS),
    ("rights", "runAsUser", 0, RIGHTS),
    ("rights", "seLinuxOptions", {"type": "spc_t"}, RIGHTS),
    ("rights", "seccompProfile", {"type": "Unconfined"}, RIGHTS),
    ("rights", "windowsOptions", {"hostProcess": False}, RIGHTS),
]
TAKEN_SINCE = {
    ("pod", "hostnameOverride"): (1, 35),
    ("pod", "resourceClaims"): (1, 34),
    ("pod", "resources"): (1, 34),
    ("container", "restartPolicy"): (1, 35),
}
"""Before, Kubernetes itself drops or refuses it."""
HARMLESS = {
    ("pod", "dnsPolicy"),
    ("pod", "restartPolicy"),
    ("container", "terminationMessagePolicy"),
}
"""What the API server fills in, with values that give a pause container nothing."""
REFUSED_BY_KUBERNETES: dict[tuple[str, str], Any] = {
    ("pod", "activeDeadlineSeconds"): 9,
    ("pod", "ephemeralContainers"): [{"name": "e", "image": "registry.example/e:1"}],
    ("pod", "evictionResponders"): [{"name": "example.com/x", "priority": 10000}],
    ("pod", "schedulingGroup"): {"podGroupName": "x"},
    ("pod", "workloadRef"): {"name": "x", "podGroup": "x"},
    ("container", "restartPolicyRules"): [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}],
    ("container", "volumeDevices"): [{"name": "ateom", "devicePath": "/dev/x"}],
    ("mount", "bindMountOptions"): ["noexec"],
    ("resources", "claims"): [{"name": "gpu"}],
    ("rights", "privileged"): True,
}
VOLUMES: list[Object] = [
    {"hostPath": {"path": "/"}},
    {"secret": {"secretName": "s"}},
    {"configMap": {"name": "c"}},
    {"emptyDir": {}},
    {"persistentVolumeClaim": {"claimName": "c"}},
    {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
    {"csi": {"driver": "example.com"}},
    {"nfs": {"server": "192.0.2.1", "path": "/"}},
]
SHAPES = {
    "pod": "io.k8s.api.core.v1.PodSpec",
    "user": "io.k8s.api.core.v1.PodSecurityContext",
    "container": "io.k8s.api.core.v1.Container",
    "rights": "io.k8s.api.core.v1.SecurityContext",
    "resources": "io.k8s.api.core.v1.ResourceRequirements",
    "mount": "io.k8s.api.core.v1.VolumeMount",
}
"""The API server's own names for the levels of a pod template."""


@pytest.fixture(scope="module")
def known(plane: ControlPlane) -> dict[str, set[str]]:
    """The fields that the API server knows, by level of a pod template."""
    schemas = plane.api.get("/openapi/v3/apis/apps/v1")["components"]["schemas"]
    return {where: set(schemas[shape]["properties"]) for where, shape in SHAPES.items()}


def changed(where: str, field: str, value: Any) -> Object:
    """The good Deployment with one field set, or taken away (None)."""
    made = placeholders_of("web", "default")
    if where not in parts(made):
        pytest.skip("a placeholder has no volume here")
    part = parts(made)[where]
    part[field] = value
    if value is None:
        del part[field]
    return made


@pytest.mark.parametrize(("where", "field", "value", "message"), VIOLATIONS, ids=json.dumps)
def test_the_reconciler_may_write_a_placeholder_and_nothing_that_differs_from_one(  # noqa: PLR0917 - fixtures
    leader: Api, known: dict[str, set[str]], where: str, field: str, value: Any, message: str
) -> None:
    if field not in known.get(where, {field}):
        pytest.skip("this version of Kubernetes does not know the field, and drops it")
    body = changed(where, field, value)
    said = refusal(leader, "default", body)
    if (minor(chosen().kubernetes) or ()) < TAKEN_SINCE.get((where, field), ()):
        assert said or field not in parts(write(leader, "default", body))[where]
    else:
        assert message in said


def test_the_placeholder_that_we_make_may_be_written(leader: Api) -> None:
    write(leader, "default", placeholders_of("web", "default"))


@pytest.mark.parametrize("volume", VOLUMES, ids=json.dumps)
def test_a_placeholder_has_no_volume_but_an_image(leader: Api, volume: Object) -> None:
    made = placeholders_of("web", "default")
    made["spec"]["template"]["spec"]["volumes"] = [{"name": "ateom", **volume}]
    assert "no volume but an image" in refusal(leader, "default", made)


@pytest.mark.parametrize("namespace", SYSTEM)
def test_no_placeholder_is_written_where_the_systems_own_services_select_pods(leader: Api, namespace: str) -> None:
    assert "in a namespace of the system's" in refusal(leader, namespace, placeholders_of("web", namespace))


def test_two_containers_are_refused(leader: Api) -> None:
    made = placeholders_of("web", "default")
    containers = made["spec"]["template"]["spec"]["containers"]
    containers.append({**copy.deepcopy(containers[0]), "name": "second"})
    assert "is one container" in refusal(leader, "default", made)


def test_an_update_is_held_to_the_same_rules(plane: ControlPlane, leader: Api, namespace: str) -> None:
    """Also one of a Deployment that was written before the rules were."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    substrate.install(plane, controller=False)
    uid = substrate.pool(plane, namespace, "web", 0)["metadata"]["uid"]
    good, old = (placeholders_of("web", namespace, uid) for _ in range(2))
    old["metadata"]["ownerReferences"][0].pop("controller")
    old["spec"]["template"]["spec"]["imagePullSecrets"] = [{"name": "pull"}]
    found = plane.api.post(path, old)
    del found["metadata"]["resourceVersion"]  # controllers write its status meanwhile

    def put(meta: Object, spec: Object) -> None:
        leader.put(
            f"{path}/{found['metadata']['name']}",
            {**found, "metadata": found["metadata"] | meta, "spec": spec},
            dryRun="All",
        )

    owners = {"ownerReferences": good["metadata"]["ownerReferences"]}
    with pytest.raises(ApiError, match="nothing of the host's"):
        put(owners, found["spec"] | {"replicas": 3})
    with pytest.raises(ApiError, match="controlled by the WorkerPool"):
        put({}, good["spec"])
    put(owners, good["spec"])


def test_every_field_that_the_api_server_knows_is_made_by_us_or_tried_above(known: dict[str, set[str]]) -> None:
    """A field of a later Kubernetes fails here, and is refused by the policy until it is named there."""
    made = parts(placeholders_of("web", "default", prepull=True))
    tried = {(where, field) for where, field, _, _ in VIOLATIONS}
    unknown = {
        (where, field)
        for where in SHAPES
        if where in made
        for field in known[where]
        if field not in made[where] and (where, field) not in tried | HARMLESS | set(REFUSED_BY_KUBERNETES)
    }
    assert unknown == set()


@pytest.mark.parametrize(("where", "field"), REFUSED_BY_KUBERNETES, ids=str)
def test_what_kubernetes_itself_refuses_in_a_deployment(leader: Api, where: str, field: str) -> None:
    """Or drops, because its feature is off; were it taken one day, the policy refuses it, as it does every other."""
    body = changed(where, field, REFUSED_BY_KUBERNETES[where, field])
    if not refusal(leader, "default", body):
        assert field not in parts(write(leader, "default", body))[where]
