"""The webhook behind a real API server: what pods come out of admission with."""

import contextlib
import copy
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ateplace import names
from ateplace.local import ApiError, ControlPlane, substrate, webhooks
from ateplace.local.api import Object
from ateplace.local.webhooks import Webhook
from ateplace.settings import Substrate
from ateplace.settings import Webhook as WebhookSettings
from ateplace.webhook import wait_container
from tests import placing
from tests.control_plane.random_pods import random_pod

pytestmark = pytest.mark.versions

OURS = wait_container.container(WebhookSettings(), Substrate())
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Webhook]:
    substrate.install(plane, controller=False)
    webhooks.install_access(plane)
    with webhooks.webhook(plane) as webhook:
        yield webhook
        assert "Traceback" not in webhook.log()


@pytest.fixture
def seen(plane: ControlPlane, namespace: str, running: Webhook) -> str:
    """A namespace whose pods the webhook sees."""
    webhooks.select(plane, namespace, running)
    return namespace


@pytest.fixture
def pool_uid(plane: ControlPlane, seen: str) -> str:
    uid: str = substrate.pool(plane, seen, "pool")["metadata"]["uid"]
    return uid


@pytest.fixture
def priority_class(plane: ControlPlane) -> Iterator[Callable[..., None]]:
    made = []

    def make(name: str, value: int, **fields: Any) -> None:
        placing.priority_class(plane, name, value, **fields)
        made.append(name)

    yield make
    for name in made:
        plane.api.delete(f"{CLASSES}/{name}")


def pod(name: str = "ateom", *, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    labels = {names.POOL_LABEL: "pool"} if labels is None else labels
    container = {"name": "ateom", "image": "registry.example/ateom:1"}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container], **spec}}


def create(plane: ControlPlane, namespace: str, body: Object, *, dry: bool = False) -> Object:
    query = {"dryRun": "All"} if dry else {}
    return plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body, **query)


