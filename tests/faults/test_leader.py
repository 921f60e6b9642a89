"""One reconciler works, the others stand by: who takes over, when, and what a deposed one can still do."""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import pytest

from ateplace import names
from ateplace.kube import Kube
from ateplace.local import ControlPlane, substrate
from ateplace.reconciler.leader import Election
from ateplace.settings import Cluster
from tests import reconciling
from tests.faults.meddler import Fate, Meddler, only
from tests.reconciling import Reconciler, ateom, claims, force_delete

Nodes = Callable[..., list[str]]

pytestmark = pytest.mark.usefixtures("nothing_is_bound_before_it_is_claimed")


@pytest.fixture
def pair(plane: ControlPlane) -> Iterator[tuple[Reconciler, Reconciler]]:
    with (
        reconciling.agent_substrate(plane, controller=False),
        reconciling.reconciling(plane, count=2) as (first, second),
    ):
        plane.wait(lambda: first.leads() != second.leads(), why="exactly one leader")
        yield (first, second) if first.leads() else (second, first)


def test_35_a_standby_takes_over_at_once_after_a_clean_stop_and_within_15_seconds_of_a_kill(
    plane: ControlPlane, namespace: str, nodes: Nodes, pair: tuple[Reconciler, Reconciler]
) -> None:
    leader, standby = pair
    node = nodes(1)[0]
    uid = substrate.pool(plane, namespace, "a")["metadata"]["uid"]
    path = f"/apis/coordination.k8s.io/v1/namespaces/{leader.lease}/leases/ateplace-reconciler"
    holder = plane.api.get(path)["spec"]["holderIdentity"]
    leader.plane.keeper.signal(leader.name, signal.SIGTERM)
    plane.wait(lambda: plane.api.get(path)["spec"]["holderIdentity"] != holder, why="the lease to change", every=0.02)
    began = time.monotonic()  # how long a busy machine takes to stop a process is not ours
    plane.wait(standby.leads, why="the standby to lead", every=0.02)
    handed = time.monotonic() - began
    ateom(plane, namespace, "a", uid, node)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the new leader to work")
    assert plane.keeper.wait(leader.name, 30) == 0
    assert "lease handed back" in leader.said(), "it has not simply run out"
    leader.start()
    assert leader.ready() and not leader.leads()
    other = substrate.pool(plane, namespace, "b")["metadata"]["uid"]
    standby.kill()
    began = time.monotonic()
    ateom(plane, namespace, "b", other, node)
    plane.wait(lambda: claims(plane, node) == ({uid, other}, True), why="the next leader's work")
    took = time.monotonic() - began
    print(f"\nhanded over in {handed:.2f} s, taken over {took:.1f} s after kill -9")
    assert handed < 6, "the lease would have run out in 8 to 10 s"
    assert took < 15


def test_35_a_deposed_leader_tells_of_no_deletion_that_waits_until_it_leads_again(
    plane: ControlPlane, namespace: str, nodes: Nodes
) -> None:
    (node,) = nodes(1)
    with reconciling.agent_substrate(plane, controller=False), reconciling.reconciling(plane) as (one,):
        uid = reconciling.pool(plane, namespace, "a")
        pod = ateom(plane, namespace, "a", uid, node, finalizers=("example.com/hold",))
        plane.wait(lambda: reconciling.held(plane, namespace), why="the finalizer")
        plane.api.delete(reconciling.pod_path(pod))
        substrate.delete(plane, namespace, "a")

        def waiting() -> float:
            return one.metrics()['ateplace_pool_deletions_waiting{awaited="draining"}']

        plane.wait(lambda: waiting() == 1, why="the deletion to wait")
        path = f"/apis/coordination.k8s.io/v1/namespaces/{one.lease}/leases/ateplace-reconciler"
        plane.api.patch(path, {"spec": {"holderIdentity": "usurper", "leaseDurationSeconds": 600}})
        plane.wait(lambda: not one.leads(), why="it to be deposed")
        plane.wait(lambda: waiting() == 0, why="it to tell of nothing that is another's")
        plane.api.patch(path, {"spec": {"holderIdentity": ""}})
        plane.wait(lambda: one.leads() and waiting() == 1, why="it to lead, and tell of it, again")
        plane.api.patch(reconciling.pod_path(pod), {"metadata": {"finalizers": None}})
        plane.wait(lambda: not plane.api.exists(reconciling.pool_path(namespace, "a")), why="the pool to go")
        assert waiting() == 0


