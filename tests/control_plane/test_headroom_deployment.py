"""The placeholders' Deployment on a real API server: made, followed, put right, and gone when it should be."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from tests import reconciling
from tests.control_plane.headroom_rig import (
    ATEOM,
    annotate,
    deployment,
    deployments,
    events,
    gone,
    make,
    ours,
    path,
    placeholders,
    placeholders_reconciled,
    pod,
    shaped,
)
from tests.features import has
from tests.reconciling import Reconciler, pool_path

SECONDS = 10.0
"""Within which a change is followed, also on a busy machine; usually it takes less than one."""


@pytest.fixture(scope="module")
def reconciler(plane: ControlPlane) -> Iterator[Reconciler]:
    with placeholders_reconciled(plane) as running:
        yield running


@pytest.mark.versions
@pytest.mark.both_shapes
@pytest.mark.usefixtures("reconciler")
def test_headroom_follows_the_annotation_from_5_to_8_to_0_and_back(plane: ControlPlane, namespace: str) -> None:
    uid = make(plane, namespace, "5")
    made = shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 5, "five placeholders")
    assert made["metadata"]["ownerReferences"][0]["uid"] == uid
    assert pod(made)["containers"][0]["resources"]["requests"] == ATEOM["requests"]
    annotate(plane, namespace, "8")
    shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 8, "eight placeholders", SECONDS)
    annotate(plane, namespace, "0")
    gone(plane, namespace, SECONDS)
    annotate(plane, namespace, "1")
    shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 1, "one placeholder", SECONDS)
    annotate(plane, namespace, None)
    gone(plane, namespace, SECONDS)


def test_pools_share_the_max_headroom_of_their_namespace_and_bad_rules_are_said(
    plane: ControlPlane, namespace: str, reconciler: Reconciler
) -> None:
    def allow(value: str | None) -> None:
        note = {"metadata": {"annotations": {names.MAX_HEADROOM_ANNOTATION: value}}}
        plane.api.patch(f"/api/v1/namespaces/{namespace}", note)

    allow("4")
    make(plane, namespace, "3")
    notes = {names.HEADROOM_ANNOTATION: "3", names.MIN_NODES_ANNOTATION: "two"}
    substrate.pool(plane, namespace, "zoo", annotations=notes, resources=ATEOM)

    def found() -> dict[str, int]:
        there = plane.api.list(deployments(namespace), labelSelector=names.PLACEHOLDER_LABEL)
        return {one["metadata"]["labels"][names.PLACEHOLDER_LABEL]: one["spec"]["replicas"] for one in there}

    for value, expected in (("4", {"web": 3, "zoo": 1}), ("0", {}), ("5", {"web": 3, "zoo": 2})):
        allow(value)
        plane.wait(lambda expected=expected: found() == expected, 60, why=f"{expected} placeholders")  # type: ignore[misc]
    words = f"The max-headroom of namespace {namespace} is 4, for all its pools together: 1 of 3 placeholders are left"
    plane.wait(lambda: any(words in one for one in events(plane, namespace, "HeadroomCapped")), 60, why=words)
    plane.wait(lambda: events(plane, namespace, "BadRule"), 60, why="an Event about min-nodes")
    annotate(plane, namespace, None)
    plane.wait(lambda: found() == {"zoo": 3}, 60, why="the other pool to get what is left")
    allow("nonsense")
    plane.wait(lambda: events(plane, namespace, "QuotaReached"), 60, why="an Event about the quota")
    assert found() == {"zoo": 3}, "what is there stays"
    allow(None)


def test_a_bad_value_is_said_and_changes_nothing(plane: ControlPlane, namespace: str, reconciler: Reconciler) -> None:
    make(plane, namespace, "3")
    before = shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 3, "three placeholders")
    annotate(plane, namespace, "many")
    plane.wait(lambda: events(plane, namespace, "BadHeadroom"), why="an Event about the bad value")
    assert "'many'" in events(plane, namespace, "BadHeadroom")[0]
    assert "the pool does not get the headroom that it asks for" in reconciler.said()
    assert ours(plane, namespace)["metadata"]["uid"] == before["metadata"]["uid"]
    assert ours(plane, namespace)["spec"]["replicas"] == 3
    annotate(plane, namespace, "4")
    shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 4, "a good value to be followed again")


@pytest.mark.usefixtures("reconciler")
def test_a_pool_without_requests_gets_a_default_and_a_warning(plane: ControlPlane, namespace: str) -> None:
    make(plane, namespace, resources=None)
    made = shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 3, "placeholders")
    assert pod(made)["containers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": "512Mi"}
    plane.wait(lambda: events(plane, namespace, "AteomsReserveNothing"), why="an Event that nothing is reserved")


@pytest.mark.both_shapes
@pytest.mark.usefixtures("reconciler")
def test_the_pools_changes_are_followed(plane: ControlPlane, namespace: str) -> None:
    make(plane, namespace, nodeSelector={"disk": "ssd"})
    shaped(plane, namespace, lambda found: pod(found)["nodeSelector"] == {"disk": "ssd"}, "the first shape")
    template = {"nodeSelector": {"disk": None, "zone": "a"}, "resources": {"requests": {"cpu": "2"}}}
    substrate.set_image(plane, namespace, "web", "registry.example/b:2", template)
    shaped(
        plane,
        namespace,
        lambda found: (
            pod(found)["nodeSelector"] == {"zone": "a"}
            and pod(found)["containers"][0]["resources"]["requests"] == {"cpu": "2", "memory": "512Mi"}
            and (not has("image volumes") or pod(found)["volumes"][0]["image"]["reference"] == "registry.example/b:2")
        ),
        "the second shape",
        SECONDS,
    )


@pytest.mark.both_shapes
@pytest.mark.usefixtures("reconciler")
def test_what_the_controller_adds_is_followed_too(plane: ControlPlane, namespace: str) -> None:
    make(plane, namespace, sandbox_class="microvm")
    made = shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 3, "placeholders")
    old = {"ate.dev/sandboxClass": "microvm"}
    assert pod(made).get("nodeSelector", {}) == (old if substrate.shape(plane) is substrate.OLD else {})
    assert pod(made)["tolerations"][0]["key"] == "ate.dev/sandboxClass"


@pytest.mark.usefixtures("reconciler")
@pytest.mark.parametrize(
    "vandalism",
    [
        {"spec": {"replicas": 0}},
        {"spec": {"template": {"spec": {"nodeSelector": {"nowhere": "yes"}}}}},
        {"spec": {"template": {"spec": {"hostNetwork": True}}}},
        {"metadata": {"labels": {"extra": "label"}}},
        {"metadata": {"ownerReferences": None}},
    ],
)
def test_whatever_somebody_changes_is_put_right(plane: ControlPlane, namespace: str, vandalism: dict[str, Any]) -> None:
    make(plane, namespace)
    good = shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 3, "placeholders")
    plane.api.patch(path(plane, namespace), vandalism)

    def right(found: Object) -> bool:
        """But for the strategy: it says how many placeholders waited at the time of the write, and here some may."""
        ours = ("labels", "ownerReferences")
        return found["spec"] | {"strategy": good["spec"]["strategy"]} == good["spec"] and all(
            found["metadata"].get(key) == good["metadata"][key] for key in ours
        )

    shaped(plane, namespace, right, "what we made")


@pytest.mark.usefixtures("reconciler")
def test_nothing_is_written_when_there_is_nothing_to_write(
    plane: ControlPlane, namespace: str, reconciler: Reconciler
) -> None:
    make(plane, namespace)
    made = shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 3, "placeholders")
    reconciler.restart()
    substrate.scale(plane, namespace, "web", 1)
    annotate(plane, namespace, "4")
    after = shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 4, "the new leader's work")
    assert after["metadata"]["generation"] == made["metadata"]["generation"] + 1


@pytest.mark.usefixtures("reconciler")
@pytest.mark.parametrize("propagation", ["Background", "Foreground", "Orphan"])
def test_a_pool_deleted_with_headroom_on_leaves_no_placeholder(
    plane: ControlPlane, namespace: str, propagation: str
) -> None:
    reconciling.wait_for_the_garbage_collector(plane, namespace)
    make(plane, namespace)
    shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 3, "placeholders")
    substrate.delete(plane, namespace, "web", propagation)
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, "web")), why="the pool to go")
    gone(plane, namespace)
    selector = {"labelSelector": names.PLACEHOLDER_LABEL}
    plane.wait(
        lambda: not plane.api.list(f"/api/v1/namespaces/{namespace}/pods", **selector), why="no placeholder to be left"
    )


@pytest.mark.usefixtures("reconciler")
def test_a_pool_made_again_under_its_name_gets_placeholders_of_its_own(plane: ControlPlane, namespace: str) -> None:
    first = make(plane, namespace)
    shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 3, "placeholders")
    substrate.delete(plane, namespace, "web")
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, "web")), why="the pool to go", every=0.01)
    second = make(plane, namespace)
    assert first != second
    shaped(
        plane,
        namespace,
        lambda found: (
            found["spec"]["selector"]["matchLabels"][names.POOL_UID_LABEL] == second
            and not found["metadata"].get("deletionTimestamp")
        ),
        "the second pool's placeholders",
    )


@pytest.mark.usefixtures("reconciler")
def test_a_deployment_of_another_pool_that_is_called_like_ours_were_is_left_alone(
    plane: ControlPlane, namespace: str
) -> None:
    """Where a pool's Deployment has the pool's own name, `web-headroom` may be another pool's."""
    theirs = deployment("web-headroom", {"app": "theirs"}, replicas=0)
    made = plane.api.post(deployments(namespace), theirs)
    make(plane, namespace)
    shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 3, "placeholders beside it")
    found = plane.api.get(f"{deployments(namespace)}/web-headroom")
    assert (found["metadata"]["uid"], found["spec"]) == (made["metadata"]["uid"], made["spec"])
    assert events(plane, namespace, "HeadroomNameTaken") == []


