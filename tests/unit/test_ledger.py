"""The rules of the ledger that the roles lean on, one by one."""

from collections import Counter
from math import inf

import pytest
from msgspec import structs

from ateplace.cluster.claims import UNDER_WAY
from ateplace.cluster.ledger import EXPIRY, UNSEEN, Ledger
from ateplace.cluster.state import Reading, State, Warmth
from tests.unit import cluster
from tests.unit.ledgers import LARGE, SMALL, acknowledge, answerable, atelet, idle, missing, node, pod, pool


def test_a_claim_goes_from_none_to_fresh_to_held_to_lingering_to_none() -> None:
    ledger = Ledger()
    ledger.node_seen(node(), 0)
    states = [ledger.claims.state("n1", "A")]
    acknowledge(ledger, 2, sent=1)
    states.append(ledger.claims.state("n1", "A"))
    ledger.pod_seen(pod(on="n1"), 2)
    states.append(ledger.claims.state("n1", "A"))
    ledger.pod_gone("p1", 3)
    states.append(ledger.claims.state("n1", "A"))
    ledger.node_seen(node(version=9), 4)
    states.append(ledger.claims.state("n1", "A"))
    assert states == [State.NONE, State.FRESH, State.HELD, State.LINGERING, State.NONE]
    assert not ledger.pools and not ledger.claims.nodes


def test_a_claim_is_idle_since_it_was_last_used_or_last_changed_whichever_is_later() -> None:
    ledger = Ledger()
    ledger.node_seen(node(A="1"), 10)
    assert idle(ledger, 15) == 5
    ledger.pod_seen(pod(on="n1"), 20)
    assert idle(ledger, 25) is None
    ledger.pod_gone("p1", 30)
    assert idle(ledger, 35) == 5
    ledger.node_seen(node(version=2, A="2"), 40)
    assert idle(ledger, 45) == 5
    ledger.node_seen(node(version=3, A="2"), 50)
    assert idle(ledger, 60) == 20


def test_a_node_may_be_answered_only_when_we_wrote_its_claim_lately() -> None:
    ledger = Ledger()
    ledger.node_seen(node(A="1"), 0)
    assert not answerable(ledger, -60), "a claim that another process wrote"
    ledger.pod_seen(pod(on="n1"), 0)
    assert not answerable(ledger, -60), "nor one that a watch shows to be held"
    acknowledge(ledger, 2, sent=5, value="2")
    assert answerable(ledger, 5.0), "our own write"
    assert not answerable(ledger, 5.1), "our own write, too long ago"
    ledger.pod_gone("p1", 6)
    assert answerable(ledger, 4.9), "whoever uses it"


def test_an_event_from_before_our_write_does_not_undo_it_and_a_later_one_does() -> None:
    ledger = Ledger()
    ledger.node_seen(node(version=1), 0)
    acknowledge(ledger, 5)
    ledger.node_seen(node(version=4), 1)
    assert answerable(ledger, -1)
    ledger.node_seen(node(version=6), 2)
    assert not answerable(ledger, -1)


def test_an_acknowledgement_that_arrives_after_the_removal_was_watched_is_ignored() -> None:
    ledger = Ledger()
    ledger.node_seen(node(version=6), 0)
    acknowledge(ledger, 5)
    assert not answerable(ledger, -1)
    assert ledger.claims.state("n1", "A") is State.NONE
    assert not ledger.pools and not ledger.nodes["n1"].pools, "nothing speaks for it"


@pytest.mark.parametrize("quicker", [True, False], ids=["watched before the acknowledgement", "watched after it"])
def test_our_own_write_is_not_answered_once_somebody_has_removed_the_label(quicker: bool) -> None:
    ledger = Ledger()
    ledger.node_seen(node(version=1), 0)
    removed = structs.replace(node(version=6, A="t"), labelled=False)
    if quicker:
        ledger.node_seen(removed, 1)
    acknowledge(ledger, 5)
    if not quicker:
        assert answerable(ledger, -1)
        ledger.node_seen(removed, 1)
    assert not answerable(ledger, -1)


def test_a_node_that_another_process_claimed_before_our_opening_was_answered_is_not_our_own() -> None:
    ledger = Ledger()
    ledger.node_seen(node(version=1), 0)
    ledger.claims.sending("n1", "A", "t")
    ledger.node_seen(node(version=2, A="t"), 1)
    ledger.node_seen(node(version=3, A="t", B="theirs"), 1)
    ledger.claims.sending("n1", "B", "u")
    ledger.node_seen(node(version=4, A="t", B="u"), 2)  # now every value is one that we wrote
    acknowledge(ledger, 2, opened=True)
    assert not ledger.nodes["n1"].own


