"""Watches against a small API server with a history, whose streams break in every way."""

import asyncio
import contextlib
import math
import random
from pathlib import Path

import pytest

from ateplace.kube import watch as module
from ateplace.kube.backoff import Backoff
from ateplace.kube.objects import Pod
from ateplace.kube.watch import Watch
from ateplace.settings import Cluster
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving, until
from tests.unit.watch_server import (
    PATH,
    Api,
    Fault,
    Follower,
    broken,
    busy,
    cut_in_a_line,
    end,
    end_at_once,
    expired,
    expired_event,
    failed_event,
    follow,
    garbage,
    invalid,
    mute,
    refused,
    removable,
    reset,
    reset_in_a_line,
)


def test_a_streaming_list_is_followed_on_the_same_connection(tmp_path: Path) -> None:
    async def use(follower: Follower) -> None:
        watch, api = follower.watch, follower.api
        assert watch.staleness() == math.inf
        await until(lambda: follower.current)
        api.put("c", "n3")
        api.put("c", "n4")
        api.delete("a")
        await until(lambda: len(follower.changes) == 5)
        assert follower.changes[2:] == [
            ("ns/c", None, ("uid-12", "n3")),
            ("ns/c", ("uid-12", "n3"), ("uid-12", "n4")),
            ("ns/a", ("uid-10", "n1"), None),
        ]
        assert (watch.events, watch.relists, watch.reconnects, watch.version) == (5, 0, 0, 15)
        assert watch.staleness() < 1
        assert not api.listed
        [query] = api.watched
        seconds = int(query.pop("timeoutSeconds"))
        assert module.STREAM_SECONDS[0] <= seconds <= module.STREAM_SECONDS[1]
        assert query == {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
            "labelSelector": "a=b",
        }

    follow(tmp_path, use)


@pytest.mark.parametrize("fault", [failed_event, invalid])
def test_without_streaming_lists_pages_are_taken(tmp_path: Path, fault: Fault) -> None:
    async def use(follower: Follower) -> None:
        await until(lambda: follower.current)
        follower.api.put("c", "n3")
        await until(lambda: follower.current)
        assert follower.api.listed == [{"limit": "500", "labelSelector": "a=b"}]
        assert [query.get("resourceVersion") for query in follower.api.watched] == [None, "12"]
        assert follower.watch.trouble == ""

    follow(tmp_path, use, fault)


@pytest.mark.parametrize("fault", [end, end_at_once, reset, reset_in_a_line, cut_in_a_line, garbage, refused, broken])
def test_after_any_break_the_watch_goes_on_from_the_last_version(tmp_path: Path, fault: Fault) -> None:
    async def use(follower: Follower) -> None:
        watch, api = follower.watch, follower.api
        await until(lambda: follower.current)
        follower.fault(fault, end, fault)
        api.cut()
        api.put("c", "n3")
        api.put("c", "n4")
        api.delete("a")
        api.put("a", "n9")
        await until(lambda: follower.current and not api.faults)
        api.put("d", "n1")
        await until(lambda: follower.current)
        assert watch.relists == 0 and not api.listed
        assert watch.staleness() < 1 and watch.trouble == ""
        versions = [int(query["resourceVersion"]) for query in api.watched[1:]]
        assert versions == sorted(versions) and versions[0] == 12

    follow(tmp_path, use)


@pytest.mark.parametrize("fault", [None, expired, expired_event])
def test_a_gap_that_cannot_be_bridged_is_closed_by_a_full_list(tmp_path: Path, fault: Fault | None) -> None:
    async def use(follower: Follower) -> None:
        watch, api = follower.watch, follower.api
        await until(lambda: follower.current)
        follower.fault(fault or refused)
        api.cut()
        api.delete("a")
        api.delete("b")
        api.put("b", "n2")
        api.put("c", "n3")
        api.compact()
        await until(lambda: follower.current)
        assert follower.changes[2:] == [
            ("ns/a", ("uid-10", "n1"), None),
            ("ns/b", ("uid-11", "n2"), ("uid-14", "n2")),
            ("ns/c", None, ("uid-15", "n3")),
        ]
        assert watch.relists == 1 and not api.listed
        api.put("d", "n1")
        await until(lambda: follower.current)

    follow(tmp_path, use)