@pytest.mark.both_shapes
def test_placeholders_under_their_old_name_are_taken_over_without_losing_one(
    plane: ControlPlane, namespace: str, reconciler: Reconciler
) -> None:
    make(plane, namespace)
    now = shaped(plane, namespace, lambda found: found["status"].get("updatedReplicas") == 3, "placeholders")
    before = {pod["metadata"]["uid"] for pod in placeholders(plane, namespace)}
    reconciler.stop()
    # As an earlier version left it: its ReplicaSet under a Deployment that is called `web-headroom`.
    plane.api.delete(path(plane, namespace), {"propagationPolicy": "Orphan"})
    gone(plane, namespace)
    meta = {key: now["metadata"][key] for key in ("labels", "ownerReferences")}
    plane.api.post(deployments(namespace), {"metadata": {"name": "web-headroom", **meta}, "spec": now["spec"]})
    shaped(plane, namespace, lambda found: found.get("status", {}).get("updatedReplicas") == 3, "the old one")
    assert {pod["metadata"]["uid"] for pod in placeholders(plane, namespace)} == before
    reconciler.start()
    renamed = now["metadata"]["name"]
    shaped(
        plane,
        namespace,
        lambda found: found["metadata"]["name"] == renamed and found.get("status", {}).get("updatedReplicas") == 3,
        "the placeholders under their new name",
    )
    assert {pod["metadata"]["uid"] for pod in placeholders(plane, namespace)} == before, "the very same pods"


