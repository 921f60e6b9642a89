"""Removed in the wrong order (row 41); the deletion of the CRD, which hurts a plane, is in `test_reconciler.py`."""

import json
import signal
from collections.abc import Callable

import pytest

from ateplace.local import ControlPlane, substrate
from tests import reconciling
from tests.reconciling import ateom, ateplace, claims, force_delete, held, pod_path, pool_path, spread

Nodes = Callable[..., list[str]]

pytestmark = pytest.mark.usefixtures("nothing_is_bound_before_it_is_claimed")


def test_41_a_namespace_deleted_with_its_pools_does_not_hang(plane: ControlPlane, nodes: Nodes) -> None:
    with reconciling.agent_substrate(plane), reconciling.reconciling(plane, linger=8):
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": "doomed"}})
        plane.wait(
            lambda: plane.api.exists("/api/v1/namespaces/doomed/serviceaccounts/default"), why="a ServiceAccount"
        )
        names_ = nodes(2)
        spread(plane, "doomed", names_, 6)
        plane.api.delete("/api/v1/namespaces/doomed")
        plane.wait(lambda: not plane.api.exists("/api/v1/namespaces/doomed"), timeout=120, why="the namespace to go")
        plane.wait(lambda: all(claims(plane, node) == (set(), False) for node in names_), why="the claims to go")


def test_41_uninstall_frees_a_pool_whose_reconciler_went_first(
    plane: ControlPlane, namespace: str, nodes: Nodes
) -> None:
    node = nodes(1)[0]
    with reconciling.agent_substrate(plane, controller=False):
        with reconciling.reconciling(plane) as (one,):
            uid = substrate.pool(plane, namespace, "a")["metadata"]["uid"]
            pod = ateom(plane, namespace, "a", uid, node)
            plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
            plane.wait(lambda: held(plane, namespace), why="the finalizer")
            plane.stop(one.name, signal.SIGKILL)
            substrate.delete(plane, namespace, "a")
            assert plane.api.exists(pool_path(namespace, "a"))
            ateplace(plane, "uninstall")
            plane.wait(lambda: not plane.api.exists(pool_path(namespace, "a")), why="the pool to go")
            assert claims(plane, node) == (set(), False)
            assert plane.api.exists(pod_path(pod)), json.dumps(pod)
            force_delete(plane, pod)
        substrate.install(plane, controller=False)
