"""The extender with a real kube-scheduler and the shipped configuration; beside every test runs the witness."""

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from ateplace import names
from ateplace.extender import fit as why
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.scheduling import Scheduling, pool_pod
from tests.placing import (
    OWNER,
    Nodes,
    ateom,
    call,
    claims,
    create,
    message,
    own_nodes,
    patch_atelet,
    ready_atelets,
    scheduling_beside_atelet,
    where,
    within_allocatable,
)


@pytest.fixture(scope="module")
def rig(plane: ControlPlane) -> Iterator[Scheduling]:
    with scheduling_beside_atelet(plane) as running:
        yield running


@pytest.fixture
def nodes(nodes: Nodes, namespace: str) -> Nodes:
    return own_nodes(nodes, namespace)


@pytest.mark.versions
def test_a_pods_node_has_the_label_and_the_claim(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes
) -> None:
    nodes(3)
    pool = substrate.pool(plane, namespace, "web")
    create(plane, [ateom(pool, "one")])
    node = where(plane, namespace, 1)["one"]
    assert list(claims(plane, node)) == [names.claim_key(pool["metadata"]["uid"])]


@pytest.mark.versions
def test_two_pools_on_one_node_make_two_claims_and_one_label(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes
) -> None:
    nodes(3)
    pools = [substrate.pool(plane, namespace, name) for name in ("web", "batch")]
    for number, pool in enumerate(pools):
        create(plane, [ateom(pool, f"p{number}")])
        where(plane, namespace, number + 1)
    found = where(plane, namespace, 2)
    assert len(set(found.values())) == 1
    expected = {names.claim_key(pool["metadata"]["uid"]) for pool in pools}
    assert set(claims(plane, found["p0"])) == expected


@pytest.mark.versions
def test_a_burst_packs_nodes_and_costs_one_patch_a_node(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes
) -> None:
    nodes(12)
    pool = substrate.pool(plane, namespace, "web")
    before = rig.metric("ateplace_extender_claims_total", result="written")
    errors = rig.metric("ateplace_extender_calls_total", verb="filter", result="error")
    create(plane, [ateom(pool, f"p{n}", requests={"cpu": "400m", "memory": "64Mi"}) for n in range(60)])
    used = Counter(where(plane, namespace, 60).values())
    assert sorted(used.values()) == [6, 18, 18, 18], "60 × 400m beside an atelet of 500m on 8 CPUs"
    assert rig.metric("ateplace_extender_claims_total", result="written") - before <= 5
    assert rig.metric("ateplace_extender_calls_total", verb="filter", result="error") == errors


@pytest.mark.versions
def test_the_reason_for_a_refusal_is_in_the_schedulers_event(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes
) -> None:
    nodes(2, taints=[{"key": "example.com/dedicated", "value": "vm", "effect": "NoSchedule"}])
    pool = substrate.pool(plane, namespace, "vm")
    create(plane, [ateom(pool, "p", tolerations=[{"operator": "Exists"}])])
    assert "2 atelet does not tolerate the taint example.com/dedicated" in message(plane, namespace, "p")
    said = rig.get(f"/explain?pod={namespace}/p")
    assert "refused all 2 nodes" in said and "does not tolerate" in said


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ({"nodeSelector": {names.NODE_LABEL: "true", "disk": "ssd"}}, "atelet's nodeSelector does not match"),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]
                        }
                    }
                }
            },
            "atelet's node affinity does not match",
        ),
    ],
)
def test_ateoms_stay_off_nodes_where_atelet_may_not_run(  # noqa: PLR0917 - fixtures
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes, template: Object, reason: str
) -> None:
    (bad,) = nodes(1)
    pool = substrate.pool(plane, namespace, "web")
    patch_atelet(plane, **template)
    try:
        until_refused(rig, pool, bad, reason)
        create(plane, [ateom(pool, "p")])
        assert reason in message(plane, namespace, "p")
        (good,) = nodes(1, labels={"disk": "ssd"})
        assert where(plane, namespace, 1) == {"p": good}
    finally:
        patch_atelet(plane, nodeSelector={names.NODE_LABEL: "true", "disk": None}, affinity=None)
        until_refused(rig, pool, bad, "")


