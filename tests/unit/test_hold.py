"""How long `hold-warm` holds a pod back, and that it is not forgotten."""

import asyncio

from ateplace.cluster.ledger import Ledger
from extender.demand import Demand
from extender.filter.hold import PODS, Hold
from extender.filter.placeholders import Names
from tests.unit.cluster import case


class Sent(list[str]):
    def all(self) -> list[str]:
        return self


def test_a_pod_is_held_from_its_first_call_for_so_long() -> None:
    hold = Hold(30.0, lambda *_: None)
    assert hold.may(case(Ledger(), uid="p", now=100.0))
    assert hold.may(case(Ledger(), uid="p", now=129.9))
    assert not hold.may(case(Ledger(), uid="p", now=130.0))
    hold.placed("p")
    assert hold.may(case(Ledger(), uid="p", now=131.0))


def test_without_the_setting_and_for_placeholders_nothing_is_held() -> None:
    assert not Hold(0.0, lambda *_: None).may(case(Ledger()))
    assert not Hold(30.0, lambda *_: None).may(case(Ledger(), placeholder=True))


def test_memory_is_bounded() -> None:
    hold = Hold(30.0, lambda *_: None)
    for number in range(PODS + 10):
        hold.may(case(Ledger(), uid=str(number)))
    assert len(hold._since) == PODS


def test_when_it_is_over_a_node_is_opened_once_for_the_pool() -> None:
    async def main() -> list[str]:
        over: asyncio.Queue[str] = asyncio.Queue()

        def open_for(demand: Demand, sent: Names) -> None:
            over.put_nowait(f"{demand.pool} {sent.all()}")

        hold = Hold(0.05, open_for)
        for uid in ("p", "q"):
            held = case(Ledger(), uid=uid, now=100.0)
            assert hold.may(held)
            hold.refused(held, Sent(["n1"]))
        first = await asyncio.wait_for(over.get(), 5)
        hold.refused(case(Ledger(), uid="r", now=100.0), Sent())
        hold.close()
        assert not hold._timers
        return [first, *(over.get_nowait() for _ in range(over.qsize()))]

    assert asyncio.run(main()) == ["A ['n1']"]
