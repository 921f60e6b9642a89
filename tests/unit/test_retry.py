"""When refused pods are looked at again, and for how long."""

import asyncio

import pytest

from ateplace import errors
from ateplace.extender.context import Sent, TryAgain
from ateplace.extender.demand import Demand
from ateplace.extender.filter import refused_pods
from ateplace.extender.filter.refused_pods import MOST, Among, Retry
from tests.unit.cluster import SMALL
from tests.unit.kube_server import until


def demand(uid: str, pool: str = "A") -> Demand:
    return Demand(uid=uid, pool=pool, shape=SMALL)


def test_the_last_one_refused_stands_for_all_that_want_the_same_until_it_would_be_placed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refused_pods, "FIRST", 0.01)
    looks: list[str] = []

    async def claim(wanted: Demand, names: Sent) -> bool:
        looks.append(f"{wanted.uid} {names.all()} {'n2' in names}")
        return len(looks) == 3

    async def use() -> None:
        waits = Retry(lambda _: True, claim)
        waits.later(demand("p"), Among(["n1"]))
        waits.later(demand("q"), Among(["n1", "n2"]))
        await until(lambda: not waits._kinds)

    asyncio.run(use())
    assert looks == ["q ['n1', 'n2'] True"] * 3


def test_looks_become_rare_and_a_refusal_makes_the_next_one_soon() -> None:
    async def claim(*_: object) -> bool:
        return False

    async def use() -> None:
        waits = Retry(lambda _: True, claim)
        waits.later(demand("p"), Among(["n1"]))
        ((key, _),) = waits._kinds.items()
        delays = []
        for _ in range(7):
            delays.append(waits._kinds[key].delay)
            waits._kinds[key].timer.cancel()
            await waits._look(key, waits._kinds[key])
        assert delays == [1, 2, 4, 8, 16, 32, 32]
        waits.later(demand("p"), Among(["n1"]))
        assert waits._kinds[key].delay == 1
        waits.close()
        assert not waits._kinds

    asyncio.run(use())


@pytest.mark.parametrize("failure", [errors.Conflict("409"), TimeoutError(), TryAgain("no view")], ids=repr)
def test_a_pod_whose_claim_failed_is_not_forgotten(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    monkeypatch.setattr(refused_pods, "FIRST", 0.01)
    looks = 0

    async def claim(*_: object) -> bool:
        nonlocal looks
        looks += 1
        if looks < 3:
            raise failure
        return True

    async def use() -> None:
        waits = Retry(lambda _: True, claim)
        waits.later(demand("p"), Among(["n1"]))
        await until(lambda: not waits._kinds)

    asyncio.run(use())
    assert looks == 3


def test_a_pod_that_waits_no_longer_is_not_looked_at_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_pods, "FIRST", 0.01)
    looks: list[str] = []

    async def claim(wanted: Demand, _: Sent) -> bool:
        looks.append(wanted.uid)
        return True

    async def use() -> None:
        waits = Retry(lambda wanted: wanted.uid != "5", claim)
        for number in range(MOST + 2):
            waits.later(demand(str(number), pool=str(number)), Among(["n1"]))
        assert len(waits._kinds) == MOST
        await until(lambda: not waits._kinds)

    asyncio.run(use())
    assert looks == [str(number) for number in range(2, MOST + 2) if number != 5]


def test_other_rules_of_its_pool_make_the_next_look_soon_and_the_same_ones_do_not() -> None:
    async def claim(*_: object) -> bool:
        return False

    async def use() -> None:
        waits = Retry(lambda _: True, claim)
        waits.later(demand("p"), Among(["n1"]), 30.0, "these rules")
        waits.later(demand("q", "B"), Among(["n1"]), 30.0, "these rules")
        waits.changed("A", "these rules")
        assert [wait.delay for wait in waits._kinds.values()] == [30.0, 30.0]
        waits.changed("A", "others")
        assert {key[0]: (wait.delay, wait.under) for key, wait in waits._kinds.items()} == {
            "A": (1.0, "others"),
            "B": (30.0, "these rules"),
        }
        waits.close()

    asyncio.run(use())
