"""Our PriorityClasses are for ateoms and placeholders: what other pods may name, on the API server."""

from collections.abc import Iterator

import pytest

from ateplace import names
from ateplace.local import ApiError, ControlPlane, substrate, webhooks
from ateplace.local.api import Object
from ateplace.local.webhooks import Webhook

pytestmark = pytest.mark.versions

ATEOM = names.ATEOM_PRIORITY_CLASS
PLACEHOLDER = names.PLACEHOLDER_PRIORITY_CLASS
POOL = {names.POOL_LABEL: "pool"}
WITH_UID = {**POOL, names.POOL_UID_LABEL: "a"}


@pytest.fixture(scope="module", autouse=True)
def policy(plane: ControlPlane) -> Iterator[None]:
    substrate.install(plane, controller=False)
    webhooks.install_access(plane)
    plane.apply(webhooks.BASE / "priority-policy.yaml")
    plane.wait(lambda: "is for ateoms" in refusal(plane, "default", pod(ATEOM)), why="the policy to work")
    yield
    plane.kubectl("delete", "-f", str(webhooks.BASE / "priority-policy.yaml"))


def pod(importance: str, labels: dict[str, str] | None = None, *, mirror: bool = False) -> Object:
    spec: Object = {"priorityClassName": importance, "containers": [{"name": "c", "image": "registry.example/c:1"}]}
    metadata: Object = {"name": "p", "labels": labels or {}}
    if mirror:
        metadata["annotations"] = {"kubernetes.io/config.mirror": "x"}
        spec |= {"nodeName": "n", "tolerations": [{"operator": "Exists"}]}
    return {"metadata": metadata, "spec": spec}


def refusal(plane: ControlPlane, namespace: str, body: Object) -> str:
    """Why the pod may not be; empty when it may."""
    try:
        plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body, dryRun="All")
    except ApiError as error:
        return error.body
    return ""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (pod(ATEOM), "is for ateoms"),
        (pod(ATEOM, {"app": "web"}), "is for ateoms"),
        (pod(ATEOM, POOL), "is for ateoms"),
        (pod(ATEOM, {names.POOL_UID_LABEL: "a"}), "is for ateoms"),
        (pod(ATEOM, {names.PLACEHOLDER_LABEL: "pool"}), "is for ateoms"),
        (pod(ATEOM, WITH_UID, mirror=True), "is for ateoms"),
        (pod(PLACEHOLDER), "is for placeholders"),
        (pod(PLACEHOLDER, WITH_UID), "is for placeholders"),
        (pod(PLACEHOLDER, {names.PLACEHOLDER_LABEL: "pool"}, mirror=True), "is for placeholders"),
    ],
    ids=str,
)
def test_a_pod_that_is_not_ours_does_not_get_our_class(
    plane: ControlPlane, namespace: str, body: Object, message: str
) -> None:
    assert message in refusal(plane, namespace, body)


@pytest.mark.parametrize(
    "body",
    [
        pod(ATEOM, WITH_UID),
        pod(PLACEHOLDER, {names.PLACEHOLDER_LABEL: "pool"}),
        pod("system-node-critical"),
        pod(""),
        pod("", mirror=True),
    ],
    ids=str,
)
def test_other_pods_are_not_looked_at(plane: ControlPlane, body: Object) -> None:
    assert refusal(plane, "kube-system", body) == ""


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Webhook]:
    with webhooks.webhook(plane) as webhook:
        yield webhook


def test_an_ateom_gets_our_class_and_its_uid_before_the_policy_is_asked(
    plane: ControlPlane, namespace: str, running: Webhook
) -> None:
    """Whether it names no class or ours; a forged UID is the pool's own by then."""
    webhooks.select(plane, namespace, running)
    uid = substrate.pool(plane, namespace, "pool")["metadata"]["uid"]
    for body in (pod("", POOL), pod(ATEOM, POOL), pod(ATEOM, WITH_UID)):
        made = plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body, dryRun="All")
        assert made["spec"]["priorityClassName"] == ATEOM
        assert made["metadata"]["labels"][names.POOL_UID_LABEL] == uid


def test_another_class_in_the_settings_is_nobodys_business(plane: ControlPlane, namespace: str) -> None:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    plane.apply([{**kind, "metadata": {"name": "gold"}, "value": 2000}])
    try:
        with webhooks.webhook(plane, webhook__priority_class="gold") as webhook:
            webhooks.select(plane, namespace, webhook)
            substrate.pool(plane, namespace, "pool")
            plane.wait(lambda: refusal(plane, namespace, pod("", POOL)) == "", why="the class to be known")
            made = plane.api.post(f"/api/v1/namespaces/{namespace}/pods", pod("", POOL), dryRun="All")
            assert made["spec"]["priorityClassName"] == "gold"
            assert refusal(plane, namespace, pod("gold")) == ""
    finally:
        plane.api.delete("/apis/scheduling.k8s.io/v1/priorityclasses/gold")
