"""Watches on a real API server, one of them on a control plane of its own that gets hurt."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from ateplace.kube import Kube, client
from ateplace.kube import watch as module
from ateplace.kube.objects import Metadata
from ateplace.kube.watch import Watch
from ateplace.local import ControlPlane
from ateplace.settings import Cluster
from tests.features import has

Record = tuple[str, str]


class ConfigMap(Struct):
    metadata: Metadata
    data: dict[str, str] | None = None


@pytest.fixture(scope="module")
def own() -> Iterator[ControlPlane]:
    with ControlPlane(scheduler=False) as plane:
        yield plane


class Follower:
    """Applies every change to a view of its own, and checks that each starts from what the last one left."""

    def __init__(self, kube: Kube, path: str, **options: Any) -> None:
        self.view: dict[str, Record] = {}
        self.changes: list[tuple[str, Record | None, Record | None]] = []
        self.watch = Watch(kube, path, ConfigMap, self.project, self.change, **options)

    @staticmethod
    def project(each: ConfigMap) -> Record:
        return each.metadata.uid, (each.data or {}).get("a", "")[:1]

    def change(self, key: str, old: Record | None, new: Record | None) -> None:
        assert self.view.pop(key, None) == old != new
        if new is not None:
            self.view[key] = new
        self.changes.append((key.rpartition("/")[2], old, new))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.watch.run())
        try:
            await asyncio.wait_for(self.watch.synced.wait(), 15)
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, check: Callable[["Follower"], object], seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while not check(self):  # noqa: ASYNC110 - changes arrive in the loop
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[Kube]:
    kube = await Kube.connect(Cluster(kubeconfig=str(kubeconfig)))
    try:
        yield kube
    finally:
        await kube.close()


class Maps:
    """ConfigMaps of one namespace, written from outside."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.api = plane.api
        self.path = f"/api/v1/namespaces/{namespace}/configmaps"

    def make(self, name: str, value: str = "1", label: str = "yes") -> str:
        body = {"metadata": {"name": name, "labels": {"watched": label}}, "data": {"a": value}}
        return str(self.api.post(self.path, body)["metadata"]["uid"])

    def change(self, name: str, **patch: Any) -> None:
        self.api.patch(f"{self.path}/{name}", patch)

    def delete(self, name: str) -> None:
        self.api.delete(f"{self.path}/{name}")


@pytest.mark.versions
def test_what_is_selected_is_listed_in_a_stream_and_followed(plane: ControlPlane, namespace: str) -> None:
    """Or in pages, where doctor says that there are no streaming lists."""
    maps = Maps(plane, namespace)
    streamed = int(has("streaming lists"))

    async def main() -> None:
        async with connected(plane.kubeconfig) as kube:
            one, _ = maps.make("one"), maps.make("other", label="no")
            follower = Follower(kube, maps.path, label_selector="watched=yes")
            async with follower.running():
                assert follower.changes == [("one", None, (one, "1"))]
                requests = kube.requests
                maps.change("other", data={"a": "5"})
                maps.change("one", data={"a": "2"})
                maps.change("one", metadata={"labels": {"watched": "no"}})
                two = maps.make("two")
                maps.delete("two")
                again = maps.make("two")
                await follower.until(lambda f: len(f.changes) == 6)
                watch = follower.watch
                assert follower.changes[1:] == [
                    ("one", (one, "1"), (one, "2")),
                    ("one", (one, "2"), None),
                    ("two", None, (two, "1")),
                    ("two", (two, "1"), None),
                    ("two", None, (again, "1")),
                ]
                assert (watch.events, watch.relists, watch.reconnects, kube.requests) == (5 + streamed, 0, 0, requests)
                assert watch.staleness() < 5

    asyncio.run(main())