def test_what_this_process_wrote_is_not_remembered_for_every_pool_that_ever_came_by() -> None:
    ledger = Ledger()
    ledger.node_seen(node(B="theirs"), 0)
    for version in range(2, 1000, 2):
        ledger.claims.sending("n1", f"A{version}", "t")
        ledger.node_seen(node(version=version, B="theirs", **{f"A{version}": "t"}), version)
        ledger.node_seen(node(version=version + 1, B="theirs"), version)
    assert len(ledger.nodes["n1"].wrote) <= 1 + UNDER_WAY


def test_another_node_under_the_same_name_has_none_of_the_old_ones_claims() -> None:
    ledger = Ledger()
    ledger.node_seen(node(), 0)
    acknowledge(ledger, 5)
    ledger.others_read("n1", "n1-uid", Reading((), 0, frozenset(), 0))
    ledger.node_seen(node(uid="other", version=7), 1)
    assert ledger.claims.state("n1", "A") is State.NONE
    assert ledger.nodes["n1"].reading is None
    acknowledge(ledger, 8)
    assert ledger.claims.state("n1", "A") is State.NONE, "the write was to the old node"


def test_succeeded_and_failed_pods_hold_nothing_and_terminating_ones_do() -> None:
    ledger = Ledger()
    ledger.node_seen(node(A="1"), 0)
    ledger.pod_seen(pod(on="n1", terminating=True), 0)
    assert ledger.claims.state("n1", "A") is State.HELD
    ledger.pod_seen(pod(on="n1", finished=True), 1)
    assert ledger.claims.state("n1", "A") is State.LINGERING
    assert ledger.nodes["n1"].pods == 0


def test_a_pod_without_the_uid_label_follows_the_pool_that_has_its_name() -> None:
    ledger = Ledger()
    ledger.pod_seen(pod(on="n1", pool_uid=""), 0)
    assert missing(ledger, "n1") == []
    ledger.pool_seen(pool("A"), 1)
    assert missing(ledger, "n1") == ["A"]
    ledger.pool_seen(pool("B"), 2)
    ledger.pool_gone("A", 3)
    assert missing(ledger, "n1") == ["B"]
    ledger.pool_gone("B", 4)
    assert missing(ledger, "n1") == [] and not ledger.pools


def test_pods_without_the_uid_label_wait_in_the_order_in_which_they_came() -> None:
    ledger, came = Ledger(), [f"p{number}" for number in range(40)]
    for uid in came:
        ledger.pod_seen(pod(uid, pool_uid=""), 0)
    ledger.pool_seen(structs.replace(pool("A"), name="pool"), 1)
    assert list(ledger.pools["A"].waiting) == came


@pytest.mark.parametrize("pool_first", [True, False])
def test_a_pod_with_the_uid_of_a_pool_in_another_namespace_holds_nothing(pool_first: bool) -> None:
    ledger = Ledger()
    forged, real = structs.replace(pod("f", on="n1"), namespace="evil"), pod("r", on="n2")
    if pool_first:
        ledger.pool_seen(pool(), 0)
    ledger.pod_seen(forged, 0)
    ledger.pool_seen(pool(), 0)
    ledger.pod_seen(real, 0)
    assert (ledger.claims.live("n1", "A"), ledger.claims.live("n2", "A"), ledger.pools["A"].pods) == (0, 1, 1)
    assert ledger.owners.pool_of(forged) == "" and ledger.nodes["n1"].pods == 1
    ledger.pool_gone("A", 1)
    for uid in ("f", "r"):
        ledger.pod_gone(uid, 2)
    assert not (ledger.pools or ledger.nodes or ledger.pods)


def test_placeholders_hold_a_claim_only_while_their_pool_is_warm() -> None:
    ledger = Ledger()
    ledger.pool_seen(pool(), 0)
    ledger.node_seen(node(A="1"), 0)
    ledger.pod_seen(pod(on="n1", placeholder=True), 0)
    assert ledger.claims.state("n1", "A") is State.HELD
    ledger.pool_seen(pool(warm=False), 5)
    assert ledger.claims.state("n1", "A") is State.LINGERING
    assert idle(ledger, 7) == 2


def test_a_pick_counts_until_the_watch_shows_where_the_pod_is() -> None:
    ledger = Ledger()
    ledger.node_seen(node(), 0)
    ledger.node_seen(node("n2"), 0)
    ledger.pod_seen(pod(), 0)
    ledger.picks.assume("p1", "A", "n1", SMALL, now=0)
    assert (ledger.nodes["n1"].ateoms, ledger.pools["A"].pending) == (1, 0)
    ledger.pod_seen(pod(on="n2"), 1)
    assert (ledger.nodes["n1"].ateoms, ledger.nodes["n2"].ateoms) == (0, 1)
    assert not ledger.picks.attempts