def until_refused(rig: Scheduling, pool: Object, node: str, reason: str) -> None:
    """Wait until the extender has seen why this node is (or, with no reason, is no longer) barred."""
    pod = pool_pod(pool, "probe")
    pod["metadata"]["uid"] = "probe"
    rig.plane.wait(
        lambda: call(rig, pod, [node]).get("FailedAndUnresolvableNodes", {}).get(node, "") == reason,
        why=f"the extender to say {reason!r}",
    )


def test_ateoms_stay_off_a_node_whose_atelet_crash_loops(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes
) -> None:
    (bad,) = nodes(1)
    pool = substrate.pool(plane, namespace, "web")
    create(plane, [ateom(pool, "first")])
    assert where(plane, namespace, 1) == {"first": bad}
    ready_atelets(plane, [bad])
    try:
        plane.hold("ate-system", substrate.shape(plane).atelet, "crashloop")
        replace_atelet(plane, bad)
        plane.wait(lambda: reasons(plane, bad) == ["CrashLoopBackOff"], timeout=60, why="the new atelet to crash")
        until_refused(rig, pool, bad, why.CRASHING)
        create(plane, [ateom(pool, "last")])
        assert why.CRASHING in message(plane, namespace, "last")
    finally:
        plane.hold("ate-system", substrate.shape(plane).atelet, None)
    # The one that crashed keeps its node barred for a minute; one that never did is judged afresh.
    replace_atelet(plane, bad)
    where(plane, namespace, 2)


def atelets(plane: ControlPlane, node: str) -> list[Object]:
    """The atelet pods there, those on their way out included."""
    return plane.api.list(
        "/api/v1/namespaces/ate-system/pods", labelSelector="app=atelet", fieldSelector=f"spec.nodeName={node}"
    )


def reasons(plane: ControlPlane, node: str) -> list[str]:
    """What the containers of atelet wait for there; empty where they do not."""
    statuses = [each for pod in atelets(plane, node) for each in pod["status"].get("containerStatuses", ())]
    return [each["state"].get("waiting", {}).get("reason", "") for each in statuses]


def replace_atelet(plane: ControlPlane, node: str) -> None:
    """Wait until another atelet, made from the DaemonSet's newest template, is alone on the node.

    Pods of nodes that are gone may hold up the DaemonSet's rolling update, so it is helped here.
    """

    def known() -> bool:
        found = plane.api.get(substrate.daemonset(plane))
        return bool(found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])

    plane.wait(known, timeout=60, why="the DaemonSet's controller to know the template")
    old = {pod["metadata"]["uid"] for pod in atelets(plane, node)}
    plane.api.delete(f"/api/v1/namespaces/ate-system/pods?fieldSelector=spec.nodeName={node}")

    def replaced() -> bool:
        uids = {pod["metadata"]["uid"] for pod in atelets(plane, node)}
        return bool(uids) and not uids & old

    plane.wait(replaced, timeout=60, why=f"another atelet on {node}")


def test_pods_without_requests_are_packed_as_the_scheduler_scores_them(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes
) -> None:
    nodes(20, cpu="8")
    pool = substrate.pool(plane, namespace, "web")
    create(plane, [ateom(pool, f"p{number}") for number in range(300)])
    used = Counter(where(plane, namespace, 300, timeout=120).values())
    assert sorted(used.values()) == [75, 75, 75, 75], "7.5 CPUs of 100m each"


@pytest.mark.parametrize("limit", ["requests", "slots"])
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_burst_that_fills_nodes_exactly_leaves_room_for_atelet(  # noqa: PLR0917 - fixtures
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes, limit: str, turn: int
) -> None:
    """7.5 CPUs for ateoms and half of one for atelet, or 14 slots and one: nothing to spare. Three turns, because what
    goes wrong depends on which watch is ahead of which."""
    made = nodes(4, cpu="8", pods=15 if limit == "slots" else 110)
    cpu = "500m" if limit == "requests" else "50m"
    pool = substrate.pool(plane, namespace, "web")
    per_node = 15 if limit == "requests" else 14
    count = 4 * per_node
    create(plane, [ateom(pool, f"p{n}", requests={"cpu": cpu, "memory": "64Mi"}) for n in range(count)])
    used = Counter(where(plane, namespace, count).values())
    assert used == Counter(dict.fromkeys(made, per_node))
    ready_atelets(plane, made)
    within_allocatable(plane, made)


