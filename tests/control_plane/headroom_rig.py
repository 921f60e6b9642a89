"""A pool's headroom as objects of the API server."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from tests import reconciling
from tests.placing import priority_class
from tests.reconciling import Reconciler, pool_path

ATEOM = {"requests": {"cpu": "500m", "memory": "512Mi"}}


OURS = f"{names.PLACEHOLDER_LABEL}=web"


def deployments(namespace: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/deployments"


def ours(plane: ControlPlane, namespace: str) -> Object:
    """The placeholders' Deployment of the pool `web`."""
    found = plane.api.list(deployments(namespace), labelSelector=OURS)
    assert len(found) == 1, [one["metadata"]["name"] for one in found]
    return found[0]


def path(plane: ControlPlane, namespace: str) -> str:
    return f"{deployments(namespace)}/{ours(plane, namespace)['metadata']['name']}"


def placeholders(plane: ControlPlane, namespace: str) -> list[Object]:
    return plane.api.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=OURS)


def make(plane: ControlPlane, namespace: str, headroom: str = "3", **options: Any) -> str:
    """A pool with headroom; its UID."""
    annotations = {names.HEADROOM_ANNOTATION: headroom}
    options = {"resources": ATEOM} | options
    made = substrate.pool(plane, namespace, "web", annotations=annotations, **options)
    return str(made["metadata"]["uid"])


def annotate(plane: ControlPlane, namespace: str, headroom: str | None) -> None:
    note = {"metadata": {"annotations": {names.HEADROOM_ANNOTATION: headroom}}}
    plane.api.patch(pool_path(namespace, "web"), note)


def shaped(
    plane: ControlPlane, namespace: str, check: Callable[[Object], Any], why: str, within: float = 30.0
) -> Object:
    """Wait until the Deployment is there and as it should be."""

    def look() -> Object:
        found = ours(plane, namespace)
        assert check(found), found["spec"]
        return found

    return plane.wait(look, within, why=why)


def gone(plane: ControlPlane, namespace: str, within: float = 30.0) -> None:
    listed = partial(plane.api.list, deployments(namespace), labelSelector=OURS)
    plane.wait(lambda: not listed(), within, why="the placeholders' Deployment to be gone")


def pod(deployment: Object) -> Object:
    found: Object = deployment["spec"]["template"]["spec"]
    return found


def events(plane: ControlPlane, namespace: str, reason: str) -> list[str]:
    found = plane.api.list(f"/api/v1/namespaces/{namespace}/events", fieldSelector=f"reason={reason}")
    return [event["message"] for event in found if event["involvedObject"]["kind"] == names.POOL_KIND]


def deployment(name: str, labels: dict[str, str], **spec: Any) -> Object:
    container = {"name": "c", "image": "registry.example/c"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template, **spec}}


@contextlib.contextmanager
def placeholders_reconciled(plane: ControlPlane) -> Iterator[Reconciler]:
    """A reconciler, Agent Substrate's stand-in, and no scheduler of ours."""
    priority_class(plane, names.PLACEHOLDER_PRIORITY_CLASS, -10, preemptionPolicy="Never")
    # Our scheduler does not run here; the plane's own places placeholders as well.
    started = reconciling.reconciling(plane, webhook__scheduler_name="")
    with reconciling.agent_substrate(plane), started as (running,):
        yield running
        assert running.missed() == 0
        assert "Traceback" not in running.said()
