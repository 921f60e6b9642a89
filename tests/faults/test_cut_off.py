"""An extender whose watches say nothing but bookmarks, while claims are released behind its back."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.scheduling import Scheduling
from ateplace.local.witness import Witness
from tests.faults.meddler import Fate, Meddler, only
from tests.placing import OWNER, ateom, claims, create, where
from tests.reconciling import Reconciler, force_delete

Nodes = Callable[..., list[str]]
SMALL = {"cpu": "400m", "memory": "64Mi"}
LINGER = 4
STALE = 3

pytestmark = pytest.mark.long


@pytest.fixture
def pool(plane: ControlPlane, namespace: str) -> Object:
    substrate.install(plane, controller=False)
    return substrate.pool(plane, namespace, "web")


@pytest.fixture
def node(nodes: Nodes, namespace: str) -> str:
    return nodes(1, labels={OWNER: namespace})[0]


@pytest.fixture
def reconciler(plane: ControlPlane, namespace: str) -> Iterator[Reconciler]:
    running = Reconciler(plane, namespace, linger=LINGER, unbound_wait=300, cluster__stale_after=STALE).start()
    yield running
    running.kill()


def released(plane: ControlPlane, namespace: str, node: str) -> None:
    """Every pod goes, and then the claim."""
    for pod in plane.api.list(f"/api/v1/namespaces/{namespace}/pods"):
        force_delete(plane, pod)
    plane.wait(lambda: not claims(plane, node), timeout=30, why="the claim to be released")


@pytest.mark.usefixtures("reconciler")
def test_a_node_that_a_cut_off_view_shows_held_is_claimed_again_before_it_is_answered(
    plane: ControlPlane, pool: Object, namespace: str, node: str
) -> None:
    with Meddler(plane) as meddler, Witness(plane) as witness:
        given: dict[str, Any] = {"reconciler__linger": LINGER, "cluster__stale_after": STALE}
        with Scheduling(plane, cluster__kubeconfig=meddler.kubeconfig, **given) as rig:
            create(plane, [ateom(pool, "first", requests=SMALL)])
            assert where(plane, namespace, 1) == {"first": node}
            plane.wait(lambda: rig.metric("ateplace_claims", state="held") >= 1, why="the extender to see it bound")
            meddler.cut_off = plane.api.get("/api/v1/nodes")["metadata"]["resourceVersion"]
            released(plane, namespace, node)
            assert rig.metric("ateplace_claims", state="held") >= 1, "the extender has not heard of it"
            assert rig.get("/readyz") == "ready\n"
            create(plane, [ateom(pool, "second", requests=SMALL)])
            assert where(plane, namespace, 1) == {"second": node}
            assert claims(plane, node)
            assert witness.violations() == []
            meddler.rule = only("GET", "/api/v1/nodes", Fate.REFUSE_500)
            plane.wait(lambda: "no consistent read" in rig.get("/readyz"), why="an extender that knows it is cut off")