def test_a_node_that_failed_a_pod_is_remembered_for_it_until_it_is_bound() -> None:
    ledger = Ledger()
    ledger.picks.assume("p1", "A", "n1", SMALL, now=0)
    ledger.picks.failed("p1")
    ledger.picks.assume("p1", "A", "n2", SMALL, now=1)
    ledger.picks.failed("p1")
    ledger.picks.forget("p1")
    assert ledger.picks.attempts["p1"].avoid == ("n1", "n2")
    assert not ledger.pools, "nothing in flight"
    ledger.pod_seen(pod(on="n3"), 2)
    assert not ledger.picks.attempts


def test_a_pick_that_nobody_speaks_of_again_expires() -> None:
    ledger = Ledger()
    ledger.pod_seen(pod("p1"), 0)
    ledger.picks.assume("p1", "A", "n1", SMALL, now=0)
    ledger.picks.assume("p2", "A", "n1", SMALL, now=EXPIRY - 1)
    ledger.picks.assume("p3", "A", "n1", SMALL, now=EXPIRY)
    assert list(ledger.picks.attempts) == ["p2", "p3"]


def test_a_pick_for_a_pod_that_the_watch_never_showed_expires_soon_and_with_any_event() -> None:
    ledger = Ledger()
    ledger.pod_seen(pod("p1"), 0)
    for uid in ("p1", "p2", "p3"):
        ledger.picks.assume(uid, "A", "n1", SMALL, now=0)
    ledger.pod_seen(pod("p3"), UNSEEN - 1)
    ledger.node_seen(node(), UNSEEN)
    assert list(ledger.picks.attempts) == ["p1", "p3"]
    assert ledger.nodes["n1"].pods == 2


def test_an_ateom_that_becomes_a_placeholder_counts_as_one() -> None:
    ledger = Ledger()
    ledger.pool_seen(pool(warm=False), 0)
    ledger.pod_seen(pod(on="n1"), 0)
    ledger.pod_seen(pod(on="n1", placeholder=True), 1)
    assert (ledger.claims.live("n1", "A"), ledger.nodes["n1"].placeholders) == (0, 1)
    ledger.pod_gone("p1", 2)
    assert not ledger.nodes


def test_placeholders_of_a_pool_that_nobody_has_seen_hold_nothing_and_ateoms_do() -> None:
    ledger = Ledger()
    ledger.node_seen(node(A="1"), 0)
    ledger.pod_seen(pod(on="n1", placeholder=True), 0)
    assert ledger.claims.state("n1", "A") is State.FRESH
    ledger.pool_seen(pool(), 5)
    assert ledger.claims.state("n1", "A") is State.HELD
    ledger.pool_gone("A", 10)
    assert idle(ledger, 12) == 2
    ledger.pod_seen(pod("p2", on="n1"), 13)
    assert ledger.claims.state("n1", "A") is State.HELD, "an ateom that its pool has left behind"


def test_a_pick_for_a_pod_that_is_bound_already_counts_for_nothing() -> None:
    ledger = Ledger()
    ledger.pod_seen(pod(on="n1"), 0)
    ledger.picks.assume("p1", "A", "n2", SMALL, now=1)
    assert not ledger.picks.attempts and "n2" not in ledger.nodes


def test_fullness_is_the_largest_share_of_anything() -> None:
    ledger = Ledger()
    ledger.node_seen(node(), 0)
    ledger.pod_seen(pod("p1", on="n1"), 0)
    assert ledger.nodes["n1"].fullness == 200 / 8000
    ledger.pod_seen(pod("p2", on="n1", shape=LARGE), 0)
    assert ledger.nodes["n1"].fullness == 1100 / 8000


def test_atelet_on_its_way_is_warmer_than_none_and_ready_is_warmest() -> None:
    ledger = Ledger()
    ledger.daemonset_seen(cluster.template(), 0)
    ledger.node_seen(node(), 0)
    entry = ledger.nodes["n1"]
    seen = [entry.warmth()]
    acknowledge(ledger, 2)
    seen.append(entry.warmth())
    ledger.atelet_seen(atelet(bound=False), 1)
    assert not entry.atelet_bound
    ledger.atelet_seen(atelet(), 2)
    assert ledger.nodes["n1"].atelet_bound
    assert entry.unready_since == 1
    ledger.atelet_seen(atelet(ready=True), 3)
    seen.append(entry.warmth())
    assert entry.unready_since == inf
    ledger.atelet_gone("a1", 4)
    seen.append(entry.warmth())
    assert seen == [Warmth.COLD, Warmth.CLAIMED, Warmth.READY, Warmth.CLAIMED]


