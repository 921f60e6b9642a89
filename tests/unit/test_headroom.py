"""How many placeholders a pool should have, and what is counted about them."""

import pytest
from prometheus_client import generate_latest

from ateplace import names
from ateplace.cluster import pool_rules
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import PodRecord, PoolRecord, pod_record, pool_record
from ateplace.cluster.resources import shape
from ateplace.kube.objects import (
    Condition,
    ContainerState,
    ContainerStatus,
    Metadata,
    Pod,
    PodSpec,
    PodStatus,
    Terminated,
    WorkerPool,
)
from ateplace.process import metrics
from ateplace.reconciler.headroom import metrics as headroom_metrics
from ateplace.reconciler.headroom.metrics import Workers
from ateplace.reconciler.headroom.size import Quota, quota, share
from ateplace.settings import Headroom
from tests.unit import cluster


@pytest.mark.parametrize(
    ("annotation", "settings", "expected"),
    [
        ("", Headroom(), 0),
        ("", Headroom(default=3), 3),
        ("", Headroom(default=3, cap=2), 2),
        ("0", Headroom(default=3), 0),
        ("5", Headroom(), 5),
        ("1000", Headroom(), 1000),
        ("0005", Headroom(), 5),
    ],
)
def test_a_number_is_taken_as_it_is(annotation: str, settings: Headroom, expected: int) -> None:
    assert quota(annotation, 7, 12, settings) == Quota(expected)


@pytest.mark.parametrize(
    ("asked", "replicas", "expected"),
    [("20%", 12, 3), ("20percent", 12, 3), ("20%", 10, 2), ("0%", 10, 0), ("20%", 0, 0), ("150%", 3, 5), ("1%", 1, 1)],
)
def test_a_percentage_is_one_of_the_replicas_rounded_up(asked: str, replicas: int, expected: int) -> None:
    assert quota(asked, 7, replicas, Headroom()) == Quota(expected)


def test_the_annotation_wins_over_the_label_of_the_same_key() -> None:
    """Labels are copied when a pool is cloned, annotations are not."""

    def pool(labels: dict[str, str], annotations: dict[str, str]) -> PoolRecord:
        return pool_record(WorkerPool(Metadata(name="web", uid="u1", labels=labels, annotations=annotations)))

    key, warm = names.HEADROOM_ANNOTATION, names.HEADROOM_WARM_ANNOTATION
    assert pool({key: "5"}, {}).headroom == "5"
    assert pool({key: "5"}, {key: "8"}).headroom == "8"
    assert (pool({}, {}).headroom, pool({}, {}).warm) == ("", True)
    assert not pool({warm: "false"}, {}).warm
    assert pool({warm: "false"}, {warm: "true"}).warm


@pytest.mark.parametrize(
    "annotation",
    [
        "%",
        "5 %",
        "-5%",
        "1001%",
        "5percents",
        "-1",
        "1001",
        "99999",
        "1.5",
        "five",
        " 5",
        "5 ",
        "٥",
        "1e2",
        "0x5",
        "true",
    ],
)
def test_a_bad_value_changes_nothing_and_is_said(annotation: str) -> None:
    asked = quota(annotation, 7, 12, Headroom(default=3))
    assert (asked.count, asked.reason) == (7, "BadHeadroom")
    assert repr(annotation) in asked.message


def test_a_bad_value_does_not_get_around_the_cap() -> None:
    asked = quota("many", 50, 12, Headroom(cap=20))
    assert (asked.count, asked.reason) == (20, "BadHeadroom")
    assert "stays at 20" in asked.message


def test_a_very_long_bad_value_is_not_repeated_in_full() -> None:
    assert len(quota("9" * 100_000, 0, 12, Headroom()).message) < 300


def test_the_cap_wins_and_is_said() -> None:
    asked = quota("50", 0, 12, Headroom(cap=20))
    assert (asked.count, asked.reason) == (20, "HeadroomCapped")
    assert "at most 20" in asked.message


