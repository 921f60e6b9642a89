"""Whom a real kube-scheduler preempts for ateoms, with the extender's say."""

import contextlib
from collections.abc import Iterator
from functools import partial

import pytest

from ateplace import names
from ateplace.extender import fit as why
from ateplace.local import ApiError, ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.kubeconfig import connect
from ateplace.local.scheduling import Scheduling
from tests.placing import (
    OWNER,
    Nodes,
    ateom,
    claims,
    create,
    message,
    own_nodes,
    priority_class,
    ready_atelets,
    scheduling_beside_atelet,
    two_strangers,
    where,
    within_allocatable,
)

OWN = "of-its-own"


@pytest.fixture(scope="module")
def rig(plane: ControlPlane) -> Iterator[Scheduling]:
    with scheduling_beside_atelet(plane) as running:
        yield running


@pytest.fixture
def nodes(nodes: Nodes, namespace: str) -> Nodes:
    return own_nodes(nodes, namespace)


def placeholders_of(pool: Object, count: int, size: dict[str, str]) -> list[Object]:
    """Placeholders of this pool, each as large as one of its ateoms."""
    low = {"priorityClassName": names.PLACEHOLDER_PRIORITY_CLASS, "requests": size}
    made = [
        ateom(pool, f"ph{n}", labels={names.PLACEHOLDER_LABEL: pool["metadata"]["name"]}, **low) for n in range(count)
    ]
    for pod in made:
        del pod["metadata"]["labels"][names.POOL_LABEL]
    return made


@contextlib.contextmanager
def unclaimable(plane: ControlPlane, rig: Scheduling, node: str) -> Iterator[None]:
    """A policy of the cluster's lets our extender write nothing on this Node, from `with` to its end."""
    group, kind = "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"
    meta = {"metadata": {"name": f"no-claims-on-{node}"}}
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}]
    rules[0]["resourceNames"] = [node]
    ours = "request.userInfo.username.endsWith(':ateplace-extender')"
    spec = {
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": [{"name": "ours", "expression": ours}],
        "validations": [{"expression": "false", "message": "this Node is not for claims"}],
    }
    bound = {"policyName": meta["metadata"]["name"], "validationActions": ["Deny"]}
    policy, binding = {**meta, "kind": kind, "spec": spec}, {**meta, "kind": f"{kind}Binding", "spec": bound}
    plane.apply([{"apiVersion": group, **policy}, {"apiVersion": group, **binding}])

    with contextlib.closing(connect(rig.kubeconfig)) as extender:

        def works() -> bool:
            try:
                extender.patch(
                    f"/api/v1/nodes/{node}", {"metadata": {"annotations": {names.claim_key("x"): ""}}}, dryRun="All"
                )
            except ApiError as error:
                return "not for claims" in error.body
            return False

        plane.wait(works, why="the policy to work")
    try:
        yield
    finally:
        path = f"/apis/{group}/validatingadmissionpol"
        plane.api.delete(f"{path}icybindings/{meta['metadata']['name']}")
        plane.api.delete(f"{path}icies/{meta['metadata']['name']}")


@pytest.mark.versions
def test_a_stranger_is_not_evicted_for_an_ateom_that_is_refused_anyway(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes
) -> None:
    """The only node is barred to atelet and full of other people's pods, whose owner replaces them at once."""
    (node,) = nodes(1, cpu="2", taints=[{"key": "private", "effect": "NoSchedule"}])
    selector = {OWNER: namespace}
    anywhere = [{"operator": "Exists"}]
    container = {"name": "c", "image": "registry.example/c:1", "resources": {"requests": {"cpu": "500m"}}}
    template = {
        "metadata": {"labels": {"app": "s"}},
        "spec": {"containers": [container], "tolerations": anywhere, "nodeSelector": selector},
    }
    replicas = {"replicas": 4, "selector": {"matchLabels": {"app": "s"}}, "template": template}
    plane.api.post(f"/apis/apps/v1/namespaces/{namespace}/replicasets", {"metadata": {"name": "s"}, "spec": replicas})
    before = set(where(plane, namespace, 4))
    pool = substrate.pool(plane, namespace, "web")
    wanted = {"requests": {"cpu": "1", "memory": "64Mi"}, "tolerations": anywhere}
    priority_class(plane, OWN, 5000)
    create(plane, [ateom(pool, "p", **wanted), ateom(pool, "q", **wanted, priorityClassName=OWN)])
    message(plane, namespace, "p")
    message(plane, namespace, "q")
    for millicores in (2001, 2002, 2003):  # a node that grows, however little, makes the scheduler try its pods again
        calls = rig.metric("ateplace_extender_calls_total", verb="preempt")
        plane.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"allocatable": {"cpu": f"{millicores}m"}}})
        again = partial(lambda calls: rig.metric("ateplace_extender_calls_total", verb="preempt") > calls, calls)
        plane.wait(again, timeout=60, why="another preemption")
    pods = plane.api.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector="app=s")
    assert {pod["metadata"]["name"] for pod in pods} == before, "0 evictions"


