"""How long `hold-warm` keeps a pod from cold nodes."""

from ateplace.cluster.ledger import Ledger
from ateplace.extender.filter.refused_pods import PODS, HoldWarm
from tests.unit.cluster import case


def test_a_pod_is_held_from_its_first_call_for_so_long() -> None:
    hold = HoldWarm(30.0)
    assert hold.holds(case(Ledger(), uid="p", now=100.0))
    assert hold.left(case(Ledger(), uid="p", now=129.0)) == 1.0
    assert not hold.holds(case(Ledger(), uid="p", now=130.0))
    hold.placed("p")
    assert hold.holds(case(Ledger(), uid="p", now=131.0))


def test_without_the_setting_and_for_placeholders_nothing_is_held() -> None:
    assert not HoldWarm(0.0).holds(case(Ledger()))
    assert not HoldWarm(30.0).holds(case(Ledger(), placeholder=True))


def test_memory_is_bounded() -> None:
    hold = HoldWarm(30.0)
    for number in range(PODS + 10):
        hold.holds(case(Ledger(), uid=str(number)))
    assert len(hold._since) == PODS