def test_an_atelet_that_fails_and_is_made_anew_does_not_begin_a_new_time() -> None:
    ledger = Ledger()
    ledger.daemonset_seen(cluster.template(), 0)
    ledger.node_seen(node(A="1"), 0)
    entry = ledger.nodes["n1"]
    ledger.atelet_seen(atelet("a1"), 1)
    ledger.atelet_gone("a1", 50)
    ledger.atelet_seen(atelet("a2"), 51)
    assert entry.unready_since == 1
    ledger.atelet_gone("a2", 60)
    ledger.node_seen(node(version=2), 61)
    assert entry.unready_since == inf, "without a claim nobody waits for it"


def test_listeners_hear_of_every_node_and_pool_that_changed() -> None:
    ledger = Ledger()
    heard: Counter[str] = Counter()
    ledger.subscribe(node=lambda name: heard.update([name]), pool=lambda uid: heard.update([uid]))
    ledger.node_seen(node(), 0)
    ledger.pod_seen(pod(on="n1"), 0)
    ledger.pool_seen(pool(), 0)
    assert heard["n1"] >= 2 and heard["A"] >= 2


def test_a_node_is_told_of_pods_that_belong_to_no_pool() -> None:
    ledger = Ledger()
    told: list[str] = []
    ledger.subscribe(node=told.append)
    ledger.pod_seen(pod("p1", on="n1", pool_uid=""), 0.0)
    assert told == ["n1"]
    ledger.pod_gone("p1", 1.0)
    assert told == ["n1", "n1"]
    ledger.pod_seen(pod("p2", pool_uid=""), 2.0)
    assert told == ["n1", "n1"]


def test_what_was_read_of_a_node_is_kept_no_longer_than_it_is_believed() -> None:
    """It has an entry for every pod there, and pods of others are to cost no memory."""
    known = cluster.ledger(cluster.node("n1"), cluster.node("n2"))
    for name, at in (("n1", 1.0), ("n2", 1.0), ("n1", 30.0)):
        known.others_read(name, f"{name}-uid", Reading((), 0, frozenset(), at))

    def kept(now: float) -> list[str]:
        known.picks.expire(now)
        return [name for name, one in known.nodes.items() if one.reading]

    assert kept(60.9) == ["n1", "n2"]
    assert kept(61.9) == ["n1"]
    known.others_changed("n1")
    assert kept(90.0) == [] and len(known._tables._readings) == 0


def test_what_was_read_of_a_node_goes_with_the_node() -> None:
    known = cluster.ledger(cluster.node("n1"))
    known.others_read("n1", "n1-uid", Reading((), 0, frozenset(), 1.0))
    known.node_gone("n1", 2.0)
    assert len(known._tables._readings) == 0


def test_ateoms_that_a_pool_is_still_to_have_are_awaited_for_some_seconds_after_it_was_scaled_up() -> None:
    known = cluster.ledger(cluster.pool(replicas=3), cluster.pod("1", "n1"), cluster.pod("2"))
    known.pod_seen(cluster.pod("ph", placeholder=True), 0.0)
    entry = known.pools["A"]
    assert entry.awaited(4.9) == 2, "one that waits, one that is to be made"
    assert entry.awaited(5.0) == 1, "it has not come: a quota, a paused Deployment, a controller that is down"
    for uid in ("3", "4"):
        known.pod_seen(cluster.pod(uid), 6.0)
    assert entry.awaited(6.0) == 3, "all that wait, however many it should have"
    known.pool_seen(cluster.pool(replicas=6), 7.0)
    assert entry.awaited(8.0) == 5
    known.pool_seen(cluster.pool(replicas=5), 20.0)
    assert entry.awaited(20.0) == 3, "fewer than before is no rise"
    known.pool_gone("A", 21.0)
    assert entry.awaited(21.0) == 3


def test_ateoms_that_a_pool_of_this_name_left_behind_are_not_awaited_twice() -> None:
    """`--cascade=orphan`, and the pool made again: its Deployment has its pods, which carry the old pool's UID."""
    known = cluster.ledger(cluster.pool("B", replicas=4), *(cluster.pod(str(each)) for each in range(4)))
    assert (known.pools["A"].awaited(9.0), known.pools["B"].awaited(9.0)) == (4, 0)


def test_pods_with_scheduling_gates_do_not_wait() -> None:
    gated = structs.replace(cluster.pod("g"), gated=True)
    known = cluster.ledger(cluster.pool(replicas=2), cluster.pod("1"), gated)
    entry = known.pools["A"]
    assert (entry.pending, entry.awaited(9.0), known.picks.unpicked.pods) == (1, 1, 1)
    assert not known.picks.is_unpicked("g")
    known.pod_seen(cluster.pod("g"), 1.0)
    assert (entry.pending, known.picks.unpicked.pods) == (2, 2), "the gates are gone"
    known.pod_gone("g", 2.0)
    assert (entry.pending, known.picks.unpicked.pods) == (1, 1)
