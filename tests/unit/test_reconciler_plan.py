"""What should become of a node's claims, decided from the ledger alone."""

import pytest
from msgspec import structs

from ateplace import names
from ateplace.cluster.claims import ANNOTATION_BYTES
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import NodeRecord, PodRecord, PoolRecord
from ateplace.cluster.resources import Shape
from ateplace.reconciler.claims.plan import UNBOUND_LOOK, Plan, Release, decide, readable
from ateplace.reconciler.claims.unbound import Unbound
from ateplace.reconciler.pool_pods import Fates
from ateplace.reconciler.pools import Stage, awaited
from ateplace.settings import Reconciler, Settings
from tests.unit import cluster
from tests.unit.cluster import ledger

SETTINGS = Settings(reconciler=Reconciler(linger=120, unbound_wait=600))
LAG = 75.0
TIME = "2026-11-16T10:00:00.123456+00:00"


def node(*pools: str, labelled: bool | None = None, value: str = TIME, size: int = 0) -> NodeRecord:
    has = bool(pools) if labelled is None else labelled
    labels = {names.NODE_LABEL: "true"} if has else {}
    made = cluster.node("n1", *pools, version=7, labels=labels, annotation_bytes=size)
    return structs.replace(made, labelled=has, claims=dict.fromkeys(pools, value))


def pod(uid: str = "p1", on: str = "n1", pool_uid: str = "A", *, placeholder: bool = False) -> PodRecord:
    return cluster.pod(uid, on, pool_uid, placeholder=placeholder)


def pool(uid: str = "A", *, deleting: bool = False, warm: bool = True, name: str = "pool") -> PoolRecord:
    return structs.replace(cluster.pool(uid, warm=warm), name=name, deleting=deleting)


def unbound(filled: Ledger, at: float = 0.0) -> Unbound:
    """What is unbound in a ledger, as it was seen at that time."""
    made = Unbound(LAG, lambda: at)
    for record in filled.pods.values():
        made.changed(None, record)
    return made


def planned(filled: Ledger, now: float = 0.0, waiting: Unbound | None = None) -> Plan:
    plan = decide(filled, waiting or unbound(filled), "n1", now, SETTINGS)
    assert plan is not None
    return plan


NOTHING = Plan(uid="n1-uid", version=7)


@pytest.mark.parametrize(
    ("records", "now", "expected"),
    [
        pytest.param((node(), pool()), 0, NOTHING, id="nothing there, nothing to do"),
        pytest.param(
            (node(), pool(), pod()),
            0,
            structs.replace(NOTHING, add=("A",), label=True),
            id="a pod without a claim gets one, with the label",
        ),
        pytest.param((node("A"), pool(), pod()), 1e6, NOTHING, id="a used claim stays"),
        pytest.param((node("A", value=""), pool(), pod()), 0, NOTHING, id="an empty value is a claim"),
        pytest.param(
            (node("A", value="x"), pool(), pod()),
            0,
            structs.replace(NOTHING, add=("A",)),
            id="a value that is no time is written anew",
        ),
        pytest.param(
            (node("A", labelled=False), pool(), pod()),
            0,
            structs.replace(NOTHING, label=True),
            id="a label that somebody removed comes back",
        ),
        pytest.param(
            (node(labelled=True), pool()),
            0,
            structs.replace(NOTHING, label=False),
            id="a label without a claim goes",
        ),
        pytest.param(
            (node(labelled=True), pod(pool_uid="")),
            0,
            NOTHING,
            id="a label is not taken from under ateoms of no known pool",
        ),
        pytest.param(
            (node("A"), pool()),
            20,
            structs.replace(NOTHING, again=100.0),
            id="an unused claim lingers",
        ),
        pytest.param(
            (node("A"), pool()),
            120,
            structs.replace(NOTHING, release=(Release("A", TIME, True, 120.0),), last=True),
            id="then it goes, and the label with the last one",
        ),
        pytest.param(
            (node("A", "B"), pool(), pool("B", name="other"), pod(pool_uid="B")),
            120,
            structs.replace(NOTHING, release=(Release("A", TIME, True, 120.0),)),
            id="the label stays with the other pool's claim",
        ),
        pytest.param(
            (node("A"), pool(), pod("p2", on="")),
            120,
            structs.replace(NOTHING, again=UNBOUND_LOOK),
            id="an unbound pod of the pool holds its claims",
        ),
        pytest.param(
            (node("A"), pool(warm=False), pod("p2", on="", placeholder=True)),
            120,
            structs.replace(NOTHING, release=(Release("A", TIME, True, 120.0),), last=True),
            id="not so an unbound placeholder that will claim nothing",
        ),
        pytest.param(
            (node("A"), pool(), pod("p2", on="")),
            719,
            structs.replace(NOTHING, again=UNBOUND_LOOK),
            id="for as long as a scheduler may still bind it",
        ),
        pytest.param(
            (node("A"), pool(), structs.replace(pod("p2", on=""), gated=True)),
            120,
            structs.replace(NOTHING, release=(Release("A", TIME, True, 120.0),), last=True),
            id="not so one with scheduling gates",
        ),
        pytest.param(
            (node("A"), pool(), pod("p2", on="")),
            720,
            structs.replace(NOTHING, release=(Release("A", TIME, False, 120.0),), last=True),
            id="but not for ever",
        ),
        pytest.param(
            (node("A"), pool(deleting=True)),
            119,
            structs.replace(NOTHING, again=1.0),
            id="a claim that was written lately lingers though its pool has no pods and is being deleted",
        ),
        pytest.param(
            (node("A"), pool(deleting=True), pod(on="n2")),
            0,
            structs.replace(NOTHING, again=120.0),
            id="while it has pods somewhere its Deployment may make more, so its claims linger",
        ),
        pytest.param(
            (node("A"),),
            0,
            structs.replace(NOTHING, again=120.0),
            id="a pool that was never seen may be new: its claims linger",
        ),
        pytest.param((node("A"), pod()), 1e6, NOTHING, id="orphaned pods keep the claim of their pool that is gone"),
        pytest.param(
            (node("A"), pod(pool_uid="")),
            1e6,
            NOTHING,
            id="ateoms that belong to nobody keep the claim of a pool that is gone",
        ),
        pytest.param(
            (node("A"), pod(pool_uid="", placeholder=True)),
            120,
            structs.replace(NOTHING, release=(Release("A", TIME, True, 120.0),), last=True),
            id="not so placeholders that belong to nobody",
        ),
        pytest.param((node("A"), pool(), pod(placeholder=True)), 1e6, NOTHING, id="a warm placeholder holds a claim"),
        pytest.param(
            (node("A"), pool(warm=False), pod(placeholder=True)),
            120,
            structs.replace(NOTHING, release=(Release("A", TIME, True, 120.0),), last=True),
            id="a cold one does not",
        ),
        pytest.param(
            (node(), pool(), pod(pool_uid="")),
            0,
            structs.replace(NOTHING, add=("A",), label=True),
            id="a pod without the UID label is its name's pool's",
        ),
        pytest.param(
            (node(size=ANNOTATION_BYTES - 100), pool(), pod()),
            0,
            structs.replace(NOTHING, no_room=f"its annotations hold {ANNOTATION_BYTES - 100} of 262144 bytes"),
            id="39: no room in the annotations, no claim",
        ),
    ],
)
def test_a_node_gets_what_its_pods_justify(
    records: tuple[NodeRecord | PodRecord | PoolRecord, ...], now: float, expected: Plan
) -> None:
    assert planned(ledger(*records), now) == expected


