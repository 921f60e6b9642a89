"""What one object can cost us, however its author made it: memory while it is there, and after it has gone."""

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ateplace import names
from ateplace.cluster.records import node_record, pod_record, pool_record
from ateplace.cluster.resources import NAMES, amounts, shape
from ateplace.kube.objects import Node, PodSpec, WorkerPool
from ateplace.reconciler.headroom.placeholder import Deployment, deployment_record
from ateplace.settings import Webhook
from tests.unit.objects import node, pod, pool

MIB = 1024 * 1024
RESOURCES = 22_000
"""About as many as one object holds."""


MEASURED = """
import gc, json, sys
from ateplace import names
from ateplace.cluster.feed import View
from ateplace.cluster.records import node_record
from ateplace.kube import codec
from ateplace.kube.objects import Pod
from ateplace.settings import Settings
from ateplace.reconciler.headroom.placeholder import Deployment, deployment_record
from tests.unit.objects import node

view = View(None, Settings())
view._node("n1", None, node_record(node("n1")))

def event(kind, index, resources):
    asked = {f"pINDEX.example.com/r{number}": "1" for number in range(resources)}
    labels = {names.PLACEHOLDER_LABEL: "pool", names.POOL_UID_LABEL: "pool-uid"}
    meta = {"name": "fat-INDEX", "namespace": "ns", "uid": "INDEX", "resourceVersion": "1INDEX", "labels": labels}
    spec = {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": asked}}]}
    return json.dumps({"type": kind, "object": {"metadata": meta, "spec": spec}}).encode()

def feed(line):
    for key, old, new in view.placeholders._mirror.feed(codec.decode_event(Pod, line)):
        view.placeholders._on_change(key, old, new)

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

added, deleted = event("ADDED", 0, 22_000), event("DELETED", 0, 0)
feed(added.replace(b"INDEX", b"0000"))  # room for one object on its way in is always needed
before = resident()
for index in range(1, 101):
    feed(added.replace(b"INDEX", b"%04d" % index))
there, pods = resident(), len(view.ledger.pods)
for index in range(101):
    feed(deleted.replace(b'"1INDEX"', b'"2%04d"' % index).replace(b"INDEX", b"%04d" % index))
kept = view.ledger.nodes["n1"]
json.dump([pods, len(view.ledger.pods), there - before, resident() - before, kept.used, kept.reserved], sys.stdout)
"""


def test_a_hundred_fat_pods_cost_less_than_twenty_mebibytes_and_leave_nothing_behind() -> None:
    """Each with as many extended resources as one object holds, which no other has. By the memory of a process."""
    run = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    pods, left, there, after, used, reserved = json.loads(run.stdout)
    assert (pods, left, used, reserved) == (101, 0, {}, {})
    assert there < 20 * MIB
    assert after < 5 * MIB


def test_of_many_resources_cpu_and_memory_and_the_first_by_name_are_remembered() -> None:
    wire = {f"example.com/r{number:05}": "1" for number in range(RESOURCES)} | {"memory": "1Gi", "cpu": "2"}
    found = amounts(wire)
    assert len(found) == NAMES
    assert (found["cpu"], found["memory"], found["example.com/r00000"]) == (2000, 1024 * MIB, 1)


def test_many_containers_are_counted_and_not_remembered_one_by_one() -> None:
    containers = [
        {"name": f"c{each}", "resources": {"requests": {"cpu": "1m", f"example.com/r{each}": "1"}}}
        for each in range(5_000)
    ]
    found = shape(msgspec.convert({"containers": containers}, PodSpec))
    assert dict(found.requests)["cpu"] == 5_000
    assert len(found.requests) == len(found.counted) == NAMES


def test_shapes_are_cached_by_what_they_take_not_by_how_many_they_are() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for index in range(600):
            asked = {f"{'long' * 60}.example.com/p{index}-{each}": "1" for each in range(20)}
            shape(msgspec.convert({"containers": [{"name": "c", "resources": {"requests": asked}}]}, PodSpec))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / MIB < 4


def labelled(count: int, size: int = 1) -> Node:
    return node("n1", labels={f"example.com/l{each}": "x" * size for each in range(count)})


def finalized(count: int) -> WorkerPool:
    made = pool()
    made.metadata.finalizers = [f"example.com/f{each}" for each in range(count)]
    return made


@pytest.mark.parametrize(
    ("project", "fits", "too_much"),
    [
        (node_record, labelled(500), labelled(600)),
        (node_record, labelled(400, 63), labelled(500, 200)),
        (node_record, node("n1", taints=[{"key": "k"}] * 500), node("n1", taints=[{"key": "k"}] * 600)),
        (pool_record, finalized(60), finalized(70)),
    ],
    ids=["labels", "bytes of labels", "taints", "finalizers"],
)
def test_lists_beyond_any_use_make_an_object_unreadable(
    project: Callable[[Any], object], fits: object, too_much: object
) -> None:
    assert project(fits) is not None
    with pytest.raises(ValueError, match="are not accepted"):
        project(too_much)


def test_an_annotation_is_not_kept_longer_than_anybody_reads_it() -> None:
    made = pool()
    made.metadata.annotations = {names.HEADROOM_ANNOTATION: "9" * 200_000}
    assert len(pool_record(made).headroom) < 1_000


def test_a_pod_of_ordinary_size_is_remembered_whole() -> None:
    asked = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "2", "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi"}
    record = pod_record(pod("p", "n1", containers=[{"name": "c", "resources": {"requests": asked}}]))
    assert record is not None and {name for name, _ in record.shape.requests} == set(asked)


def test_of_a_deployment_nothing_is_kept_that_is_longer_than_any_use() -> None:
    def deployment(selector: int = 0, labels: int = 0) -> Deployment:
        spec = {"nodeSelector": {f"l{each}": "x" * 60 for each in range(selector)}, "containers": [{"name": "ateom"}]}
        body = {
            "metadata": {
                "name": "d",
                "ownerReferences": [{"apiVersion": "ate.dev/v1alpha1", "kind": names.POOL_KIND, "uid": "u1"}],
                "labels": {f"l{each}": "x" for each in range(labels)},
            },
            "spec": {"template": {"spec": spec}},
        }
        return msgspec.json.decode(json.dumps(body), type=Deployment)

    fits, too_much = (deployment_record(deployment(*size), Webhook()) for size in ((10, 10), (2_000,)))
    assert fits is not None and fits.shape is not None
    assert too_much is not None and too_much.shape is None
    with pytest.raises(ValueError, match="are not accepted"):
        deployment_record(deployment(labels=100), Webhook())
