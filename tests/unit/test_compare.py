"""The full comparison: what a watch has missed, and what it has only not read yet."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ateplace.cluster.feed import View
from ateplace.kube.watch import Watch
from ateplace.reconciler.resync import Compare, differences
from ateplace.reconciler.workqueue import Queue

Items = dict[str, tuple[int, str]]
"""By key: the object's version and its record."""


class Copy:
    """What a watch has read up to a version, beside what lists say: (their version, their items), the last for ever."""

    def __init__(self, store: dict[str, str], version: int, *lists: tuple[int, Items]) -> None:
        self.store, self.version, self._lists = store, version, list(lists)

    async def fresh(self) -> AsyncIterator[tuple[int, str, int, str]]:
        at, items = self._lists.pop(0) if len(self._lists) > 1 else self._lists[0]
        for key, (version, record) in items.items():
            yield at, key, version, record


def missed(copy: Copy, then: dict[str, str] | None = None, version: int = 0) -> list[str]:
    """What is found to be missed; `then`: the watch is waited for, and only then has read this."""

    async def main() -> list[str]:
        looking = asyncio.ensure_future(differences(cast("Watch[Any, Any]", copy), give_up=lambda: ""))
        await asyncio.sleep(0.1)
        assert looking.done() == (then is None)
        if then is not None:
            copy.store.clear()
            copy.store.update(then)
            copy.version = version
        return await asyncio.wait_for(looking, 10)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("read", "reason", "counted"),
    [(9, "", ["n1"]), (5, "the watch of nodes has been silent for 75 s", [])],
    ids=["the watch has been read past it", "the watch has fallen silent"],
)
def test_what_is_due_and_in_no_queue_is_missed_once_its_watch_has_been_read_past_it(
    read: int, reason: str, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it may be due only because our own write has not come back."""
    monkeypatch.setattr("ateplace.reconciler.resync.QUEUE_PATIENCE", 0.01)
    monkeypatch.setattr("ateplace.reconciler.resync.SURVEY_POLL", 0.01)

    class Keys:
        name = "nodes"

        def __init__(self) -> None:
            self.added: list[str] = []

        def knows(self, key: str) -> bool:
            return key in self.added

        def add(self, key: str) -> None:
            self.added.append(key)

    async def main() -> None:
        nodes, pools = Copy({}, 5, (7, {"n1": (3, "x")})), Copy({}, 5, (7, {}))
        trouble = [""]
        view = SimpleNamespace(nodes=nodes, pools=pools, reason=lambda: trouble[0])
        queue = Keys()
        compare = Compare(cast("View", view), {cast("Queue", queue): lambda: ["n1"]})
        looking = asyncio.ensure_future(compare._queues())
        await asyncio.sleep(0.1)
        assert (looking.done(), queue.added) == (False, []), "the watch is at 5, and the API server at 7"
        nodes.version, trouble[0] = read, reason
        await asyncio.wait_for(looking, 5)
        assert queue.added == counted

    asyncio.run(main())


def test_a_copy_like_the_list_has_missed_nothing() -> None:
    assert missed(Copy({"a": "x"}, 5, (5, {"a": (3, "x")}))) == []


def test_what_the_list_has_and_the_copy_has_not_was_missed() -> None:
    assert missed(Copy({"b": "y"}, 9, (5, {"a": (3, "x"), "b": (4, "y")}))) == ["a"]


def test_what_differs_while_the_watch_is_behind_the_list_is_looked_at_again_when_it_is_not() -> None:
    behind = Copy({"a": "x", "gone": "z"}, 5, (7, {"a": (3, "x"), "b": (7, "y")}))
    assert missed(behind, then={"a": "x", "b": "y"}, version=7) == []


def test_a_pod_deleted_between_the_two_lists_of_one_look_was_not_missed() -> None:
    """Its absence is seen in the second list, so it is that list's version which the watch must have reached."""
    first, second = {"gone": (4, "z"), "b": (5, "new")}, {"b": (5, "new")}
    assert missed(Copy({"gone": "z", "b": "old"}, 6, (6, first), (8, second)), then={"b": "new"}, version=8) == []
