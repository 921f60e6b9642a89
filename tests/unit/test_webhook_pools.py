"""How the webhook finds a pool that its watch does not have, over a real connection."""

import asyncio
from pathlib import Path

import pytest

from ateplace import errors
from ateplace.kube import paths
from ateplace.webhook import pools as module
from ateplace.webhook.pools import Pools
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving, until

END = {"k8s.io/initial-events-end": "true"}


def pool(name: str, uid: str, version: int) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "agents", "uid": uid, "resourceVersion": str(version)}}


class Api:
    """A watch that knows one pool, and direct looks that the test holds back."""

    def __init__(self) -> None:
        self.looks: list[str] = []
        self.go = asyncio.Event()
        self.found = {"new": "new-uid"}
        self.refuse_with = 0

    async def __call__(self, request: Request, answer: Answer) -> None:
        if request.path == paths.POOLS.everywhere:
            await answer.begin()
            await answer.event("ADDED", pool("known", "known-uid", 5))
            bookmark = {"kind": "WorkerPool", "metadata": {"resourceVersion": "6", "annotations": END}}
            await answer.event("BOOKMARK", bookmark)
            await asyncio.Event().wait()
        self.looks.append(request.path)
        await self.go.wait()
        name = request.path.rpartition("/")[2]
        if self.refuse_with:
            await answer.refuse(self.refuse_with, "Trouble", "on purpose")
        elif name in self.found:
            await answer.reply(200, pool(name, self.found[name], 7))
        else:
            await answer.refuse(404, "NotFound", "no such pool")


def test_the_watch_answers_first_and_a_miss_is_asked_for_once(tmp_path: Path) -> None:
    async def main() -> None:
        api = Api()
        async with serving(api) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            pools = Pools(kube, stale_after=60)
            assert pools.unready() == "the list of WorkerPools has not arrived yet"
            running = asyncio.create_task(pools.watch.run())
            await pools.watch.synced.wait()
            assert not pools.unready()
            assert pools.known("agents", "known") == "known-uid"
            assert pools.known("other", "known") is None
            asked = [asyncio.create_task(pools.find("agents", "new")) for _ in range(50)]
            await until(lambda: api.looks)
            api.go.set()
            assert await asyncio.gather(*asked) == ["new-uid"] * 50
            assert api.looks == ["/apis/ate.dev/v1alpha1/namespaces/agents/workerpools/new"]
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(main())


def test_an_old_no_is_no_answer_but_there_is_one_look_a_second(tmp_path: Path) -> None:
    async def main() -> None:
        api = Api()
        api.go.set()
        async with serving(api) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            pools = Pools(kube, stale_after=60)
            assert await pools.find("agents", "late") is None
            asked = [asyncio.create_task(pools.find("agents", "late", str(n))) for n in range(100)]
            await asyncio.sleep(0)
            api.found["late"] = "late-uid"
            assert await asyncio.gather(*asked) == ["late-uid"] * 100
            assert len(api.looks) == 2

    asyncio.run(main())


def test_what_the_watch_brings_is_found_at_once_however_many_look(tmp_path: Path) -> None:
    async def main() -> None:
        api = Api()  # whose looks are not answered
        async with serving(api) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            pools = Pools(kube, stale_after=60)
            running = asyncio.create_task(pools.watch.run())
            asked = [asyncio.create_task(pools.find("agents", "known", str(n))) for n in range(20)]
            assert await asyncio.gather(*asked) == ["known-uid"] * 20
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(main())


