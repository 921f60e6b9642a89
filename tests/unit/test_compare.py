"""The full comparison: what a watch has missed, and what it has only not read yet."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from ateplace.watch import Watch
from reconciler.compare import differences

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
        looking = asyncio.ensure_future(differences(cast("Watch[Any, Any]", copy), give_up=lambda: None))
        await asyncio.sleep(0.1)
        assert looking.done() == (then is None)
        if then is not None:
            copy.store.clear()
            copy.store.update(then)
            copy.version = version
        return await asyncio.wait_for(looking, 10)

    return asyncio.run(main())


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
