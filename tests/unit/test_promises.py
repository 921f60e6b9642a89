"""One node per answer to preempt, and no victim for two pods."""

from ateplace.cluster.ledger import Ledger
from extender.fit import Case
from extender.preempt.victims import MOST, SECONDS, Promises
from extender.protocol import MetaPod, MetaVictims
from tests.unit.cluster import case, ledger, pod, ready


def victims(*uids: str, violations: int = 0) -> MetaVictims:
    return MetaVictims([MetaPod(uid) for uid in uids], violations)


def ask(known: Ledger, uid: str, now: float = 0.0) -> Case:
    return case(known, uid=uid, now=now)


KNOWN = ledger(
    *ready("n1", "A", pods=[pod("a", "n1", placeholder=True), pod("b", "n1", placeholder=True)]),
    *ready("n2", "A", pods=[pod("c", "n2", placeholder=True), pod("z", "n2", "B", placeholder=True)]),
    *ready("n3", "A", pods=[pod("ateom", "n3"), pod("d", "n3", placeholder=True)]),
)


def test_one_node_is_answered_the_one_with_the_fewest_victims() -> None:
    asked = {"n1": victims("a", "b"), "n2": victims("c")}
    assert Promises().settle(ask(KNOWN, "p1"), asked) == {"n2": victims("c")}


def test_a_budget_that_would_be_broken_comes_last() -> None:
    asked = {"n1": victims("a", "b"), "n2": victims("c", violations=1)}
    assert Promises().settle(ask(KNOWN, "p1"), asked) == {"n1": victims("a", "b")}


def test_a_pool_uses_its_own_headroom_first() -> None:
    asked = {"n1": victims("a", "b"), "n2": victims("z")}
    assert Promises().settle(ask(KNOWN, "p1"), asked) == {"n1": victims("a", "b")}


def test_a_victim_is_promised_once() -> None:
    promises = Promises()
    assert promises.settle(ask(KNOWN, "p1"), {"n1": victims("a")}) == {"n1": victims("a")}
    assert promises.settle(ask(KNOWN, "p2"), {"n1": victims("a", "b")}) == {"n1": victims("b")}
    assert promises.settle(ask(KNOWN, "p3"), {"n1": victims("a", "b")}) == {}


def test_the_pod_itself_may_ask_again() -> None:
    promises = Promises()
    for _ in range(2):
        assert promises.settle(ask(KNOWN, "p1"), {"n1": victims("a")}) == {"n1": victims("a")}


def test_a_promise_that_was_not_kept_is_forgotten() -> None:
    promises = Promises()
    promises.settle(ask(KNOWN, "p1"), {"n1": victims("a")})
    assert promises.settle(ask(KNOWN, "p2", SECONDS - 0.1), {"n1": victims("a")}) == {}
    assert promises.settle(ask(KNOWN, "p2", SECONDS), {"n1": victims("a")}) == {"n1": victims("a")}


def test_one_that_we_have_ended_is_nobodys_victim() -> None:
    promises = Promises()
    promises.settle(ask(KNOWN, "p1"), {"n1": victims("a")})
    assert not promises.free("a") and promises.free("b")
    promises.ended(["a"], 0.0)
    assert promises.settle(ask(KNOWN, "p1"), {"n1": victims("a")}) == {}
    assert promises.settle(ask(KNOWN, "p1"), {"n1": victims("a", "b")}) == {"n1": victims("b")}


def test_where_others_than_placeholders_would_go_the_scheduler_chooses() -> None:
    asked = {"n3": victims("ateom", "d"), "n1": victims("a")}
    assert Promises().settle(ask(KNOWN, "p1"), asked) == asked
    assert Promises().settle(ask(KNOWN, "p1"), {}) == {}


def test_memory_is_bounded() -> None:
    known = ledger(*ready("n1", "A", pods=[pod(f"ph{i}", "n1", placeholder=True) for i in range(MOST + 5)]))
    promises = Promises()
    promises.settle(ask(known, "p1"), {"n1": victims(*(f"ph{i}" for i in range(MOST + 5)))})
    promises.settle(ask(known, "p2"), {"n1": victims("ph0")})
    assert len(promises._by_victim) <= MOST + 1