@pytest.mark.versions
def test_where_the_stream_is_refused_pages_are_listed(
    plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STREAMING_LIST", {"sendInitialEvents": "true", "resourceVersionMatch": "Exact"})
    monkeypatch.setattr(client, "PAGE_ITEMS", 2)
    maps = Maps(plane, namespace)

    async def main() -> None:
        async with connected(plane.kubeconfig) as kube:
            for number in range(5):
                maps.make(f"m{number}")
            follower = Follower(kube, maps.path, label_selector="watched=yes")
            async with follower.running():
                assert len(follower.view) == 5 and follower.watch.events == 0
                maps.delete("m3")
                await follower.until(lambda f: len(f.view) == 4)
                assert kube.requests == 1 + 3 + 1

    asyncio.run(main())


def test_an_object_of_more_than_three_mebibytes_of_json_passes(plane: ControlPlane, namespace: str) -> None:
    maps = Maps(plane, namespace)

    async def main() -> None:
        async with connected(plane.kubeconfig) as kube:
            follower = Follower(kube, maps.path, label_selector="watched=yes")
            async with follower.running():
                # Six bytes each on the wire, and a request may have 3 MiB: hence two.
                maps.make("large", "\x01" * 500_000)
                maps.change("large", data={"b": "\x01" * 200_000})
                await follower.until(lambda f: f.watch.events == 2)
            late = Follower(kube, maps.path, label_selector="watched=yes")
            async with late.running():
                assert late.view == follower.view
                assert (late.watch.relists, late.watch.reconnects, late.watch.unreadable) == (0, 0, 0)

    asyncio.run(main())


def test_a_watch_that_says_nothing_lists_again_before_it_counts_as_stale(
    plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE", 0.2)
    monkeypatch.setattr(module, "GAP", 0.4)

    async def main() -> None:
        kube = await Kube.connect(Cluster(kubeconfig=str(plane.kubeconfig), stale_after=10.0))
        follower = Follower(kube, Maps(plane, namespace).path, label_selector="watched=yes")
        worst = 0.0

        def check(follower: Follower) -> bool:
            nonlocal worst
            worst = max(worst, follower.watch.staleness())
            return follower.watch.reconnects >= 3

        async with follower.running():
            await follower.until(check, 60)
        await kube.close()
        assert 1.9 < worst < 10.0
        assert 0 < follower.watch.relists <= 3, "after a silence, only a list proves anything"

    asyncio.run(main())


def test_after_compaction_and_a_restart_a_full_list_finds_what_was_missed(own: ControlPlane) -> None:
    maps = Maps(own, "default")

    async def main() -> None:
        async with connected(own.kubeconfig) as kube:
            kept, gone, old = maps.make("kept"), maps.make("gone"), maps.make("recreated")
            follower = Follower(kube, maps.path, label_selector="watched=yes")
            async with follower.running():
                version = follower.watch.version
            follower.changes.clear()
            maps.delete("gone")
            maps.delete("recreated")
            new, fresh = maps.make("recreated"), maps.make("fresh")
            await asyncio.to_thread(own.compact_etcd)
            await asyncio.to_thread(own.stop_apiserver)
            await asyncio.to_thread(own.start_apiserver)
            async with follower.running():
                await follower.until(lambda f: len(f.changes) == 3)
                assert sorted(follower.changes, key=lambda change: change[0]) == [
                    ("fresh", None, (fresh, "1")),
                    ("gone", (gone, "1"), None),
                    ("recreated", (old, "1"), (new, "1")),
                ]
                assert follower.view["default/kept"] == (kept, "1")
                assert follower.watch.relists == 1 and follower.watch.version > version
                maps.delete("fresh")
                await follower.until(lambda f: "default/fresh" not in f.view)

    asyncio.run(main())


def test_a_watch_survives_the_api_servers_death(own: ControlPlane) -> None:
    maps = Maps(own, "default")

    async def main() -> None:
        async with connected(own.kubeconfig) as kube:
            maps.make("before")
            follower = Follower(kube, maps.path, label_selector="watched=yes", field_selector="metadata.name!=kept")
            async with follower.running():
                await asyncio.to_thread(own.kill_apiserver)
                await follower.until(lambda f: f.watch.trouble and f.watch.staleness() > 1)
                await asyncio.to_thread(own.start_apiserver)
                maps.delete("before")
                uid = maps.make("after")
                await follower.until(
                    lambda f: f.view.get("default/after") == (uid, "1") and "default/before" not in f.view
                )
                assert follower.watch.trouble == "" and follower.watch.staleness() < 5

    asyncio.run(main())