def elected(plane: ControlPlane, main: Callable[[Kube], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        kube = await Kube.connect(Cluster(kubeconfig=str(plane.kubeconfig)))
        try:
            async with asyncio.timeout(60):
                await main(kube)
        finally:
            await kube.close()

    asyncio.run(run())


class Turn:
    """The work of a leader: it is on while the event is set."""

    def __init__(self) -> None:
        self.on = asyncio.Event()
        self.off = asyncio.Event()

    async def __call__(self) -> None:
        self.on.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.on.clear()
            self.off.set()


async def stop(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def test_36_a_leader_whose_clock_jumps_an_hour_is_neither_deposed_nor_does_it_depose(
    plane: ControlPlane, namespace: str
) -> None:
    """Only durations on one's own monotonic clock count: the times in the lease are for people."""

    async def main(kube: Kube) -> None:
        leading, standing = Turn(), Turn()
        one = asyncio.create_task(Election(kube, namespace, "one", seconds=15).run(leading))
        await leading.on.wait()
        two = asyncio.create_task(Election(kube, namespace, "two", seconds=15).run(standing))
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/ateplace-reconciler"
        for hour in ("1999-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"):
            await kube.patch(path, {"spec": {"renewTime": hour, "acquireTime": hour}}, object)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(standing.on.wait(), 1.5)
            assert leading.on.is_set()
        await stop(one)
        await asyncio.wait_for(standing.on.wait(), 10)  # handed over: it would run out later
        await stop(two)

    elected(plane, main)


def test_35_a_renewal_that_the_watch_reports_during_the_look_is_still_a_renewal(
    plane: ControlPlane, namespace: str
) -> None:
    """The first look and the first list of a newcomer race: whichever comes first, it has only begun to count."""

    async def main(kube: Kube) -> None:
        leading = Turn()
        one = asyncio.create_task(Election(kube, namespace, "one", seconds=6).run(leading))
        await leading.on.wait()

        class Slow:
            """Its looks are answered only after the watch has brought the same version."""

            def __getattr__(self, name: str) -> Any:
                return getattr(kube, name)

            async def get(self, *args: Any, **options: Any) -> Any:
                found = await kube.get(*args, **options)
                async with asyncio.timeout(5):
                    while two.holder != "one":  # noqa: ASYNC110 - it tells nobody
                        await asyncio.sleep(0.01)
                return found

        two, standing = Election(cast("Kube", Slow()), namespace, "two", seconds=6), Turn()
        other = asyncio.create_task(two.run(standing))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(standing.on.wait(), 3)
        assert leading.on.is_set()
        await stop(one, other)

    elected(plane, main)


def test_35_a_leader_that_finds_the_lease_taken_stops_its_work(plane: ControlPlane, namespace: str) -> None:
    async def main(kube: Kube) -> None:
        work = Turn()
        one = asyncio.create_task(Election(kube, namespace, "one", seconds=10).run(work))
        await work.on.wait()
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/ateplace-reconciler"
        await kube.patch(path, {"spec": {"holderIdentity": "usurper"}}, object)
        await asyncio.wait_for(work.off.wait(), 10)
        await asyncio.wait_for(work.on.wait(), 25)  # the usurper never renews, so the lease comes back
        work.off.clear()
        await kube.delete(path)
        await asyncio.wait_for(work.off.wait(), 5)
        await asyncio.wait_for(work.on.wait(), 10)
        await stop(one)

    elected(plane, main)


def test_35_a_leader_that_cannot_renew_stops_before_its_lease_runs_out(plane: ControlPlane, namespace: str) -> None:
    async def main(kube: Kube) -> None:
        work = Turn()
        cut = await Kube.connect(Cluster(kubeconfig=str(plane.kubeconfig)))
        one = asyncio.create_task(Election(cut, namespace, "one", seconds=12).run(work))
        await work.on.wait()
        began = time.monotonic()
        await cut.close()
        await asyncio.wait_for(work.off.wait(), 12)
        assert time.monotonic() - began < 12
        await stop(one)

    elected(plane, main)


@pytest.fixture
def meddler(plane: ControlPlane) -> Iterator[Meddler]:
    with Meddler(plane) as between:
        yield between


@pytest.fixture
def unlucky(plane: ControlPlane, meddler: Meddler) -> Iterator[tuple[Reconciler, Reconciler]]:
    """A leader whose writes can be held back, and its standby, whose cannot."""
    with (
        reconciling.agent_substrate(plane, controller=False),
        reconciling.reconciling(plane, kubeconfig=meddler.kubeconfig) as (leader,),
    ):
        plane.wait(leader.leads, why="it to lead")
        standby = leader.beside().start()
        try:
            yield leader, standby
        finally:
            standby.kill()


def test_35_a_release_under_way_when_its_leader_dies_is_refused_once_the_claim_was_touched(
    plane: ControlPlane, namespace: str, nodes: Nodes, meddler: Meddler, unlucky: tuple[Reconciler, Reconciler]
) -> None:
    leader, standby = unlucky
    (node,) = nodes(1)
    path, uid = f"/api/v1/nodes/{node}", reconciling.pool(plane, namespace, "a")
    pod = ateom(plane, namespace, "a", uid, node)
    plane.wait(lambda: claims(plane, node) == ({uid}, True), why="the claim")
    meddler.rule = only("PATCH", path, Fate.LATE)
    force_delete(plane, pod)
    plane.wait(lambda: any(fate is Fate.LATE for *_, fate in meddler.seen), why="a release to be under way")
    leader.kill()
    touched = "2026-01-01T00:00:00.000000Z"
    plane.api.patch(path, {"metadata": {"annotations": {names.claim_key(uid): touched}}})
    ateom(plane, namespace, "a", uid, node)
    plane.wait(standby.leads, why="the standby to lead")
    meddler.let_through()
    plane.wait(lambda: meddler.late, why="the release to arrive")
    assert meddler.late == [409]
    assert claims(plane, node) == ({uid}, True)
    assert plane.api.get(path)["metadata"]["annotations"][names.claim_key(uid)] == touched


def test_35_a_claim_under_way_when_its_leader_dies_does_not_reach_a_node_recreated_under_the_name(
    plane: ControlPlane, namespace: str, nodes: Nodes, meddler: Meddler, unlucky: tuple[Reconciler, Reconciler]
) -> None:
    leader, standby = unlucky
    (node,) = nodes(1)
    path, uid = f"/api/v1/nodes/{node}", reconciling.pool(plane, namespace, "a")
    meddler.rule = only("PATCH", path, Fate.LATE)
    pod = ateom(plane, namespace, "a", uid, node)
    plane.wait(lambda: any(fate is Fate.LATE for *_, fate in meddler.seen), why="a claim to be under way")
    leader.kill()
    force_delete(plane, pod)
    plane.api.delete(path)
    plane.api.post("/api/v1/nodes", {"metadata": {"name": node}})
    plane.wait(standby.leads, why="the standby to lead")
    meddler.let_through()
    plane.wait(lambda: meddler.late, why="the claim to arrive")
    assert meddler.late == [422], "another UID, which cannot be changed"
    assert claims(plane, node) == (set(), False)
