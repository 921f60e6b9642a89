"""Which placeholder goes for which pod, and whose room waits for its ateom."""

from ateplace.cluster.ledger import Ledger
from ateplace.extender.context import Case
from ateplace.extender.preempt.decide import best, new_victims
from ateplace.extender.protocol import MetaPod, MetaVictims
from ateplace.extender.victims import MOST, SECONDS, Victims
from tests.unit.cluster import case, ledger, pod, ready


def named(*uids: str, violations: int = 0) -> MetaVictims:
    return MetaVictims([MetaPod(uid) for uid in uids], violations)


def ask(known: Ledger, uid: str = "p1", now: float = 0.0) -> Case:
    return case(known, uid=uid, now=now)


KNOWN = ledger(
    *ready("n1", "A", pods=[pod("a", "n1", placeholder=True), pod("b", "n1", placeholder=True)]),
    *ready("n2", "A", pods=[pod("c", "n2", placeholder=True), pod("z", "n2", "B", placeholder=True)]),
    *ready("n3", "A", pods=[pod("ateom", "n3"), pod("d", "n3", placeholder=True)]),
)


def test_one_node_is_answered_the_one_with_the_fewest_victims() -> None:
    assert best(ask(KNOWN), {"n1": named("a", "b"), "n2": named("c")}, Victims()) == "n2"


def test_a_budget_that_would_be_broken_comes_last() -> None:
    assert best(ask(KNOWN), {"n1": named("a", "b"), "n2": named("c", violations=1)}, Victims()) == "n1"


def test_a_pool_uses_its_own_headroom_first() -> None:
    assert best(ask(KNOWN), {"n1": named("a", "b"), "n2": named("z")}, Victims()) == "n1"


def test_where_others_than_placeholders_would_go_the_scheduler_chooses() -> None:
    assert best(ask(KNOWN), {"n3": named("ateom", "d"), "n1": named("a")}, Victims()) == ""
    assert best(ask(KNOWN), {}, Victims()) == ""


def test_a_victim_is_promised_once_and_the_pod_itself_may_ask_again() -> None:
    victims = Victims()
    victims.promise("a", "p1", 0.0)
    assert new_victims(ask(KNOWN, "p1"), named("a", "b"), victims) == ["a", "b"]
    assert new_victims(ask(KNOWN, "p2"), named("a", "b"), victims) == ["b"]
    victims.withdraw(["a"])
    assert new_victims(ask(KNOWN, "p2"), named("a", "b"), victims) == ["a", "b"]


def test_a_promise_that_was_not_kept_is_forgotten() -> None:
    victims = Victims()
    victims.promise("a", "p1", 0.0)
    victims.expire(SECONDS - 0.1)
    assert not victims.is_free("a", "p2")
    victims.expire(SECONDS)
    assert victims.is_free("a", "p2")


def test_a_placeholder_that_we_have_ended_is_no_pods_victim() -> None:
    victims = Victims()
    victims.promise("a", "p1", 0.0)
    victims.ended("a", "n1", "A", 0.0)
    assert not victims.is_free("a", "p1") and not victims.is_free("a") and victims.is_free("b")


def test_a_room_waits_until_an_ateom_is_answered_its_node() -> None:
    victims = Victims()
    for uid, node in (("v1", "n1"), ("v2", "n1"), ("v3", "n2")):
        victims.ended(uid, node, "A", 0.0)
    victims.ended("v1", "n1", "A", 0.0)  # said twice, made once
    assert (victims.made_room(), victims.waiting("A"), victims.waiting("B")) == ({"n1": 2, "n2": 1}, 3, 0)
    victims.taken("n1")
    victims.taken("elsewhere")
    assert (victims.made_room(), victims.waiting("A")) == ({"n1": 1, "n2": 1}, 2)
    victims.taken("n1")
    victims.taken("n1")
    assert (victims.made_room(), victims.waiting("A")) == ({"n2": 1}, 1)
    assert not victims.is_free("v1"), "the scheduler may still name it"


def test_a_room_that_no_ateom_took_is_given_up() -> None:
    victims = Victims()
    victims.ended("v1", "n1", "A", 0.0)
    victims.ended("v2", "n1", "B", 1.0)
    victims.expire(SECONDS - 0.1)
    assert victims.made_room() == {"n1": 2}
    victims.expire(SECONDS)
    assert victims.made_room() == {"n1": 1} and (victims.waiting("A"), victims.waiting("B")) == (0, 1)
    victims.expire(SECONDS + 1.0)
    assert victims.made_room() == {}


def test_memory_is_bounded() -> None:
    victims = Victims()
    for number in range(MOST + 5):
        victims.ended(f"v{number}", "n1", "A", 0.0)
    victims.expire(0.0)
    assert victims.made_room() == {"n1": MOST}
