"""Turns: a rate, with some at once for a client that comes after a rest."""

import asyncio
import time

import pytest

from ateplace.process.turns import Turns

NEVER = 1 / 3600


def test_so_many_at_once_then_the_others_wait_in_order() -> None:
    async def main() -> None:
        turns = Turns(NEVER, at_once=3)
        for _ in range(3):
            await turns.turn()
        waiting = [asyncio.create_task(turns.turn()) for _ in range(3)]
        done, _ = await asyncio.wait(waiting, timeout=0.05)
        assert not done
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)

    asyncio.run(main())


def test_a_client_that_gives_up_has_used_no_turn() -> None:
    async def main() -> None:
        turns = Turns(20.0)
        await turns.turn()
        for _ in range(1_000):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(turns.turn(), 0)
        waiting = [asyncio.create_task(turns.turn()) for _ in range(1_000)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await asyncio.wait_for(turns.turn(), 20)

    asyncio.run(main())


def test_turns_are_there_again_after_a_while() -> None:
    async def main() -> None:
        slow, quick = Turns(NEVER), Turns(50.0, at_once=2)
        seen = [slow.rested]
        await slow.turn()
        seen.append(slow.rested)
        assert seen == [True, False]
        for _ in range(2):
            await quick.turn()
        async with asyncio.timeout(20):
            while not quick.rested:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_turns_have_a_rate() -> None:
    async def main() -> float:
        turns = Turns(100)
        begun = time.monotonic()
        await asyncio.gather(*(turns.turn() for _ in range(51)))
        return time.monotonic() - begun

    assert asyncio.run(main()) >= 0.49
