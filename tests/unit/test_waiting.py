"""When refused pods are looked at again, and for how long."""

import asyncio

import pytest

from extender.demand import Demand
from extender.filter import retry
from extender.filter.placeholders import Names
from extender.filter.retry import MOST, Among, Waiting
from tests.unit.cluster import SMALL
from tests.unit.kube_server import until


def demand(uid: str, pool: str = "A") -> Demand:
    return Demand(uid=uid, pool=pool, shape=SMALL)


def test_the_last_one_refused_stands_for_all_that_want_the_same_until_it_would_be_placed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "FIRST", 0.01)
    looks: list[str] = []

    def wake(wanted: Demand, names: Names) -> bool:
        looks.append(f"{wanted.uid} {names.all()} {'n2' in names}")
        return len(looks) == 3

    async def use() -> None:
        waits = Waiting(lambda _: True, wake)
        waits.refused(demand("p"), Among(["n1"]))
        waits.refused(demand("q"), Among(["n1", "n2"]))
        await until(lambda: not waits._waits)

    asyncio.run(use())
    assert looks == ["q ['n1', 'n2'] True"] * 3


def test_looks_become_rare_and_a_refusal_makes_the_next_one_soon() -> None:
    async def use() -> None:
        waits = Waiting(lambda _: True, lambda *_: False)
        waits.refused(demand("p"), Among(["n1"]))
        ((key, _),) = waits._waits.items()
        delays = []
        for _ in range(7):
            delays.append(waits._waits[key].delay)
            waits._waits[key].timer.cancel()
            waits._look(key)
        assert delays == [1, 2, 4, 8, 16, 32, 32]
        waits.refused(demand("p"), Among(["n1"]))
        assert waits._waits[key].delay == 1
        waits.close()
        assert not waits._waits

    asyncio.run(use())


def test_nobody_who_waits_no_longer_is_looked_at_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST", 0.01)
    looks: list[str] = []

    def wake(wanted: Demand, _: Names) -> bool:
        looks.append(wanted.uid)
        return True

    async def use() -> None:
        waits = Waiting(lambda wanted: wanted.uid != "5", wake)
        for number in range(MOST + 2):
            waits.refused(demand(str(number), pool=str(number)), Among(["n1"]))
        assert len(waits._waits) == MOST
        await until(lambda: not waits._waits)

    asyncio.run(use())
    assert looks == [str(number) for number in range(2, MOST + 2) if number != 5]
