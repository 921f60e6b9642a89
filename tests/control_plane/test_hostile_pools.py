"""One tenant's pools, however many and however odd, do not hold up another tenant's."""

import statistics
import time
import uuid

from ateplace.local import ControlPlane, substrate
from ateplace.local.strangers import pods_that_stay
from tests.reconciling import Reconciler, held, pool, pool_path

HOSTILE = 24
PODS = 10
"""Of each hostile pool, every one with an owner of its own."""


def times(plane: ControlPlane, namespace: str, name: str) -> tuple[float, float]:
    """Seconds until a new pool has its finalizer, and until it is gone after its deletion: medians of five."""
    taken = [once(plane, namespace, f"{name}-{each}") for each in range(5)]
    return statistics.median(each[0] for each in taken), statistics.median(each[1] for each in taken)


def once(plane: ControlPlane, namespace: str, name: str) -> tuple[float, float]:
    began = time.monotonic()
    pool(plane, namespace, name)
    plane.wait(lambda: held(plane, namespace), timeout=60, every=0.02, why="the finalizer")
    finalizer = time.monotonic() - began
    began = time.monotonic()
    substrate.delete(plane, namespace, name)
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, name)), timeout=60, every=0.02, why="the pool to go")
    return finalizer, time.monotonic() - began


def test_an_innocent_pool_is_deleted_in_time_while_24_hostile_ones_are(
    plane: ControlPlane, namespace: str, reconciler: Reconciler
) -> None:
    before = times(plane, namespace, "before")
    theirs = f"hostile-{uuid.uuid4().hex[:8]}"
    plane.api.post("/api/v1/namespaces", {"metadata": {"name": theirs}})
    there = f"/api/v1/namespaces/{theirs}/serviceaccounts/default"
    plane.wait(lambda: plane.api.exists(there), why="a ServiceAccount")
    for number in range(HOSTILE):
        uid = pool(plane, theirs, f"p{number}")
        pods_that_stay(plane, theirs, f"p{number}", uid, PODS, odd=bool(number % 2))
    plane.wait(lambda: held(plane, theirs), timeout=60, why="the hostile pools' finalizers")
    for number in range(HOSTILE):
        substrate.delete(plane, theirs, f"p{number}")
    during = times(plane, namespace, "during")
    print(f"\nfinalizer and deletion of an innocent pool: {before[0]:.2f} and {before[1]:.2f} s alone, ", end="")
    print(f"{during[0]:.2f} and {during[1]:.2f} s beside {HOSTILE} hostile ones")
    for pod in plane.api.list(f"/api/v1/namespaces/{theirs}/pods"):
        path = f"/api/v1/namespaces/{theirs}/pods/{pod['metadata']['name']}"
        plane.api.patch(path, {"metadata": {"finalizers": None}})
    plane.api.delete(f"/api/v1/namespaces/{theirs}")
    assert max(during) < 20, "it was a minute, and more"