def refusal(plane: ControlPlane, namespace: str, body: Object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        create(plane, namespace, body)
    return caught.value


def is_ours(container: Object) -> bool:
    """Whether the API server stored what we asked for, give or take its defaults."""
    return wait_container.is_ours(container, OURS)


def test_pods_of_a_pools_deployment_come_out_complete(plane: ControlPlane, seen: str) -> None:
    substrate.start_controller(plane)
    try:
        uid = substrate.pool(plane, seen, "research", replicas=3)["metadata"]["uid"]
        found = plane.wait(
            lambda: len(items := plane.api.list(f"/api/v1/namespaces/{seen}/pods")) == 3 and items,
            why="three pods of the pool",
        )
        made = plane.api.get(substrate.deployment_path(plane, seen, "research"))["spec"]["template"]["spec"]
    finally:
        plane.stop("ate-controller", signal.SIGKILL)
    assert found
    for each in found:
        spec = each["spec"]
        assert each["metadata"]["labels"][names.POOL_LABEL] == "research"
        assert each["metadata"]["labels"][names.POOL_UID_LABEL] == uid
        assert [is_ours(container) for container in spec["initContainers"]] == [True]
        assert (spec["priorityClassName"], spec["priority"]) == (names.ATEOM_PRIORITY_CLASS, 1000)
        assert spec["preemptionPolicy"] == "PreemptLowerPriority"
        assert spec["schedulerName"] == names.SCHEDULER
        assert spec["containers"][0]["securityContext"] == made["containers"][0]["securityContext"]


def comparable(found: Object) -> Object:
    """A stored pod without what the API server sets for itself or makes up."""
    result = copy.deepcopy(found)
    for key in ("uid", "resourceVersion", "creationTimestamp", "namespace", "managedFields", "name"):
        result["metadata"].pop(key, None)
    result.pop("status", None)
    for volume in result["spec"].get("volumes", []):
        if volume["name"].startswith("kube-api-access-"):
            volume["name"] = "kube-api-access"
    for container in result["spec"]["containers"] + result["spec"].get("initContainers", []):
        for mount in container.get("volumeMounts", []):
            if mount["name"].startswith("kube-api-access-"):
                mount["name"] = "kube-api-access"
    return result


def test_pods_without_the_label_are_untouched_and_never_seen(plane: ControlPlane, seen: str, running: Webhook) -> None:
    before = running.reviews()
    bodies = [
        pod(labels={}),
        pod(labels={"app": "x", "ate.dev/other": "y"}, initContainers=[{"name": "a", "image": "a"}]),
    ]
    for body in bodies:
        assert comparable(create(plane, seen, body, dry=True)) == comparable(create(plane, "default", body, dry=True))
    assert running.reviews() == before


def test_no_class_gets_ours_with_its_priority(plane: ControlPlane, seen: str, pool_uid: str) -> None:
    spec = create(plane, seen, pod())["spec"]
    assert (spec["priorityClassName"], spec["priority"]) == (names.ATEOM_PRIORITY_CLASS, 1000)
    assert spec["preemptionPolicy"] == "PreemptLowerPriority"


def test_an_own_class_is_kept(
    plane: ControlPlane, seen: str, pool_uid: str, priority_class: Callable[..., None]
) -> None:
    priority_class("own", 77)
    spec = create(plane, seen, pod(priorityClassName="own"))["spec"]
    assert (spec["priorityClassName"], spec["priority"]) == ("own", 77)


def test_an_own_class_that_never_preempts_is_kept(
    plane: ControlPlane, seen: str, pool_uid: str, priority_class: Callable[..., None]
) -> None:
    priority_class("gentle", 78, preemptionPolicy="Never")
    spec = create(plane, seen, pod(priorityClassName="gentle"))["spec"]
    assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == ("gentle", 78, "Never")


@pytest.mark.parametrize("policy", ["PreemptLowerPriority", "Never"])
def test_the_default_class_counts_as_unset(
    plane: ControlPlane, seen: str, pool_uid: str, priority_class: Callable[..., None], policy: str
) -> None:
    priority_class("usual", 5, globalDefault=True, preemptionPolicy=policy)

    def defaulted() -> bool:
        found: str = create(plane, "default", pod(labels={}), dry=True)["spec"].get("priorityClassName", "")
        return found == "usual"

    def ours() -> bool:
        spec = create(plane, seen, pod(), dry=True)["spec"]
        found = (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"])
        return found == (names.ATEOM_PRIORITY_CLASS, 1000, "PreemptLowerPriority")

    plane.wait(defaulted, why="the API server to use the default class")
    plane.wait(ours, why="our class instead of the default one")


def test_a_missing_class_is_a_clean_denial(plane: ControlPlane, seen: str, pool_uid: str) -> None:
    error = refusal(plane, seen, pod(priorityClassName="absent"))
    assert (error.status, "no PriorityClass with name absent was found" in error.body) == (403, True)


def test_our_class_missing_is_a_clean_denial(plane: ControlPlane, namespace: str, running: Webhook) -> None:
    with webhooks.webhook(plane, webhook__priority_class="gone") as other:
        webhooks.select(plane, namespace, other)
        substrate.pool(plane, namespace, "pool")
        error = refusal(plane, namespace, pod())
    assert (error.status, "no PriorityClass with name gone was found" in error.body) == (403, True)


def test_always_replaces_and_never_leaves_alone(
    plane: ControlPlane, namespace: str, running: Webhook, priority_class: Callable[..., None]
) -> None:
    priority_class("own", 77, preemptionPolicy="Never")
    substrate.pool(plane, namespace, "pool")
    expected = {"Always": (names.ATEOM_PRIORITY_CLASS, 1000, "PreemptLowerPriority"), "Never": ("own", 77, "Never")}
    for policy, result in expected.items():
        with webhooks.webhook(plane, webhook__priority_policy=policy) as other:
            webhooks.select(plane, namespace, other)
            spec = create(plane, namespace, pod(priorityClassName="own"), dry=True)["spec"]
            assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == result


def test_a_forged_uid_is_overwritten(plane: ControlPlane, seen: str, pool_uid: str) -> None:
    found = create(plane, seen, pod(labels={names.POOL_LABEL: "pool", names.POOL_UID_LABEL: "forged"}))
    assert found["metadata"]["labels"][names.POOL_UID_LABEL] == pool_uid


def test_a_missing_pool_is_denied_saying_which(plane: ControlPlane, seen: str) -> None:
    error = refusal(plane, seen, pod(labels={names.POOL_LABEL: "nowhere"}))
    assert error.status == 403
    assert f'there is no WorkerPool \\"nowhere\\" in namespace \\"{seen}\\"' in error.body


def test_a_pool_of_another_namespace_does_not_count(plane: ControlPlane, seen: str) -> None:
    substrate.pool(plane, "default", f"only-{seen}")
    error = refusal(plane, seen, pod(labels={names.POOL_LABEL: f"only-{seen}"}))
    assert error.status == 403
    substrate.delete(plane, "default", f"only-{seen}")


def test_a_pool_created_a_moment_ago_is_found(plane: ControlPlane, seen: str) -> None:
    for number in range(20):
        uid = substrate.pool(plane, seen, f"p{number}")["metadata"]["uid"]
        found = create(plane, seen, pod(f"ateom-{number}", labels={names.POOL_LABEL: f"p{number}"}), dry=True)
        assert found["metadata"]["labels"][names.POOL_UID_LABEL] == uid


def test_a_recreated_pool_lends_its_new_uid(plane: ControlPlane, seen: str, pool_uid: str) -> None:
    create(plane, seen, pod(), dry=True)
    substrate.delete(plane, seen, "pool")
    new = substrate.pool(plane, seen, "pool")["metadata"]["uid"]
    assert new != pool_uid
    plane.wait(
        lambda: create(plane, seen, pod(), dry=True)["metadata"]["labels"][names.POOL_UID_LABEL] == new,
        timeout=30,
        why="the new pool's UID",
    )


def test_a_preset_node_is_kept_and_the_rest_injected(plane: ControlPlane, seen: str, pool_uid: str) -> None:
    found = create(plane, seen, pod(nodeName="somewhere"), dry=True)
    assert found["spec"]["nodeName"] == "somewhere"
    assert is_ours(found["spec"]["initContainers"][0])
    assert found["metadata"]["labels"][names.POOL_UID_LABEL] == pool_uid


def test_a_foreign_wait_for_atelet_is_replaced(plane: ControlPlane, seen: str, pool_uid: str) -> None:
    foreign = {"name": names.INIT_CONTAINER, "image": "busybox:1.36", "command": ["sh", "-c", "nc -z $HOST_IP 8085"]}
    other = {"name": "fetch", "image": "fetch:1"}
    found = create(plane, seen, pod(initContainers=[other, foreign]))["spec"]["initContainers"]
    assert [each["name"] for each in found] == [names.INIT_CONTAINER, "fetch"]
    assert is_ours(found[0])


def test_what_came_out_goes_in_again_unchanged(plane: ControlPlane, seen: str, pool_uid: str, running: Webhook) -> None:
    once = create(plane, seen, pod())
    again = copy.deepcopy(once)
    again["metadata"] = {"name": "again", "labels": once["metadata"]["labels"]}
    again.pop("status")
    before = running.reviews()["unchanged"]
    result = create(plane, seen, again)
    assert running.reviews()["unchanged"] == before + 1
    assert comparable(result) == comparable(once)


def test_a_dry_run_gets_what_a_real_one_gets(plane: ControlPlane, seen: str, pool_uid: str) -> None:
    assert comparable(create(plane, seen, pod(), dry=True)) == comparable(create(plane, seen, pod()))


RESTRICTED = {
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
}


def test_a_pod_that_is_restricted_stays_so(plane: ControlPlane, seen: str, pool_uid: str) -> None:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.api.patch(f"/api/v1/namespaces/{seen}", {"metadata": {"labels": level}})

    def enforced() -> bool:
        with contextlib.suppress(ApiError):
            create(plane, seen, pod(), dry=True)
            return False
        return True

    plane.wait(enforced, why="the restricted profile")
    body = pod()
    body["spec"]["containers"][0] |= RESTRICTED
    assert is_ours(create(plane, seen, body)["spec"]["initContainers"][0])


def test_the_gating_resource_is_put_on_our_container(plane: ControlPlane, namespace: str, running: Webhook) -> None:
    settings = {"webhook__gating_resource": "ate.dev/ateom", "webhook__scheduler_name": ""}
    with webhooks.webhook(plane, **settings) as other:
        webhooks.select(plane, namespace, other)
        substrate.pool(plane, namespace, "pool")
        spec = create(plane, namespace, pod(), dry=True)["spec"]
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["initContainers"][0]["resources"]["limits"]["ate.dev/ateom"] == "1"
    assert "limits" not in spec["containers"][0]["resources"]


def test_where_a_limit_range_wants_more_our_container_can_ask_for_it(
    plane: ControlPlane, namespace: str, running: Webhook
) -> None:
    limits = [{"type": "Container", "min": {"cpu": "150m", "memory": "64Mi"}}]
    plane.api.post(
        f"/api/v1/namespaces/{namespace}/limitranges", {"metadata": {"name": "least"}, "spec": {"limits": limits}}
    )
    substrate.pool(plane, namespace, "pool")
    webhooks.select(plane, namespace, running)
    assert "minimum cpu usage per Container is 150m, but request is 100m" in refusal(plane, namespace, pod()).body
    with webhooks.webhook(plane, webhook__init_cpu="0.15", webhook__init_memory="64Mi") as other:
        webhooks.select(plane, namespace, other)
        found = create(plane, namespace, pod())
        assert found["spec"]["initContainers"][0]["resources"]["requests"] == {"cpu": "150m", "memory": "64Mi"}


def test_what_is_accepted_without_us_is_accepted_with_us(plane: ControlPlane, namespace: str, seen: str) -> None:
    other = "plain-" + namespace
    plane.api.post("/api/v1/namespaces", {"metadata": {"name": other}})
    plane.wait(lambda: plane.api.exists(f"/api/v1/namespaces/{other}/serviceaccounts/default"), why="an account")
    substrate.pool(plane, seen, "pool")
    accepted = refused = 0

    def attempt(body: Object) -> tuple[bool, str]:
        try:
            create(plane, other, body, dry=True)
        except ApiError:
            return False, ""
        try:
            create(plane, seen, body, dry=True)
        except ApiError as error:
            return True, f"{error.body}\n{body}"
        return True, ""

    chance = random.Random(7)  # noqa: S311 - reproducible
    with ThreadPoolExecutor(8) as workers:
        while accepted < 1000:
            for good, trouble in workers.map(attempt, [random_pod(chance) for _ in range(200)]):
                assert not trouble, trouble
                accepted += good
                refused += not good
    plane.api.delete(f"/api/v1/namespaces/{other}")
    assert refused > 100, "the random pods are too tame"