@pytest.mark.both_shapes
@pytest.mark.usefixtures("reconciler")
def test_headroom_is_also_a_label_and_a_percentage_of_the_replicas(plane: ControlPlane, namespace: str) -> None:
    substrate.pool(plane, namespace, "web", resources=ATEOM)
    plane.api.patch(pool_path(namespace, "web"), {"metadata": {"labels": {names.HEADROOM_ANNOTATION: "2"}}})
    shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 2, "what the label says")
    annotate(plane, namespace, "20%")
    gone(plane, namespace, SECONDS)
    substrate.scale(plane, namespace, "web", 6)
    shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 2, "a fifth of six, rounded up", SECONDS)


@pytest.mark.both_shapes
@pytest.mark.usefixtures("reconciler")
def test_the_shape_is_that_of_the_deployment_that_the_pool_controls_whatever_it_is_called(
    plane: ControlPlane, namespace: str
) -> None:
    uid = make(plane, namespace)
    shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 3, "placeholders")
    owner = {"apiVersion": "ate.dev/v1alpha1", "kind": "WorkerPool", "name": "web", "uid": uid}
    other = deployment("aaa", {"app": "other"}, replicas=0)
    other["metadata"]["ownerReferences"] = [owner]
    other["spec"]["template"]["spec"]["nodeSelector"] = {"wrong": "one"}
    plane.api.post(deployments(namespace), other)
    annotate(plane, namespace, "4")
    made = shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 4, "a change to be followed")
    assert "nodeSelector" not in pod(made)