@pytest.mark.parametrize("fault", [reset, end, reset_in_a_line, refused, broken, busy])
def test_a_streaming_list_that_breaks_off_is_begun_again_and_shows_nothing_of_its_first_half(
    tmp_path: Path, fault: Fault
) -> None:
    async def use(follower: Follower) -> None:
        await until(lambda: follower.current)
        assert follower.changes == [("ns/a", None, ("uid-10", "n1")), ("ns/b", None, ("uid-11", "n2"))]
        assert follower.watch.relists == 0

    follow(tmp_path, use, fault, fault)


def test_a_busy_api_server_is_left_alone_for_the_time_that_it_asks_for(tmp_path: Path) -> None:
    async def use(follower: Follower) -> float:
        started = asyncio.get_running_loop().time()
        await until(lambda: follower.current)
        return asyncio.get_running_loop().time() - started

    assert 1 <= follow(tmp_path, use, busy) < 8


def test_an_object_of_three_mebibytes_passes(tmp_path: Path) -> None:
    async def use(follower: Follower) -> None:
        await until(lambda: follower.current)
        follower.api.put("large", "n1", filler=3 * 2**20)
        await until(lambda: follower.current)
        follower.api.cut()
        follower.api.put("large", "n2", filler=3 * 2**20)
        follower.api.compact()
        await until(lambda: follower.current)
        assert follower.watch.relists <= 1

    follow(tmp_path, use)


def test_a_silent_connection_is_noticed_between_two_bookmarks_and_well_before_the_watch_counts_as_stale() -> None:
    assert 60 < module.SILENCE * Cluster().stale_after < Cluster().stale_after - 5


def test_a_silent_connection_is_noticed_before_the_watch_counts_as_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE", 0.2)
    monkeypatch.setattr(module, "GAP", 0.4)

    async def use(follower: Follower) -> float:
        await until(lambda: follower.current)
        follower.fault(mute)
        follower.api.cut()
        await until(lambda: not follower.api.faults)
        follower.api.put("c", "n3")
        worst = 0.0

        def arrived() -> bool:
            nonlocal worst
            worst = max(worst, follower.watch.staleness())
            return follower.current

        await until(arrived)
        assert follower.watch.trouble == ""
        return worst

    assert 1.9 < follow(tmp_path, use, stale_after=10.0) < 10.0


def test_a_server_that_never_ends_its_streaming_list_is_asked_for_pages(tmp_path: Path) -> None:
    async def use(follower: Follower) -> None:
        await until(lambda: follower.current)
        assert len(follower.api.listed) == 1

    follow(tmp_path, use, mute, stale_after=0.5)


def test_being_let_in_and_sent_away_is_no_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Backoff", lambda: Backoff(0.02, 0.1))

    async def use(follower: Follower) -> None:
        watch = follower.watch
        await until(lambda: follower.current)
        follower.fault(*[failed_event] * 100)
        follower.api.cut()
        await until(lambda: watch.staleness() > 1 and len(follower.api.faults) < 95)
        assert "RequestWatchProgress" in watch.trouble
        assert len(follower.api.faults) > 50
        follower.api.faults.clear()
        follower.api.put("c", "n1")
        await until(lambda: follower.current)
        assert watch.staleness() < 1
        assert watch.trouble == ""

    follow(tmp_path, use)


def test_being_let_in_again_proves_nothing_until_something_is_said(tmp_path: Path) -> None:
    """A gap too long to wait for a bookmark is closed by a list, although the version is not too old to go on from."""

    async def use(follower: Follower) -> None:
        watch, api = follower.watch, follower.api
        await until(lambda: follower.current)
        proved = watch._proved
        follower.fault(mute)
        api.cut()
        await until(lambda: watch.reconnects == 1)
        assert watch._proved == proved, "let in, and nothing said"
        watch._proved -= 60  # as if the gap had been that long
        api.put("c", "n3")
        api.faults.clear()
        await until(lambda: follower.current)
        assert (watch.relists, watch.staleness() < 1) == (1, True)

    follow(tmp_path, use, stale_after=2.0)


def test_a_collection_that_is_removed_is_empty_until_it_is_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Backoff", lambda: Backoff(0.02, 0.1))
    monkeypatch.setattr(module, "ABSENT_SECONDS", 0.3)

    async def main() -> None:
        api, there = Api(), True
        async with removable(tmp_path, api, is_there=lambda: there) as follower:
            there = False
            api.cut()
            await until(lambda: not follower.view)
            proved = follower.watch._proved
            await until(lambda: follower.watch._proved > proved)
            assert follower.watch.synced.is_set() and "could not find" in follower.watch.trouble
            assert follower.watch.relists == 1
            there = True
            await until(lambda: follower.current)

    asyncio.run(main())


