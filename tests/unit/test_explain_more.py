"""Explanations of nodes and pools: their situations judged."""

import pytest

from ateplace.cli import node_checks, pool_checks
from ateplace.cli.snapshot import compose
from ateplace.cluster.records import atelet_record
from ateplace.kube.objects import Node, Pod, WorkerPool
from ateplace.settings import Settings
from tests.unit.objects import atelet, node, pod, pool

NO_ROOM = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3: no room"}]
}
TOUCHED = "(last touched 2026-01-01T00:00:00Z)"


def of_node(
    this: Node,
    pods: list[Pod],
    atelets: list[Pod],
    pools: list[WorkerPool],
    picks: dict[str, dict[str, int]] | None = None,
) -> list[tuple[str, str]]:
    picture = compose([this], pods, atelets, pools, in_flight=picks)
    records = [one for one in map(atelet_record, atelets) if one]
    return [(one.level, one.says) for one in node_checks.findings(this, picture, records, Settings())]


NODES: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]]]] = {
    "held": (
        of_node(
            node("n1", "u1"),
            [pod("a", "n1"), pod("b", "n1", ready=False), pod("p", "n1", placeholder=True)],
            [atelet("n1")],
            [pool()],
        ),
        [
            (
                "ok",
                f"open for demo/web {TOUCHED}: 2 ateoms (1 ready) and 1 placeholder hold the claim, until the "
                "last of them is gone and 120 s have passed",
            ),
            ("ok", "atelet is Ready on n1"),
        ],
    ),
    "lingering": (
        of_node(node("n1", "u1"), [], [atelet("n1")], [pool()]),
        [
            (
                "ok",
                f"claimed for demo/web {TOUCHED}, of which no pod is here: released 120 s after its last pod or its "
                "last touch, whichever was later",
            ),
            ("ok", "atelet is Ready on n1"),
        ],
    ),
    "opened for a burst": (
        of_node(node("n1", "u1"), [pod("a"), pod("b")], [], [pool()], {"n1": {"u1": 1}}),
        [
            ("ok", "1 pod of demo/web is on the way here: picked, not bound yet"),
            ("ok", f"claimed for demo/web {TOUCHED}, of which 2 pods still wait for a node"),
            ("fail", "there is no atelet on n1: the ateom waits for it"),
        ],
    ),
    "its pool is gone": (
        of_node(node("n1", "u9"), [pod("a", "n1", uid="u9")], [atelet("n1")], []),
        [
            (
                "warn",
                f"claimed for a WorkerPool that does not exist any more, u9 {TOUCHED}: 1 ateom of it must go first",
            ),
            ("ok", "atelet is Ready on n1"),
        ],
    ),
    "no claim": (
        of_node(node("n1"), [pod("a", "n1"), pod("b", "n1")], [], [pool()]),
        [("fail", "2 ateoms of demo/web are here without a claim of the pool")],
    ),
    "cold": (of_node(node("n1"), [], [], [pool()]), [("ok", "cold: no pool claims it, so atelet does not run here")]),
    "cordoned": (
        of_node(node("n1", unschedulable=True), [], [], []),
        [
            ("warn", "it is cordoned: nothing new is placed on it"),
            ("ok", "cold: no pool claims it, so atelet does not run here"),
        ],
    ),
    "a label without a claim": (
        of_node(node("n1", labelled=True), [], [atelet("n1")], []),
        [
            ("fail", "it has the label ate.dev/atelet=true although no pool claims it"),
            ("warn", "atelet is ready although no pool claims the node"),
        ],
    ),
    "a claim without the label": (
        of_node(node("n1", "u1", labelled=False), [pod("a", "n1")], [], [pool(deleting=True)]),
        [
            ("ok", f"open for demo/web {TOUCHED}: 1 ateom holds the claim, until the last of them is gone"),
            ("fail", "n1 has no label ate.dev/atelet=true, so atelet does not come"),
            ("fail", "there is no atelet on n1: the ateom waits for it"),
        ],
    ),
}


@pytest.mark.parametrize("name", NODES)
def test_a_node_is_explained(name: str) -> None:
    found, expected = NODES[name]
    assert found == expected


def of_pool(
    this: WorkerPool, nodes: list[Node], pods: list[Pod], atelets: list[Pod], headroom: str = "", **rules: str
) -> list[tuple[str, str]]:
    said = {"headroom": headroom, **{key.replace("_", "-"): value for key, value in rules.items()}}
    this.metadata.annotations = {f"ateplace.ate.dev/{key}": value for key, value in said.items() if value}
    picture = compose(nodes, pods, atelets, [this])
    return [(one.level, one.says) for one in pool_checks.findings(this, picture, pods, Settings())]