@pytest.mark.parametrize(
    ("allowed", "before", "expected"),
    [
        (pool_rules.Quota(max_nodes=1), 9, 5),
        (pool_rules.Quota(max_headroom=10), 5, 5),
        (pool_rules.Quota(max_headroom=10), 7, 3),
        (pool_rules.Quota(max_headroom=10), 12, 0),
        (pool_rules.Quota(max_headroom=0), 0, 0),
        (pool_rules.Quota(wrong_headroom="it is nonsense"), 0, 2),
    ],
)
def test_pools_share_what_their_namespace_may_have(allowed: pool_rules.Quota, before: int, expected: int) -> None:
    found = share(Quota(5), 2, "ns", allowed, before)
    assert found.count == expected and (found.reason == "HeadroomCapped") is (expected < 5)
    assert share(Quota(0), 2, "ns", allowed, before) == Quota(0)


def pod(*, placeholder: bool, node: str = "", conditions: list[Condition] | None = None, phase: str = "Running") -> Pod:
    kind = names.PLACEHOLDER_LABEL if placeholder else names.POOL_LABEL
    labels = {kind: "web", names.POOL_UID_LABEL: "u1"}
    meta = Metadata(name="p", namespace="ns", uid="p1", labels=labels)
    return Pod(meta, PodSpec(node_name=node), PodStatus(phase=phase, conditions=conditions))


@pytest.mark.parametrize(
    ("kind", "reason", "preempted"),
    [
        ("DisruptionTarget", "PreemptionByScheduler", True),
        ("DisruptionTarget", "EvictionByEvictionAPI", False),
        ("Ready", "", False),
    ],
)
def test_a_preempted_placeholder_is_told_from_a_deleted_one(kind: str, reason: str, preempted: bool) -> None:
    seen = pod_record(pod(placeholder=True, conditions=[Condition(kind, "True", reason)]))
    assert seen is not None
    assert seen.preempted is preempted


def waited(pod: Pod) -> float | None:
    record = pod_record(pod)
    assert record is not None
    return record.waited