def test_a_collection_that_is_not_found_for_a_moment_keeps_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Backoff", lambda: Backoff(0.02, 0.1))

    async def main() -> None:
        api, answers = Api(), list[bool]()
        async with removable(tmp_path, api, is_there=lambda: answers.pop() if answers else True) as follower:
            changes = len(follower.changes)
            answers += [False] * 4
            api.cut()
            await until(lambda: not answers)
            api.put("b", "n1")
            await until(lambda: follower.current)
            assert [key for key, _, new in follower.changes[changes:] if new is None] == []

    asyncio.run(main())


def test_a_collection_that_must_be_there_and_is_not_proves_nothing(tmp_path: Path) -> None:
    async def answers(_: Request, answer: Answer) -> None:
        await answer.refuse(404, "NotFound", "the server could not find the requested resource")

    async def main() -> None:
        async with serving(answers) as server, connected(kubeconfig(tmp_path, server.url, token="t")) as kube:
            follower = Follower(Api(), kube)
            task = asyncio.create_task(follower.watch.run())
            await until(lambda: len(server.requests) > 3)
            assert follower.watch.staleness() == math.inf
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_an_api_server_that_was_away_is_found_again(tmp_path: Path) -> None:
    async def main() -> None:
        api = Api()
        api.put("a", "n1")
        async with contextlib.AsyncExitStack() as stack:
            async with serving(api) as server:
                port = server.port
                kube = await stack.enter_async_context(connected(kubeconfig(tmp_path, server.url, token="t")))
                follower = Follower(api, kube)
                task = asyncio.create_task(follower.watch.run())
                await until(lambda: follower.current)
            await until(lambda: follower.watch.trouble)
            api.delete("a")
            api.put("b", "n1")
            await until(lambda: follower.watch.staleness() > 1)
            async with serving(api, port):
                await until(lambda: follower.current)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_an_object_that_cannot_be_read_stays_as_it_was_known_and_hides_no_other(tmp_path: Path) -> None:
    async def use(follower: Follower) -> None:
        await until(lambda: follower.current)
        follower.api.pods["a"]["spec"] = 7
        follower.api._add(
            "MODIFIED",
            {**follower.api.pods["a"], "metadata": {"name": "a", "namespace": "ns", "resourceVersion": "13"}},
        )
        follower.api.put("c", "n3")
        await until(lambda: "ns/c" in follower.view)
        assert set(follower.view) == {"ns/a", "ns/b", "ns/c"}
        assert follower.watch.unreadable == 1

    follow(tmp_path, use)


@pytest.mark.parametrize("kind", [ValueError, OSError, TimeoutError])
def test_an_exception_of_the_handler_ends_the_watch(tmp_path: Path, kind: type[Exception]) -> None:
    async def main() -> None:
        api = Api()
        api.put("a", "n1")

        def handler(*_: object) -> None:
            raise kind("the handler's own")

        async with serving(api) as server, connected(kubeconfig(tmp_path, server.url, token="t")) as kube:
            await Watch(kube, PATH, Pod, Follower.project, handler).run()

    with pytest.raises(kind, match="the handler's own"):
        asyncio.run(main())


def test_nothing_is_missed_while_everything_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Backoff", lambda: Backoff(0.01, 0.05))
    dice = random.Random(7)  # noqa: S311 - repeatable
    faults = [end, end_at_once, reset, reset_in_a_line, cut_in_a_line, garbage, refused, broken, expired, expired_event]

    async def use(follower: Follower) -> None:
        api = follower.api
        follower.fault(*(dice.choice(faults) for _ in range(60)))
        while api.faults:
            for _ in range(dice.randint(1, 3)):
                name = dice.choice("abcdef")
                if name in api.pods and dice.random() < 0.4:
                    api.delete(name)
                else:
                    api.put(name, dice.choice(["n1", "n2", "n3"]))
            if dice.random() < 0.1:
                api.compact()
            if dice.random() < 0.2:
                api.cut()
            await asyncio.sleep(0.01)
        await until(lambda: follower.current)
        assert follower.watch.reconnects > 20 and follower.watch.relists > 0

    follow(tmp_path, use)
