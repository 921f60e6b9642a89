"""The stand-in for cluster-autoscaler decides as cluster-autoscaler would."""

from typing import Any

import pytest

from ateplace.local.scaling import GROUP_LABEL, TAINT, Load, Machine, Since, grow, load, machine, shrink, waiting

ROOM = {"cpu": 4000, "memory": 8 << 30, "pods": 110}
TEMPLATE = Machine("", ROOM, {GROUP_LABEL: "auto"}, group=True)


def pod(name: str = "p", node: str = "", cpu: int = 1000, **fields: Any) -> Load:
    fields = {"unschedulable": not node, "priority": 0} | fields
    return Load(name, name, node, asks={"cpu": cpu, "pods": 1}, **fields)


def node(name: str, **fields: Any) -> Machine:
    return Machine(name, ROOM, **fields)


@pytest.mark.parametrize(
    ("one", "counts"),
    [
        (pod(), True),
        (pod(priority=-10), True),
        (pod(priority=-11), False),
        (pod(nominated=True), False),
        (pod(unschedulable=False), False),
        (pod(node="n1"), False),
    ],
)
def test_only_unschedulable_pods_above_the_cutoff_count(one: Load, counts: bool) -> None:
    assert waiting([one]) == ([one] if counts else [])


def test_as_many_nodes_are_added_as_the_pods_need() -> None:
    full = [pod("there", "n1", cpu=4000)]
    assert grow([node("n1")], full, [pod(str(i)) for i in range(5)], TEMPLATE) == 2


def test_a_pod_that_fits_somewhere_adds_nothing() -> None:
    assert grow([node("n1")], [], [pod()], TEMPLATE) == 0


def test_a_pod_that_would_not_fit_on_a_new_node_adds_nothing() -> None:
    assert grow([], [], [pod(cpu=5000), pod("q", selector={"disk": "ssd"})], TEMPLATE) == 0


def test_a_node_on_its_way_counts_and_one_that_leaves_does_not() -> None:
    assert grow([node("n1", group=True, closed=True)], [], [pod()], TEMPLATE) == 0
    assert grow([node("n1", group=True, closed=True, leaving=True)], [], [pod()], TEMPLATE) == 1
    assert grow([node("n1", closed=True)], [], [pod()], TEMPLATE) == 1


@pytest.mark.parametrize(
    ("here", "goes"),
    [
        ([], True),
        ([pod("d", "a1", cpu=4000, daemon=True)], True),
        ([pod("x", "a1", cpu=4000, priority=-11)], True),
        ([pod("x", "a1")], True),
        ([pod("x", "a1", cpu=2000)], False),
        ([pod("x", "a1", controlled=False)], False),
        ([pod("x", "a1", controlled=False, safe="true")], True),
        ([pod("x", "a1", local_storage=True)], False),
        ([pod("x", "a1", local_storage=True, safe="true")], True),
        ([pod("x", "a1", safe="false")], False),
    ],
)
def test_a_node_goes_when_all_on_it_may_be_moved(here: list[Load], goes: bool) -> None:
    machines = [node("n1"), node("a1", group=True)]
    assert shrink(machines, here) == (["a1"] if goes else [])


def test_a_node_stays_when_its_pods_fit_nowhere_else() -> None:
    machines = [node("n1"), node("a1", group=True)]
    assert shrink(machines, [pod("full", "n1", cpu=4000), pod("x", "a1")]) == []


def test_nodes_outside_the_group_stay() -> None:
    assert shrink([node("n1"), node("n2")], []) == []


def test_time_counts_from_when_a_key_was_first_there_without_a_gap() -> None:
    since = Since()
    assert since.ripe({"a"}, 0.0, 10.0) == set()
    assert since.ripe({"a", "b"}, 9.0, 10.0) == set()
    assert since.ripe({"a", "b"}, 10.0, 10.0) == {"a"}
    assert since.ripe({"b"}, 11.0, 10.0) == set()
    assert since.ripe({"a", "b"}, 19.0, 10.0) == {"b"}


def test_objects_are_read_as_the_api_writes_them() -> None:
    meta = {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
        "ownerReferences": [{"kind": "ReplicaSet", "controller": True}],
    }
    spec = {
        "priority": -10,
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}],
        "volumes": [{"name": "v", "hostPath": {"path": "/x"}}],
    }
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    read = load({"metadata": meta, "spec": spec, "status": {"phase": "Pending", "conditions": conditions}})
    assert read == Load(
        "ns/p", "u", "", -10, {"cpu": 500, "pods": 1}, local_storage=True, safe="true", unschedulable=True
    )
    assert load({"metadata": meta, "spec": spec, "status": {"phase": "Succeeded"}}) is None
    found = machine(
        {
            "metadata": {"name": "n", "labels": {GROUP_LABEL: "auto"}},
            "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
        }
    )
    assert found == Machine("n", ROOM, {GROUP_LABEL: "auto"}, group=True, closed=True, leaving=True)
