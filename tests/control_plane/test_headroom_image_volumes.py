"""Placeholders where the API server takes no image volumes."""

import contextlib
from collections.abc import Iterator

import pytest

from ateplace.local import ApiError, ControlPlane
from tests.control_plane.headroom_rig import annotate, events, make, placeholders_reconciled, pod, shaped
from tests.features import has
from tests.reconciling import Reconciler

POLICIES = "/apis/admissionregistration.k8s.io/v1"


@pytest.fixture(scope="module")
def reconciler(plane: ControlPlane) -> Iterator[Reconciler]:
    with placeholders_reconciled(plane) as running:
        yield running


@contextlib.contextmanager
def no_image_volumes(plane: ControlPlane, namespace: str) -> Iterator[None]:
    """In this namespace the API server refuses image volumes as one without the feature does: 422."""
    name = f"no-images-{namespace}"
    expression = "!has(object.spec.template.spec.volumes) || object.spec.template.spec.volumes.all(v, !has(v.image))"
    rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"]}
    policy = {
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule | {"resources": ["deployments"]}]},
            "validations": [{"expression": expression, "reason": "Invalid", "message": "no image volumes here"}],
        },
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    binding = {
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": here},
        },
    }
    plane.api.post(f"{POLICIES}/validatingadmissionpolicies", policy)
    plane.api.post(f"{POLICIES}/validatingadmissionpolicybindings", binding)
    try:
        plane.wait(lambda: not takes_image_volumes(plane, namespace), why="the policy to be in force")
        yield
    finally:
        plane.api.delete(f"{POLICIES}/validatingadmissionpolicybindings/{name}")
        plane.api.delete(f"{POLICIES}/validatingadmissionpolicies/{name}")


def takes_image_volumes(plane: ControlPlane, namespace: str) -> bool:
    labels = {"app": "trial"}
    spec = {
        "containers": [{"name": "c", "image": "registry.example/c"}],
        "volumes": [{"name": "v", "image": {"reference": "registry.example/v"}}],
    }
    body = {
        "metadata": {"name": "trial"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }
    try:
        taken = plane.api.post(f"/apis/apps/v1/namespaces/{namespace}/deployments", body, dryRun="All")
    except ApiError as error:
        if error.status != 422:
            raise
        return False
    return "volumes" in pod(taken)  # an API server whose feature gate is off drops them, and the mounts with them


@pytest.mark.versions
@pytest.mark.usefixtures("reconciler")
def test_where_image_volumes_are_not_taken_there_is_headroom_without_them(plane: ControlPlane, namespace: str) -> None:
    assert takes_image_volumes(plane, namespace) is has("image volumes"), "as doctor says"
    with no_image_volumes(plane, namespace):
        make(plane, namespace)
        made = shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 3, "placeholders")
        assert "volumes" not in pod(made)
        if has("image volumes"):  # else they were dropped before the policy could refuse them
            plane.wait(lambda: events(plane, namespace, "NoImageVolumes"), why="an Event about it")
        annotate(plane, namespace, "4")
        shaped(plane, namespace, lambda found: found["spec"]["replicas"] == 4, "a change to be followed")