def test_room_is_left_for_an_atelet_that_only_a_limit_range_gives_requests(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes
) -> None:
    """Its template asks for nothing; the API server gives it half a CPU, and nodes are filled to the brim. Its pods
    come when that has happened: what they ask for cannot be read off the first of them."""
    spec = plane.api.get(substrate.daemonset(plane))["spec"]["template"]["spec"]
    ranges = "/api/v1/namespaces/ate-system/limitranges"
    given = [{"type": "Container", "defaultRequest": {"cpu": "500m"}}]
    plane.api.post(ranges, {"metadata": {"name": "given"}, "spec": {"limits": given}})
    patch_atelet(plane, containers=[{**container, "resources": None} for container in spec["containers"]])
    try:
        rig.restart()
        made = nodes(3, cpu="8")
        pool = substrate.pool(plane, namespace, "web")
        os.kill(plane.pid("kube-controller-manager"), signal.SIGSTOP)
        try:
            create(plane, [ateom(pool, f"p{n}", requests={"cpu": "500m", "memory": "64Mi"}) for n in range(45)])
            used = Counter(where(plane, namespace, 45).values())
        finally:
            os.kill(plane.pid("kube-controller-manager"), signal.SIGCONT)
        ready_atelets(plane, made)
        assert used == Counter(dict.fromkeys(made, 15)), "7.5 CPUs of 8"
        within_allocatable(plane, made)
    finally:
        plane.api.delete(f"{ranges}/given")
        patch_atelet(plane, containers=spec["containers"])
        rig.restart()


def test_nodes_that_others_have_filled_are_looked_at_before_they_are_claimed(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes
) -> None:
    """The pod fits everywhere, atelet beside it on one node only. A claim on another would start an atelet for nobody,
    which on some clusters costs a stranger its place."""
    *tight, roomy = sorted(nodes(13, cpu="8"))
    taken = {"name": "c", "image": "registry.example/c:1", "resources": {"requests": {"cpu": "7"}}}
    create(
        plane,
        [
            {"metadata": {"name": node, "namespace": namespace}, "spec": {"nodeName": node, "containers": [taken]}}
            for node in tight
        ],
    )
    pool = substrate.pool(plane, namespace, "web")
    create(plane, [ateom(pool, "p", requests={"cpu": "800m", "memory": "64Mi"})])
    assert where(plane, namespace, 13)["p"] == roomy
    assert [node for node in tight if claims(plane, node)] == tight[:1], "only the first, which nobody had looked at"
    rig.restart()  # it is wary for minutes, and the tests that follow count its patches


def test_what_other_pods_take_is_read_before_a_node_is_filled(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes
) -> None:
    """Somebody else's pod leaves 1 CPU: an ateom of 600m fits, but not beside an atelet of 500m."""
    (full,) = nodes(1, cpu="4")
    container = {"name": "c", "image": "registry.example/c:1", "resources": {"requests": {"cpu": "3"}}}
    spec = {"containers": [container], "nodeSelector": {OWNER: namespace}}
    create(plane, [{"metadata": {"name": "stranger", "namespace": namespace}, "spec": spec}])
    where(plane, namespace, 1)
    pool = substrate.pool(plane, namespace, "web")
    create(plane, [ateom(pool, "p", requests={"cpu": "600m", "memory": "64Mi"})])
    # The node was opened to find out; once atelet is there, the scheduler's own filter says the same first.
    said = message(plane, namespace, "p")
    assert why.NO_ROOM in said or "Insufficient cpu" in said
    (free,) = nodes(1, cpu="4")
    assert where(plane, namespace, 2) == {"stranger": full, "p": free}


@pytest.mark.versions
def test_a_pod_with_preferences_of_its_own_gets_its_way_among_the_pools_nodes(
    plane: ControlPlane, rig: Scheduling, namespace: str, nodes: Nodes
) -> None:
    made = nodes(3)
    pool = substrate.pool(plane, namespace, "web")
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {names.POOL_LABEL: "web"}},
    }
    for number in range(3):
        create(plane, [ateom(pool, f"p{number}", topologySpreadConstraints=[spread])])
        where(plane, namespace, number + 1)
    assert set(where(plane, namespace, 3).values()) == set(made)
    assert all(len(claims(plane, node)) == 1 for node in made)