@pytest.mark.usefixtures("reconciler")
def test_what_a_limit_range_gives_to_ateoms_is_held_for_them(
    plane: ControlPlane, namespace: str, nodes: Callable[..., list[str]]
) -> None:
    limits = {"limits": [{"type": "Container", "defaultRequest": {"cpu": "2", "memory": "1Gi"}}]}
    plane.api.post(f"/api/v1/namespaces/{namespace}/limitranges", {"metadata": {"name": "defaults"}, "spec": limits})
    make(plane, namespace, resources=None)
    shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 3, "placeholders")
    substrate.scale(plane, namespace, "web", 1)
    wanted = {"cpu": "2", "memory": "1Gi"}
    shaped(
        plane,
        namespace,
        lambda found: pod(found)["containers"][0]["resources"]["requests"] == wanted,
        "what the first ateom was given",
    )


@pytest.mark.usefixtures("reconciler")
def test_placeholders_give_way_to_ateoms_that_a_quota_keeps_from_being_made(
    plane: ControlPlane, namespace: str
) -> None:
    plane.api.post(
        f"/api/v1/namespaces/{namespace}/resourcequotas",
        {"metadata": {"name": "six"}, "spec": {"hard": {"pods": "6"}}},
    )
    make(plane, namespace, "4")
    plane.wait(lambda: len(placeholders(plane, namespace)) == 4, why="four placeholders")
    substrate.scale(plane, namespace, "web", 6)
    selector = {"labelSelector": f"{names.POOL_LABEL}=web"}
    plane.wait(
        lambda: len(plane.api.list(f"/api/v1/namespaces/{namespace}/pods", **selector)) == 6,
        timeout=60,
        why="all six ateoms",
    )
    plane.wait(lambda: events(plane, namespace, "HeadroomOverQuota"), why="an Event that says so")


@pytest.mark.usefixtures("reconciler")
def test_a_pool_whose_ateoms_wait_for_no_node_that_there_is_has_no_placeholders(
    plane: ControlPlane, namespace: str, nodes: Callable[..., list[str]]
) -> None:
    """Its ateoms are kept as a reserve, and its placeholders would only make the cluster grow."""
    only = {"version": namespace}
    nodes(1)
    make(plane, namespace, nodeSelector=only)
    shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 3, "headroom from nothing, before any ateom")
    substrate.scale(plane, namespace, "web", 2)
    shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 0, "none while the ateoms wait in vain")
    (node,) = nodes(1)
    plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": only}})
    shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 3, "headroom, now that a node will do")


@pytest.mark.usefixtures("reconciler")
def test_placeholders_that_wait_are_replaced_first_and_all_of_them(
    plane: ControlPlane, namespace: str, nodes: Callable[..., list[str]]
) -> None:
    """Five, of which three fit; the new shape is larger, so that one fits."""
    only = {"room": namespace}
    (node,) = nodes(1, cpu="4")
    plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": only}})
    small, large = ({"requests": {"cpu": cpu, "memory": "64Mi"}} for cpu in ("1200m", "3"))
    make(plane, namespace, "5", nodeSelector=only, resources=small)
    plane.wait(
        lambda: sum("nodeName" in one["spec"] for one in placeholders(plane, namespace)) == 3, why="three that fit"
    )
    plane.api.patch(pool_path(namespace, "web"), {"spec": {"template": {"resources": large}}})

    def replaced() -> bool:
        asked = [one["spec"]["containers"][0]["resources"]["requests"]["cpu"] for one in placeholders(plane, namespace)]
        assert asked == ["3"] * 5, asked
        return True

    plane.wait(replaced, timeout=60, why="one generation of placeholders")
