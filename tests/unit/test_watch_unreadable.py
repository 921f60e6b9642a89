"""What is said of objects that cannot be read: a tenant may make any number of them."""

import logging
from pathlib import Path

import pytest

from ateplace.kube import watch
from tests.unit.kube_server import until
from tests.unit.watch_server import Follower, follow


def spoil(follower: Follower, name: str) -> None:
    version = str(follower.api.version + 1)
    meta = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": version}
    follower.api._add("ADDED", {"metadata": meta, "spec": 7})


def test_of_any_number_of_objects_one_is_named_in_ten_seconds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def said() -> int:
        return sum("object cannot be read" in record.message for record in caplog.records)

    async def use(follower: Follower) -> None:
        await until(lambda: follower.current)
        for number in range(100):
            spoil(follower, f"x{number}")
        await until(lambda: follower.watch.unreadable == 100)
        assert said() == 1
        follower.watch._warned -= watch.WARN_SECONDS
        for number in range(100, 200):
            spoil(follower, f"x{number}")
        await until(lambda: follower.watch.unreadable == 200)
        assert said() == 2
        assert set(follower.view) == {"ns/a", "ns/b"}

    with caplog.at_level(logging.WARNING):
        follow(tmp_path, use)