def test_invented_pools_cost_a_bounded_number_of_looks(tmp_path: Path) -> None:
    async def main() -> None:
        api = Api()
        api.go.set()
        async with serving(api) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            pools = Pools(kube, stale_after=60)
            loop = asyncio.get_running_loop()
            begun, asked, refused = loop.time(), 0, 0

            async def stranger() -> None:
                nonlocal asked, refused
                while loop.time() < begun + 3:
                    asked += 1
                    try:
                        assert await pools.find("agents", f"invented-{asked}", "stranger") is None
                    except errors.KubeError:
                        refused += 1
                        await asyncio.sleep(0.001)

            await asyncio.gather(*(stranger() for _ in range(200)))
            seconds = loop.time() - begun
            assert len(api.looks) <= module.RATE * (seconds + 1) + 1
            assert refused > 1000
            assert len(pools._absent) <= 2 * module.RATE + 1
            assert not pools._waiting and not pools._looks

    asyncio.run(main())


def test_one_client_leaves_room_for_another_to_look(tmp_path: Path) -> None:
    async def main() -> None:
        api = Api()
        async with serving(api) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            pools = Pools(kube, stale_after=60)
            strangers = [asyncio.create_task(pools.find("agents", f"p{n}", "stranger")) for n in range(module.WAITING)]
            await until(lambda: pools._waiting["stranger"] == module.WAITING // 2)
            with pytest.raises(errors.Unavailable, match="too many reviews wait"):
                await pools.find("agents", "another", "stranger")
            friend = asyncio.create_task(pools.find("agents", "new", "friend"))
            await until(lambda: pools._waiting["friend"] == 1)
            api.go.set()
            assert await friend == "new-uid"
            await asyncio.gather(*strangers, return_exceptions=True)

    asyncio.run(main())


def test_a_look_ends_with_its_last_asker(tmp_path: Path) -> None:
    async def main() -> None:
        api = Api()
        async with serving(api) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            pools = Pools(kube, stale_after=60)
            asked = asyncio.create_task(pools.find("agents", "new"))
            await until(lambda: api.looks)
            asked.cancel()
            await asyncio.wait([asked])
            assert asked.cancelled() and not pools._looks and not pools._waiting

    asyncio.run(main())


def test_who_joins_a_look_does_not_get_a_no_from_before_it_came(tmp_path: Path) -> None:
    async def main() -> None:
        api = Api()
        async with serving(api) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            pools = Pools(kube, stale_after=60)
            first = asyncio.create_task(pools.find("agents", "late"))
            await until(lambda: api.looks)
            joined = [asyncio.create_task(pools.find("agents", "late")) for _ in range(50)]
            first.add_done_callback(lambda _: api.found.update(late="late-uid"))
            api.go.set()
            assert await first is None
            assert await asyncio.gather(*joined) == ["late-uid"] * 50
            assert len(api.looks) == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        ("agents", ".."),
        ("agents", "a/b"),
        ("agents", "A"),
        ("agents", "x" * 254),
        ("..", "a"),
        ("", "a"),
        ("agents", "a\n"),
    ],
)
def test_what_cannot_be_a_name_is_not_asked_for(tmp_path: Path, namespace: str, name: str) -> None:
    async def main() -> None:
        api = Api()
        async with serving(api) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            assert await Pools(kube, stale_after=60).find(namespace, name) is None
        assert api.looks == []

    asyncio.run(main())


def test_a_watch_that_has_gone_silent_is_not_believed(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(Api()) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            pools = Pools(kube, stale_after=0.2)
            running = asyncio.create_task(pools.watch.run())
            await pools.watch.synced.wait()
            await until(lambda: pools.known("agents", "known") is None)
            reason = pools.unready()
            assert reason.startswith("no sign of life from the API server for")
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(main())


def test_no_answer_in_time_is_an_error_not_a_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.2)

    async def main() -> None:
        async with serving(Api()) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            with pytest.raises(errors.Unreachable, match="did not answer in time"):
                await Pools(kube, stale_after=60).find("agents", "new")

    asyncio.run(main())


def test_a_refusal_is_an_error_not_a_no(tmp_path: Path) -> None:
    async def main() -> None:
        api = Api()
        api.go.set()
        api.refuse_with = 403
        async with serving(api) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            with pytest.raises(errors.Forbidden):
                await Pools(kube, stale_after=60).find("agents", "new")

    asyncio.run(main())