def test_the_wait_is_the_init_containers() -> None:
    waiting = pod(placeholder=False, node="n1")
    assert waiting.status is not None
    ended = Terminated("2026-11-16T10:00:00Z", "2026-11-16T10:00:07Z")
    waiting.status.init_container_statuses = [ContainerStatus("other"), ContainerStatus(names.INIT_CONTAINER)]
    assert waited(waiting) is None
    waiting.status.init_container_statuses[1].state = ContainerState(terminated=ended)
    assert waited(waiting) == 7.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def sample(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(f"ateplace_{name}", labels) or 0.0


def workers(clock: Clock, wanted: dict[str, tuple[str, int]], ledger: Ledger | None = None) -> Workers:
    ledger = ledger or Ledger()
    ledger.pool_seen(cluster.pool("u1"), 0.0)
    made = Workers(ledger, wanted, {}, clock=clock)
    made._counting = True
    return made


def seen_pod(
    uid: str,
    pool_uid: str,
    pool: str,
    node: str,
    *,
    placeholder: bool,
    preempted: bool = False,
    finished: bool = False,
) -> PodRecord:
    namespace, _, name = pool.partition("/")
    return PodRecord(
        uid=uid,
        namespace=namespace,
        name=uid,
        pool=name,
        pool_uid=pool_uid,
        node=node,
        shape=shape(PodSpec()),
        placeholder=placeholder,
        preempted=preempted,
        finished=finished,
    )


def test_a_preemption_is_counted_and_timed_until_its_refill() -> None:
    clock = Clock()
    seen = workers(clock, {"u1": ("ns/refill", 2)})
    there = seen_pod("a", "u1", "ns/refill", "n1", placeholder=True)
    going = seen_pod("a", "u1", "ns/refill", "n1", placeholder=True, preempted=True)
    before = sample("placeholder_refill_seconds_sum"), sample("placeholder_refill_seconds_count")
    seen.changed(None, there)
    seen.changed(there, going)
    seen.changed(going, None)
    assert sample("placeholders_preempted_total", pool="ns/refill") == 1
    pending = seen_pod("b", "u1", "ns/refill", "", placeholder=True)
    seen.changed(None, pending)
    clock.now += 12.5
    seen.changed(pending, seen_pod("b", "u1", "ns/refill", "n2", placeholder=True))
    after = sample("placeholder_refill_seconds_sum"), sample("placeholder_refill_seconds_count")
    assert (after[0] - before[0], after[1] - before[1]) == (12.5, 1)


def test_one_deleted_by_hand_owes_no_refill() -> None:
    seen = workers(Clock(), {"u1": ("ns/hand", 2)})
    there = seen_pod("a", "u1", "ns/hand", "n1", placeholder=True)
    before = sample("placeholder_refill_seconds_count")
    seen.changed(there, None)
    seen.changed(None, seen_pod("b", "u1", "ns/hand", "n1", placeholder=True))
    assert sample("placeholder_refill_seconds_count") == before
    assert sample("placeholders_preempted_total", pool="ns/hand") == 0


def test_an_ateom_starts_warm_where_atelet_is_ready() -> None:
    ledger = cluster.ledger(cluster.node("n1"), cluster.atelet("n1"))
    seen = workers(Clock(), {}, ledger)
    for uid, node in (("a", "n1"), ("b", "n1"), ("c", "n2")):
        unbound = seen_pod(uid, "u1", "ns/starts", "", placeholder=False)
        bound = seen_pod(uid, "u1", "ns/starts", node, placeholder=False)
        seen.changed(None, unbound)
        seen.changed(unbound, bound)
        seen.changed(bound, bound)
    assert sample("ateom_starts_total", pool="ns/starts", start="warm") == 2
    assert sample("ateom_starts_total", pool="ns/starts", start="cold") == 1
    headroom_metrics.forget("ns/starts")
    assert 'pool="ns/starts"' not in generate_latest(metrics.REGISTRY).decode()


def test_a_finished_ateom_and_one_without_our_label_are_no_starts() -> None:
    seen = workers(Clock(), {})
    seen.changed(None, seen_pod("a", "u1", "ns/none", "n1", placeholder=False, finished=True))
    seen.changed(None, seen_pod("b", "", "ns/none", "n1", placeholder=False))
    assert 'pool="ns/none"' not in generate_latest(metrics.REGISTRY).decode()


def test_a_placeholder_that_was_preempted_and_failed_is_counted_once() -> None:
    seen = workers(Clock(), {"u1": ("ns/failed", 1)})
    going = seen_pod("a", "u1", "ns/failed", "n1", placeholder=True, preempted=True)
    failed = seen_pod("a", "u1", "ns/failed", "n1", placeholder=True, preempted=True, finished=True)
    seen.changed(going, failed)
    seen.changed(failed, None)
    assert sample("placeholders_preempted_total", pool="ns/failed") == 1


def test_what_was_there_before_us_is_not_counted_as_a_start() -> None:
    seen = workers(Clock(), {})
    seen._counting = False
    seen.changed(None, seen_pod("a", "u1", "ns/before", "n1", placeholder=False))
    assert 'pool="ns/before"' not in generate_latest(metrics.REGISTRY).decode()


def test_nothing_is_kept_of_a_pool_that_is_gone() -> None:
    """Its pods may be seen to go after it, by another watch."""
    ledger = Ledger()
    seen = workers(Clock(), {"u1": ("ns/gone", 1)}, ledger)
    seen.changed(seen_pod("a", "u1", "ns/gone", "n1", placeholder=True, preempted=True), None)
    assert sample("placeholders_preempted_total", pool="ns/gone") == 1
    ledger.pool_gone("u1", 0.0)
    headroom_metrics.forget("ns/gone")
    assert not len(seen._refills)
    seen.changed(seen_pod("b", "u1", "ns/gone", "n1", placeholder=True, preempted=True), None)
    seen.changed(None, seen_pod("c", "u1", "ns/gone", "n1", placeholder=False))
    assert not len(seen._refills)
    assert 'pool="ns/gone"' not in generate_latest(metrics.REGISTRY).decode()


def test_placeholders_are_counted_by_pool_and_state() -> None:
    seen = workers(Clock(), {"u1": ("ns/a", 3), "u2": ("ns/b", 2)})
    seen._placeholders = {
        "1": seen_pod("1", "u1", "ns/a", "n1", placeholder=True),
        "2": seen_pod("2", "u1", "ns/a", "", placeholder=True),
        "3": seen_pod("3", "u1", "ns/a", "n1", placeholder=True, finished=True),
    }
    assert seen.counts() == {
        "ns/a": {"wanted": 3, "running": 1, "pending": 1},
        "ns/b": {"wanted": 2, "running": 0, "pending": 0},
    }