POOLS: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]]]] = {
    "all is well": (
        of_pool(
            pool(replicas=2),
            [node("n1", "u1"), node("n2")],
            [pod("a", "n1"), pod("b", "n1"), pod("p", "n1", placeholder=True)],
            [atelet("n1")],
            "1",
        ),
        [
            ("ok", "it wants 2 ateoms, and as many exist"),
            ("ok", "2 ateoms are on nodes, 2 of them Ready"),
            ("ok", "it holds claims on 1 node, n1"),
            ("ok", "its headroom is 1: 1 placeholder is on nodes"),
        ],
    ),
    "it waits": (
        of_pool(
            pool(replicas=4),
            [node("n1", "u1")],
            [pod("a", "n1", ready=False), pod("b", status=NO_ROOM), pod("c", status=NO_ROOM), pod("d")],
            [],
        ),
        [
            ("ok", "it wants 4 ateoms, and as many exist"),
            ("warn", "1 ateom is on nodes, 0 of them Ready"),
            ("fail", "2 ateoms wait for a node: no node fits: 0/3: no room"),
            ("warn", "1 ateom waits for a node: no scheduler has tried it yet"),
            ("ok", "it holds claims on 1 node, n1"),
            ("warn", "atelet is not Ready on 1 node, n1 (none)"),
        ],
    ),
    "some were never created": (
        of_pool(pool(replicas=3), [], [], []),
        [
            ("warn", "it wants 3 ateoms, and 0 exist: the rest was not created"),
            ("ok", "it holds no claim on any node"),
        ],
    ),
    "being deleted": (
        of_pool(pool(replicas=3, deleting=True), [node("n1", "u1")], [pod("a", "n1")], [atelet("n1")]),
        [
            ("warn", "it is being deleted: 1 pod and claims on 1 node are left"),
            ("ok", "1 ateom is on nodes, 1 of them Ready"),
            ("ok", "it holds claims on 1 node, n1"),
        ],
    ),
    "no claim, and a headroom that is no number": (
        of_pool(pool(replicas=1), [node("n1")], [pod("a", "n1"), pod("p", placeholder=True)], [], "many"),
        [
            ("ok", "it wants 1 ateom, and as many exist"),
            ("ok", "1 ateom is on nodes, 1 of them Ready"),
            ("ok", "it holds no claim on any node"),
            ("fail", "it has ateoms without a claim on 1 node, n1"),
            (
                "warn",
                "ateplace.ate.dev/headroom must be a number from 0 to 1000 or a percentage of the replicas, not "
                "'many': the headroom stays at 1",
            ),
            ("warn", "its headroom is 1: 0 placeholders are on nodes, 1 waits for room"),
        ],
    ),
    "unused claims": (
        of_pool(pool(replicas=0), [node(f"n{number}", "u1") for number in range(5)], [], [atelet("n0")]),
        [
            ("ok", "it wants 0 ateoms, and as many exist"),
            ("ok", "it holds claims on 5 nodes: n0, n1, n2 and 2 more"),
            (
                "ok",
                "unused are those on 5 nodes: n0, n1, n2 and 2 more: released when they have been for 120 s, unless "
                "pods of it wait",
            ),
            ("warn", "atelet is not Ready on 4 nodes: n1 (none), n2 (none), n3 (none) and 1 more"),
        ],
    ),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_is_explained(name: str) -> None:
    found, expected = POOLS[name]
    assert found == expected


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (
            {"min_nodes": "2", "max_per_node": "2", "same": "kind"},
            [
                ("ok", "rule min-nodes=2: its ateoms are on 2 nodes"),
                ("ok", "rule max-per-node=2: at most 2 are on one node"),
                ("warn", "rule same=kind: its nodes have m5, no value"),
            ],
        ),
        (
            {"min_nodes": "3", "max_per_node": "1"},
            [
                ("warn", "rule min-nodes=3: its ateoms are on 2 nodes"),
                ("warn", "rule max-per-node=1: at most 2 are on one node"),
            ],
        ),
        (
            {"min_nodes": "many"},
            [
                (
                    "fail",
                    "none of its ateoms is placed: ateplace.ate.dev/min-nodes must be a whole number from 1 to 1000, "
                    'not "many"',
                )
            ],
        ),
    ],
)
def test_a_pools_rules_are_explained(rules: dict[str, str], expected: list[tuple[str, str]]) -> None:
    nodes = [node("n1", "u1", labels={"kind": "m5"}), node("n2", "u1")]
    found = of_pool(pool(replicas=3), nodes, [pod("a", "n1"), pod("b", "n1"), pod("c", "n2")], [], **rules)
    assert [one for one in found if "rule" in one[1] or "placed" in one[1]] == expected