def test_a_claim_lingers_from_its_last_use_or_its_last_change_whichever_is_later() -> None:
    filled = ledger(node("A"), pool(), pod())
    filled.pod_gone("p1", 50.0)
    assert planned(filled, 100.0).again == 70.0
    filled.node_seen(structs.replace(node("A", value="2026-11-16T11:00:00Z"), version=8), 90.0)
    assert planned(filled, 100.0).again == 110.0


@pytest.mark.parametrize("gone", [False, True], ids=["being deleted", "gone"])
def test_the_claims_of_a_pool_that_gets_no_more_pods_linger_from_their_last_change_alone(gone: bool) -> None:
    """Nothing needs the node; but an extender that does not know it may answer by what it wrote lately."""
    filled = ledger(node("A"), pool(), pod())
    filled.pod_gone("p1", 100.0)
    if gone:
        filled.pool_gone("A", 100.0)
    else:
        filled.pool_seen(structs.replace(pool(deleting=True), version=9), 100.0)
    assert planned(filled, 110.0) == structs.replace(NOTHING, again=10.0)
    free = structs.replace(NOTHING, release=(Release("A", TIME, True, 120.0),), last=True)
    assert planned(filled, 120.0) == free


@pytest.mark.parametrize("placeholder", [False, True], ids=["an ateom", "a placeholder"])
@pytest.mark.parametrize(
    ("refused_at", "holds"),
    [(None, True), (0.0, True), (120.0 + LAG, True), (121.0 + LAG, False)],
    ids=["never", "before the claim", "while it may have been answered by the claim", "a linger after it for sure"],
)
def test_a_pod_that_was_refused_a_linger_after_a_claim_was_written_is_not_on_its_way_by_it(
    placeholder: bool, refused_at: float | None, holds: bool
) -> None:
    clock = iter([0.0 if refused_at is None else refused_at])
    waiting = Unbound(LAG, lambda: next(clock))
    first = pod("p2", on="", placeholder=placeholder)
    refused = structs.replace(first, refused=refused_at is not None)
    filled = ledger(node("A"), pool(), refused)
    waiting.changed(None, first)
    waiting.changed(first, refused)
    waiting.changed(refused, structs.replace(refused, preempted=True))
    assert (planned(filled, 300.0, waiting).again == UNBOUND_LOOK) is holds