@pytest.mark.versions
def test_a_pod_with_a_class_of_its_own_evicts_as_many_strangers_as_it_needs(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes
) -> None:
    """Two of 1.5 CPUs on 4, and half of one for atelet: one of them makes room for another 1.5."""
    (node,) = nodes(1, cpu="4")
    two_strangers(plane, namespace)
    pool = substrate.pool(plane, namespace, "web")
    wanted = {"requests": {"cpu": "1500m", "memory": "64Mi"}}
    create(plane, [ateom(pool, "ours", **wanted)])
    message(plane, namespace, "ours")
    priority_class(plane, OWN, 5000)
    create(plane, [ateom(pool, "p", **wanted, priorityClassName=OWN)])

    def placed() -> bool:
        pods = plane.api.list(f"/api/v1/namespaces/{namespace}/pods")
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods}.get("p") == node

    plane.wait(placed, timeout=60, why="the pod to be placed")
    left = {pod["metadata"]["name"] for pod in plane.api.list(f"/api/v1/namespaces/{namespace}/pods")}
    assert len(left & {"s0", "s1"}) == 1 and "ours" in left
    ready_atelets(plane, [node])
    within_allocatable(plane, [node])


@pytest.mark.versions
def test_placeholders_are_preempted_and_nothing_else(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes
) -> None:
    (node,) = nodes(1, cpu="4500m")
    pool = substrate.pool(plane, namespace, "web")
    size = {"cpu": "1", "memory": "64Mi"}
    placeholders = placeholders_of(pool, 2, size)
    stranger = ateom(pool, "stranger", requests=size, schedulerName="default-scheduler", priorityClassName="")
    stranger["metadata"]["labels"] = {}
    create(plane, [*placeholders, stranger])
    where(plane, namespace, 3)
    create(plane, [ateom(pool, "p1", requests=size), ateom(pool, "p2", requests=size)])
    plane.wait(
        lambda: (
            {"p1", "p2"}
            <= {
                p["metadata"]["name"]
                for p in plane.api.list(f"/api/v1/namespaces/{namespace}/pods")
                if p["spec"].get("nodeName")
            }
        ),
        why="both ateoms to be bound",
    )
    left = {pod["metadata"]["name"] for pod in plane.api.list(f"/api/v1/namespaces/{namespace}/pods")}
    assert {"stranger", "p1", "p2"} <= left and len(left) == 4, f"one placeholder had to go: {left}"
    assert len(claims(plane, node)) == 1


def test_nothing_is_ended_on_a_node_whose_claim_is_refused(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes
) -> None:
    """Placeholders were ended there, the ateom was refused, and they were ended again."""
    (node,) = nodes(1, cpu="2500m")
    pool = substrate.pool(plane, namespace, "web")
    size = {"cpu": "1", "memory": "64Mi"}
    create(plane, placeholders_of(pool, 2, size))
    before = where(plane, namespace, 2)
    ready_atelets(plane, [node])

    def grow(millicores: int) -> None:
        """A node that grows, however little, makes the scheduler try its pods again."""
        plane.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"allocatable": {"cpu": f"{millicores}m"}}})

    with unclaimable(plane, rig, node):
        rig.restart()  # what it wrote before it might answer by, for a while
        calls = partial(rig.metric, "ateplace_extender_calls_total", verb="preempt")
        before_all = calls()
        create(plane, [ateom(pool, "p", requests=size)])
        plane.wait(lambda: calls() > before_all, timeout=60, why="the scheduler to ask")
        grow(2501)  # and it asks again
        plane.wait(lambda: calls() > before_all + 1, timeout=60, why="the scheduler to ask again")
        dropped = rig.get(f"/explain?pod={namespace}/p")
        assert why.UNCLAIMED in dropped, dropped
        left = {pod["metadata"]["name"] for pod in plane.api.list(f"/api/v1/namespaces/{namespace}/pods")}
        assert left == {*before, "p"}, "0 evictions"
    rig.restart()
    grow(2502)
    plane.wait(
        lambda: plane.api.get(f"/api/v1/namespaces/{namespace}/pods/p")["spec"].get("nodeName") == node,
        timeout=90,
        why="the ateom to be placed, once its node may be claimed",
    )
