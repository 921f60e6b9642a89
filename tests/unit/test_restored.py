"""A cluster whose state went back in time: etcd restored from a backup."""

import asyncio
from pathlib import Path

import pytest

from ateplace.kube import paths
from ateplace.kube.objects import WorkerPool
from ateplace.kube.store import Mirror, WentBack
from ateplace.kube.watch import Watch
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving
from tests.unit.test_watch_mirror import bookmark, live, pool, record


def test_a_list_that_is_older_than_what_we_have_seen_is_not_taken() -> None:
    mirror = live(pool("a", 9), version=10)
    mirror.begin()
    mirror.page([pool("b", 7)])
    with pytest.raises(WentBack, match="version 8, and version 10 was seen before"):
        mirror.end(8)


def test_so_is_a_streamed_one() -> None:
    mirror = live(pool("a", 9), version=10)
    mirror.begin()
    with pytest.raises(WentBack):
        mirror.feed(bookmark(8, end=True))


def test_a_list_as_old_as_the_last_one_is_no_sign_of_it_and_a_collection_that_is_removed_neither() -> None:
    mirror: Mirror[WorkerPool, tuple[str, int]] = live(pool("a", 9), version=10)
    for version in (10, 0, 3, 12):
        mirror.begin()
        mirror.end(version)
        assert mirror.version == version


def test_it_ends_the_watch_and_so_the_process_which_starts_from_nothing(tmp_path: Path) -> None:
    """All that a process remembers is about a past that never was: what it wrote, and in which version."""
    versions = iter(["10", "8"])

    async def handle(request: Request, answer: Answer) -> None:
        if "sendInitialEvents" in request.query:
            await answer.refuse(400, "BadRequest", "no streaming list")
        elif "watch" in request.query:
            await answer.refuse(410, "Expired", "too old")
        else:
            await answer.reply(200, {"metadata": {"resourceVersion": next(versions)}, "items": []})

    async def main() -> None:
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            watch = Watch(kube, paths.POOLS.everywhere, WorkerPool, record, lambda *_: None)
            async with asyncio.timeout(30):
                await watch.run()

    with pytest.raises(WentBack):
        asyncio.run(main())
