"""What a tenant or a kubelet can write into a real API server, and that nobody else notices."""

import json
import os
from pathlib import Path

import httpx
import pytest

from ateplace import names
from ateplace.kube.objects import MIRROR_ANNOTATION
from ateplace.local import ApiError, ControlPlane, substrate
from tests import reconciling
from tests.reconciling import Reconciler, ateom, claims, pod_path, pool, pool_path

MIRROR = {MIRROR_ANNOTATION: "whatever"}
LONGEST = "x" * 63
UNREADABLE = 'ateplace_watch_unreadable_objects{watch="workerpools"}'


def is_claimed_for_others(plane: ControlPlane, namespace: str, node: str, name: str = "honest") -> None:
    """A pool of somebody else's gets its claim on the node, and nobody else has one there."""
    uid = pool(plane, namespace, name)
    made = ateom(plane, namespace, name, uid, node)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the honest pool's claim, alone")
    reconciling.force_delete(plane, made)
    plane.wait(lambda: claims(plane, node) == (set(), False), why="its release")


@pytest.mark.parametrize("mirror", [True, False], ids=["mirror pods", "ordinary pods"])
def test_pods_with_invented_pools_get_no_claim_and_keep_none_from_others(
    plane: ControlPlane, namespace: str, node: str, mirror: bool
) -> None:
    for uid in ("invented", "x" * 58, LONGEST):
        ateom(plane, namespace, "ghost", uid, node, annotations=MIRROR if mirror else None)
    is_claimed_for_others(plane, namespace, node)


def test_a_mirror_pod_neither_makes_nor_keeps_a_claim_of_a_pool_that_is_there(
    plane: ControlPlane, namespace: str, node: str
) -> None:
    uid = pool(plane, namespace, "web")
    ateom(plane, namespace, "web", uid, node, annotations=MIRROR)
    ateom(plane, namespace, "web", "", node, annotations=MIRROR)
    honest = ateom(plane, namespace, "web", uid, node)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim of the one that is no mirror pod")
    reconciling.force_delete(plane, honest)
    plane.wait(lambda: claims(plane, node) == (set(), False), why="its release, whatever the mirror pods say")
    substrate.delete(plane, namespace, "web", "Background")
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, "web")), why="the pool to go")


def test_a_pool_with_a_name_longer_than_a_label_can_be_deleted_and_blocks_no_other(
    plane: ControlPlane, namespace: str, node: str
) -> None:
    name = "long" * 30
    uid = pool(plane, namespace, name)
    claimed = {names.claim_key(uid): "2026-01-01T00:00:00Z"}
    plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": claimed}})
    is_claimed_for_others(plane, namespace, node)
    substrate.delete(plane, namespace, name, "Background")
    plane.wait(lambda: not plane.api.exists(pool_path(namespace, name)), why="the pool to go")


def test_what_cannot_be_read_ends_nothing_and_hides_nothing(
    plane: ControlPlane, namespace: str, node: str, reconciler: Reconciler
) -> None:
    """A time that Python does not know, in a status; a WorkerPool deeper than a decoder goes."""
    uid = pool(plane, namespace, "web")
    made = ateom(plane, namespace, "web", uid, node)
    ended = {"startedAt": "0000-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:00Z", "exitCode": 0}
    status = {"name": names.INIT_CONTAINER, "image": "i", "imageID": "i", "ready": True, "restartCount": 0}
    told = [{**status, "state": {"terminated": ended}}]
    plane.api.patch(f"{pod_path(made)}/status", {"status": {"initContainerStatuses": told}})
    nested = '{"a":' * 3_000 + "1" + "}" * 3_000
    spec = {"replicas": 0, "workerImage": "i", "sandboxClasses": [{"name": "gvisor"}]}
    spec["template"] = {"nodeAffinity": "DEEP"}
    kind = {"apiVersion": f"{names.GROUP}/{names.POOL_VERSION}", "kind": names.POOL_KIND}
    body = json.dumps({**kind, "metadata": {"name": "deep"}, "spec": spec}).replace('"DEEP"', nested)
    plane.kubectl("create", "--raw", pool_path(namespace, "deep").rpartition("/")[0], "-f", "-", input=body)
    plane.wait(lambda: reconciler.metrics()[UNREADABLE] == 1, why="the deep pool to be noticed")
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
    assert reconciler.ready()
    os.kill(reconciler.pid, 0)
    reconciler.restart()
    plane.wait(lambda: reconciler.metrics()[UNREADABLE] == 1, why="a new process to notice it, and to live")
    plane.api.delete(pool_path(namespace, "deep"))
    plane.wait(lambda: reconciler.metrics()[UNREADABLE] == 0, why="it to be forgotten")
    reconciling.force_delete(plane, made)


def resident(pid: int) -> float:
    """MiB."""
    text = Path(f"/proc/{pid}/statm").read_text("ascii")
    return int(text.split()[1]) * 4096 / 2**20


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(20, marks=pytest.mark.long),
        pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_fat_pods_cost_less_than_twenty_mebibytes(
    plane: ControlPlane, namespace: str, node: str, reconciler: Reconciler, count: int
) -> None:
    """As many extended resources as fit into one object, which no other pod names; without an API server:
    `test_fat_objects`. Counted in MiB from before the first of them, buffers that the process keeps included."""

    def create(index: int) -> None:
        asked = {f"p{index:03}.example.com/r{number}": "1" for number in range(20_000)}
        meta = {"name": f"fat-{index}", "labels": {names.PLACEHOLDER_LABEL: "fat"}}
        container = {"name": "c", "image": "i", "resources": {"limits": asked}}  # the API server adds the requests
        spec = {"schedulerName": "nobody", "containers": [container]}
        path = f"/api/v1/namespaces/{namespace}/pods"

        def made() -> bool:
            """A busy API server may take longer for such a pod than a client waits."""
            try:
                plane.api.post(path, {"metadata": meta, "spec": spec})
            except httpx.TransportError as error:
                raise AssertionError(str(error)) from error
            except ApiError as error:
                return error.status == 409
            return True

        plane.wait(made, timeout=120, why="a fat pod to be created")

    is_claimed_for_others(plane, namespace, node, "first")
    before = resident(reconciler.pid)
    for index in range(count):
        create(index)
    is_claimed_for_others(plane, namespace, node)
    there = resident(reconciler.pid)
    print(f"\nresident before {before:.0f} MiB, with {count} fat pods {there:.0f} MiB")
    assert there - before < 20