def test_a_pod_that_is_tried_again_may_be_on_its_way() -> None:
    waiting = Unbound(LAG, lambda: 121.0 + LAG)
    first = pod("p2", on="")
    refused = structs.replace(first, refused=True)
    waiting.changed(None, refused)
    filled = ledger(node("A"), pool(), first)
    assert planned(filled, 300.0, waiting).release
    waiting.changed(refused, first)
    assert planned(filled, 300.0, waiting).again == UNBOUND_LOOK
    waiting.changed(first, structs.replace(first, node="n2"))
    assert planned(filled, 300.0, waiting).release


@pytest.mark.parametrize(
    ("ready_at", "advertised", "asks", "holds"),
    [
        (100.0, False, True, False),
        (100.0, False, False, True),
        (100.0, True, True, True),
        (141.0, False, True, True),
        (None, False, True, True),
    ],
    ids=["given up", "it does not ask for it", "advertised once", "atelet is Ready, not for long", "no atelet yet"],
)
def test_a_pod_that_asks_for_what_a_node_was_given_up_for_does_not_hold_its_claim(
    ready_at: float | None, advertised: bool, asks: bool, holds: bool
) -> None:
    """An atelet beside nothing costs money, and its release is the event that lets the pod hear the reason."""
    shape = Shape(((names.KVM, 1), *cluster.CORE), ((names.KVM, 1), *cluster.CORE)) if asks else cluster.SMALL
    filled = ledger(pool(), node("A"), structs.replace(pod("p2", on=""), shape=shape))
    if advertised:
        record = node("A")
        filled.node_seen(structs.replace(record, allocatable=((names.KVM, 4), *record.allocatable)), 0.0)
        filled.node_seen(record, 0.0)
    if ready_at is not None:
        filled.atelet_seen(cluster.atelet("n1"), ready_at)
    plan = planned(filled, 200.0)
    assert (plan.again == UNBOUND_LOOK) is holds
    never = frozenset() if advertised or ready_at != 100.0 else frozenset({names.KVM})
    assert holds or plan.release == (Release("A", TIME, True, 120.0, never),)


def test_there_is_no_plan_for_a_node_that_does_not_exist() -> None:
    filled = ledger(pool(), pod())
    assert decide(filled, Unbound(LAG), "n1", 0.0, SETTINGS) is None
    assert decide(filled, Unbound(LAG), "n2", 0.0, SETTINGS) is None


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ("", True),
        (TIME, True),
        ("2026-11-16T10:00:00Z", True),
        ("true", False),
        ("2026-11-16", False),
        (TIME + "x", False),
    ],
)
def test_a_claims_value_is_empty_or_a_time(value: str, is_one: bool) -> None:
    assert readable(value) is is_one


def test_a_deletion_waits_for_deployments_then_pods_then_claims() -> None:
    filled = ledger(node("A"), pool(deleting=True), pod())
    kept = filled.pools["A"]
    assert awaited(kept, 1, Fates(draining=1), 0.0) is Stage.DEPLOYMENTS
    assert awaited(kept, 0, Fates(draining=1, overdue=1), 0.0) is Stage.PODS
    assert awaited(kept, 0, Fates(draining=1), 0.0) is Stage.DRAINING
    assert awaited(kept, 0, Fates(), 0.0) is Stage.CLAIMS, "what only our watch counts is not waited for"
    filled.pod_gone("p1", 0.0)
    assert awaited(kept, 0, Fates(), 0.0) is Stage.CLAIMS
    assert awaited(kept, 0, Fates(), -1.0) is None, "a claim that was written lately has to linger"
    filled.node_seen(structs.replace(node(), version=8), 0.0)
    assert awaited(kept, 0, Fates(), 0.0) is None


@pytest.mark.parametrize(
    "uid", ["A" * 58, "A" * 63, "A" * 300, "a b", "-a", "a-", "a/b", "ä", "a\n", "."], ids=lambda uid: repr(uid)[:8]
)
def test_a_key_that_the_api_would_refuse_is_left_out_alone(uid: str) -> None:
    filled = ledger(node(), pool(), pool(uid, name="odd"), pod(), pod("odd", pool_uid=uid))
    assert planned(filled) == structs.replace(NOTHING, add=("A",), label=True)


def test_the_longest_key_that_the_api_takes_is_claimed() -> None:
    uid = "A" * 57
    assert planned(ledger(node(), pool(uid), pod(pool_uid=uid))).add == (uid,)


def test_no_claim_is_added_for_a_pool_without_a_record_and_one_that_is_there_stays() -> None:
    assert planned(ledger(node(), pod(pool_uid="forged"))) == NOTHING
    assert planned(ledger(node("gone"), pod(pool_uid="gone")), now=1e6) == NOTHING
    assert planned(ledger(node("gone", value="x"), pod(pool_uid="gone")), now=1e6) == NOTHING


@pytest.mark.parametrize("warm", [True, False])
def test_a_pool_that_is_seen_after_its_pods_brings_their_nodes_back(warm: bool) -> None:
    filled = ledger(node(), pod())
    told: list[str] = []
    filled.subscribe(node=told.append)
    filled.pool_seen(pool(warm=warm), 0.0)
    assert told == ["n1"]
    assert planned(filled).add == ("A",)
