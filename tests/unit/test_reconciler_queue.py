"""The queue of keys: once at a time, few at once, failing ones later."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import cast

from ateplace import errors
from ateplace.kube import Kube
from ateplace.reconciler.events import WAITING, Budget, Events, about_node
from ateplace.reconciler.metrics import EVENTS_DROPPED
from ateplace.reconciler.workqueue import Queue


async def during(queue: Queue, *everything: str, do: Callable[[], Awaitable[object]]) -> None:
    """Run the queue while `do` runs."""
    running = asyncio.create_task(queue.run(lambda: everything))
    try:
        async with asyncio.timeout(10):
            await do()
    finally:
        running.cancel()
        await asyncio.wait({running})


def test_every_key_is_handled_and_no_more_at_once_than_there_are_workers() -> None:
    async def main() -> None:
        busy, most, seen, done = 0, 0, Counter[str](), asyncio.Event()

        async def handle(key: str) -> None:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0)
            busy -= 1
            seen[key] += 1
            if len(seen) == 50:
                done.set()

        queue = Queue("test", handle, workers=3)
        await during(queue, *(str(number) for number in range(50)), do=done.wait)
        assert most == 3
        assert set(seen.values()) == {1}

    asyncio.run(main())


def lane(key: str) -> str:
    return key.partition("/")[0]


def test_a_tenant_with_many_slow_keys_does_not_hold_up_another_tenants() -> None:
    async def main() -> None:
        begun = Counter[str]()
        hostile, innocent, never = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def handle(key: str) -> None:
            begun[lane(key)] += 1
            if lane(key) == "hostile":
                hostile.set()
                await never.wait()
            else:
                innocent.set()

        queue = Queue("test", handle, workers=8, lane=lane)

        async def do() -> None:
            await hostile.wait()
            queue.add("innocent/a")
            await innocent.wait()

        await during(queue, *(f"hostile/{number}" for number in range(24)), do=do)
        assert begun == {"hostile": 2, "innocent": 1}, "a quarter of the slots are any one tenant's"

    asyncio.run(main())


def test_beside_24_hostile_keys_an_innocent_one_shares_with_two_requests_at_a_time() -> None:
    """In requests, which is what a look consists of: a machine may be as slow as it likes."""

    async def main() -> None:
        sent: list[str] = []
        done = asyncio.Event()

        async def handle(key: str) -> None:
            innocent = lane(key) == "innocent"
            for _ in range(4 if innocent else 14):
                if not done.is_set():
                    sent.append(lane(key))
                await asyncio.sleep(0)
            if innocent:
                done.set()

        queue = Queue("test", handle, workers=8, lane=lane)

        async def do() -> None:
            while len(sent) < 10:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0)
            sent.clear()
            queue.add("innocent/a")
            await done.wait()

        await during(queue, *(f"hostile/{number}" for number in range(24)), do=do)
        beside = sent[sent.index("innocent") :]
        assert beside.count("hostile") <= 2 * beside.count("innocent")
        assert sent.index("innocent") <= 2, "it begins at once"

    asyncio.run(main())


def test_tenants_take_turns() -> None:
    async def main() -> None:
        order: list[str] = []
        done = asyncio.Event()

        async def handle(key: str) -> None:
            order.append(key)
            if len(order) == 8:
                done.set()

        keys = [*(f"many/{number}" for number in range(5)), "few/0", "few/1", "one/0"]
        await during(Queue("test", handle, workers=1, lane=lane), *keys, do=done.wait)
        assert order == ["many/0", "few/0", "one/0", "many/1", "few/1", "many/2", "many/3", "many/4"]

    asyncio.run(main())


def test_all_there_was_at_the_beginning_is_seen_when_each_key_was_tried_even_in_vain() -> None:
    async def main() -> None:
        tried, reached, gate = set[str](), asyncio.Event(), asyncio.Event()

        async def handle(key: str) -> None:
            if key == "last":
                reached.set()
                await gate.wait()
            tried.add(key)
            raise errors.ServerError("no")

        queue = Queue("test", handle, workers=1)

        async def look() -> None:
            seen = asyncio.create_task(queue.seen())
            await reached.wait()
            assert (tried, seen.done()) == ({"a", "b"}, False)
            gate.set()
            await seen
            assert tried == {"a", "b", "last"}

        await during(queue, "a", "b", "last", do=look)
        await during(queue, do=queue.seen)

    asyncio.run(main())


def test_a_key_added_while_it_is_handled_is_handled_once_more_and_never_twice_at_once() -> None:
    async def main() -> None:
        times, inside = 0, 0
        first, gate, second = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def handle(_: str) -> None:
            nonlocal times, inside
            assert inside == 0
            inside += 1
            times += 1
            if times == 1:
                first.set()
                await gate.wait()
            else:
                second.set()
            inside -= 1

        queue = Queue("test", handle, workers=4)

        async def do() -> None:
            await first.wait()
            for _ in range(5):
                queue.add("a")
            gate.set()
            await second.wait()
            assert not queue.knows("a") or times == 2

        await during(queue, "a", do=do)
        assert times == 2

    asyncio.run(main())


def test_a_failing_key_is_tried_again_later_and_does_not_hold_up_the_others() -> None:
    async def main() -> None:
        tries, others, enough = Counter[str](), Counter[str](), asyncio.Event()

        async def handle(key: str) -> None:
            if key == "bad":
                tries[key] += 1
                if tries[key] == 4:
                    enough.set()
                raise errors.ServerError("no") if tries[key] % 2 else ValueError("a bug")
            others[key] += 1

        queue = Queue("test", handle, workers=1)

        async def do() -> None:
            loop = asyncio.get_running_loop()
            began = loop.time()
            while not enough.is_set():
                queue.add("bad")  # events do not get around the backoff
                queue.add("good")
                await asyncio.sleep(0.001)
            assert loop.time() - began > 0.05 / 2 + 0.1 / 2 + 0.2 / 2 - 0.02

        await during(queue, "bad", do=do)
        assert tries["bad"] == 4
        assert others["good"] > 4

    asyncio.run(main())


def test_a_key_that_others_write_to_all_the_time_is_tried_every_half_second_at_least() -> None:
    async def main() -> None:
        looks: list[float] = []
        enough = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def handle(_: str) -> None:
            looks.append(loop.time())
            if len(looks) == 12:
                enough.set()
            raise errors.Conflict("somebody else wrote first")

        await during(Queue("test", handle, workers=1), "a", do=enough.wait)
        pauses = [after - before for before, after in itertools.pairwise(looks)]
        assert min(pauses[4:]) > 0.1, "still later and later at first"
        assert sorted(pauses)[len(pauses) // 2] < 0.5

    asyncio.run(main())


def test_the_answer_says_when_to_look_again_and_the_sooner_look_wins() -> None:
    async def main() -> None:
        looks: list[float] = []
        second, third = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        async def handle(_: str) -> float:
            looks.append(loop.time())
            if len(looks) > 1:
                (second if len(looks) == 2 else third).set()
            return 0.05 if len(looks) == 1 else 60.0

        queue = Queue("test", handle, workers=1)

        async def do() -> None:
            await second.wait()
            assert queue.knows("a")
            queue.add_after("a", 90.0)
            queue.add_after("a", 0.01)
            await third.wait()

        await during(queue, "a", do=do)
        assert looks[1] - looks[0] >= 0.05

    asyncio.run(main())


def test_nothing_is_kept_while_the_queue_does_not_run() -> None:
    async def main() -> None:
        async def handle(_: str) -> float:
            return 60.0

        queue = Queue("test", handle, workers=1)
        queue.add("before")

        async def do() -> None:
            while not queue.knows("during"):
                queue.add("during")
                await asyncio.sleep(0)

        await during(queue, do=do)
        assert not any(queue.knows(key) for key in ("before", "during"))

    asyncio.run(main())


def test_a_thousand_things_said_at_once_leave_room_for_a_warning() -> None:
    events = Events(cast("Kube", None), "test", clock=lambda: 0.0)
    dropped = EVENTS_DROPPED.labels("queue")._value
    before = dropped.get()
    for number in range(1000):
        events.say(about_node(f"n{number}", f"uid-{number}"), "Claimed", "…")
    assert dropped.get() - before == 1000 - WAITING // 2
    for number in range(1000):
        events.warn(about_node(f"n{number}", f"uid-{number}"), "WaitingForAtelet", "…")
    assert dropped.get() - before == 2000 - WAITING


def test_what_a_term_did_not_get_round_to_saying_is_not_said_in_the_next() -> None:
    events = Events(cast("Kube", None), "test", clock=lambda: 0.0)
    dropped = EVENTS_DROPPED.labels("term")._value
    before = dropped.get()
    for number in range(3):
        events.say(about_node(f"n{number}", f"uid-{number}"), "Claimed", "…")
    events.forget()
    assert (events._queue.qsize(), dropped.get() - before) == (0, 3)


def test_a_budget_allows_a_burst_and_then_one_at_a_time() -> None:
    budget = Budget(2, 10.0, 0.0)
    assert [budget.take(0.0) for _ in range(3)] == [True, True, False]
    assert budget.wait(4.0) == 6.0
    assert [budget.take(10.0), budget.take(10.0)] == [True, False]
