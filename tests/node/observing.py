"""What tests on real nodes look at."""

from collections.abc import Callable
from datetime import datetime

from ateplace import names
from ateplace.local import ControlPlane
from ateplace.local.api import Object
from ateplace.local.realnode import RealNode

SLOW_ATEOM, SLOW_END = "registry.example/ateom:slow", 6
"""An image whose container takes so many seconds to end."""
SMALL = {"requests": {"cpu": "50m", "memory": "32Mi"}}


def pods(plane: ControlPlane, namespace: str) -> list[Object]:
    return plane.api.list(f"/api/v1/namespaces/{namespace}/pods")


def atelets(plane: ControlPlane, node: RealNode | None = None) -> list[Object]:
    found = pods(plane, "ate-system")
    return [pod for pod in found if node is None or pod["spec"].get("nodeName") == node.name]


def containers(pod: Object, field: str = "containerStatuses") -> list[Object]:
    found: list[Object] = pod["status"].get(field, [])
    return found


def phases(plane: ControlPlane, namespace: str) -> list[str]:
    return [pod["status"]["phase"] for pod in pods(plane, namespace)]


def running(plane: ControlPlane, namespace: str, count: int) -> Callable[[], bool]:
    """A condition for `plane.wait`: so many pods, all Running."""

    def look() -> bool:
        found = phases(plane, namespace)
        assert found == ["Running"] * count, found
        return True

    return look


def claimed(plane: ControlPlane, node: RealNode) -> bool:
    meta = plane.api.get(f"/api/v1/nodes/{node.name}")["metadata"]
    labelled: bool = meta["labels"].get(names.NODE_LABEL) == "true"
    claims = [key for key in meta.get("annotations", {}) if key.startswith(names.CLAIM_PREFIX)]
    assert labelled == bool(claims), meta
    return labelled


def started(found: list[Object]) -> float:
    """When the first container of these pods started, to the second below; 0 when none has."""
    states = [each["state"].get("running") for pod in found for each in containers(pod)]
    moments = [datetime.fromisoformat(state["startedAt"]).timestamp() for state in states if state]
    return min(moments, default=0.0)


def incarnations(plane: ControlPlane, namespace: str) -> dict[str, int]:
    """Every container by its ID, with how often it was restarted."""
    return {each["containerID"]: each["restartCount"] for pod in pods(plane, namespace) for each in containers(pod)}
