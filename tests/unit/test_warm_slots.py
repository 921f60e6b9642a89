"""How many more ateoms of a pool would start warm: counted from a ledger, and shown while a leader counts."""

import asyncio
from collections.abc import Mapping

import pytest
from msgspec import structs
from prometheus_client import generate_latest

from ateplace.cluster.ledger import Ledger
from ateplace.cluster.pool_rules import PoolRules
from ateplace.process import metrics
from ateplace.reconciler.headroom.metrics import Workers
from ateplace.reconciler.headroom.warm_slots import WarmSlots, warm_slots
from tests.unit.cluster import atelet, ledger, node, pod, pool, ready, template


def slots(known: Ledger, ateoms_per_node: int = 0) -> WarmSlots:
    return warm_slots(known, ateoms_per_node)["ns/a"]


def ruled(**rules: int | str) -> Ledger:
    """Two warm nodes of 8 cores, with an ateom and a placeholder of one core each on the first."""
    record = structs.replace(pool(), rules=PoolRules(**rules))  # type: ignore[arg-type]
    there = [pod("a", "n1"), pod("p", "n1", placeholder=True)]
    return ledger(record, *ready("n1", "A", pods=there), *ready("n2", "A"))


def test_room_beside_ateoms_and_placeholders_is_free_and_atelets_is_not() -> None:
    assert slots(ruled()) == WarmSlots(used=1, free=6 + 8, placeholder=1)
    known = ruled()
    known.daemonset_seen(template(cpu=500), 0.0)
    assert slots(known) == WarmSlots(used=1, free=5 + 7, placeholder=1)


def test_pod_slots_count_too_and_one_is_atelets() -> None:
    known = ledger(pool(), node("n1", "A", slots=4), atelet("n1"), pod("a", "n1"))
    assert slots(known) == WarmSlots(used=1, free=2)


@pytest.mark.parametrize(
    "other",
    [
        node("n2"),
        node("n2", "B"),
        node("n2", "A", deleting=True),
        node("n2", "A", taints=(("node.kubernetes.io/unschedulable", "", "NoSchedule"),)),
        node("n2", "A", taints=(("node.kubernetes.io/unreachable", "", "NoExecute"),)),
    ],
    ids=["unclaimed", "another pool's", "deleted", "cordoned", "unreachable"],
)
def test_a_node_where_no_ateom_of_the_pool_would_start_warm_has_no_slot(other: object) -> None:
    known = ledger(pool(), *ready("n1", "A", pods=[pod("a", "n1")]), other, atelet("n2"))  # type: ignore[arg-type]
    assert slots(known) == WarmSlots(used=1, free=7)


def test_a_node_whose_atelet_is_not_ready_has_none_but_its_ateoms_are_used() -> None:
    known = ledger(pool(), node("n1", "A"), atelet("n1", ready=False), pod("a", "n1"))
    assert slots(known) == WarmSlots(used=1)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"max_per_node": 4}, WarmSlots(used=1, free=2 + 4, placeholder=1)),
        ({"max_per_node": 1}, WarmSlots(used=1, free=0 + 1, placeholder=1)),
        ({"min_nodes": 2}, WarmSlots(used=1, free=8, placeholder=0)),
        ({"min_nodes": 1}, WarmSlots(used=1, free=14, placeholder=1)),
        ({"wrong": "nonsense"}, WarmSlots(used=1)),
    ],
)
def test_rules_of_the_pool_are_kept(rules: Mapping[str, int], expected: WarmSlots) -> None:
    assert slots(ruled(**rules)) == expected


def test_the_limit_of_ateoms_on_a_node_is_kept() -> None:
    assert slots(ruled(), ateoms_per_node=3) == WarmSlots(used=1, free=1 + 3, placeholder=1)


def test_a_pool_of_which_nothing_is_known_has_none_and_one_with_placeholders_alone_has_some() -> None:
    assert slots(ledger(pool(), *ready("n1", "A"))) == WarmSlots(used=0)
    held = ledger(pool(), *ready("n1", "A", pods=[pod("p", "n1", placeholder=True)]))
    assert slots(held) == WarmSlots(used=0, free=7, placeholder=1)


def test_a_pool_that_is_being_deleted_or_gone_is_not_shown() -> None:
    known = ledger(structs.replace(pool(), deleting=True), pod("b", "n1", pool_uid="B"))
    assert warm_slots(known) == {}


def shown() -> list[str]:
    return [line for line in generate_latest(metrics.REGISTRY).decode().splitlines() if "warm_slots{" in line]


def test_slots_are_shown_while_this_process_leads() -> None:
    async def lead() -> list[str]:
        work = asyncio.ensure_future(Workers(ruled(), {}, {}).run())
        await asyncio.sleep(0)
        leading = shown()
        work.cancel()
        await asyncio.wait({work})
        return leading

    assert asyncio.run(lead()) == [
        'ateplace_warm_slots{pool="ns/a",state="used"} 1.0',
        'ateplace_warm_slots{pool="ns/a",state="free"} 14.0',
        'ateplace_warm_slots{pool="ns/a",state="placeholder"} 1.0',
    ]
    assert shown() == []
