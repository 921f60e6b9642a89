"""Until when a leader works whose API server does not answer, or whose lease is gone."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ateplace.reconciler.leader import Election
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving, until

SECONDS = 9.0
"""Long enough for a busy machine to be seconds late with everything."""


def lease(version: int, holder: str, seconds: int) -> dict[str, Any]:
    meta = {"name": "lease", "namespace": "ns", "uid": "u", "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds}}


class Leases:
    """One lease, which is made and then hangs, is gone, or is another's; the watch of it tells nothing."""

    def __init__(self) -> None:
        self.made = False
        self.hangs = self.gone = False
        self.holder = "one"
        self.version = 1
        self.seconds = int(SECONDS)

    async def handle(self, request: Request, answer: Answer) -> None:
        if request.query.get("watch"):
            await answer.begin()
            kind = {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1"}
            ended = {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}
            await answer.event("BOOKMARK", {**kind, "metadata": ended})
            await asyncio.get_running_loop().create_future()
        elif self.hangs:
            await asyncio.get_running_loop().create_future()
        elif request.method == "POST":
            self.made = True
            await answer.reply(201, lease(self.version, self.holder, self.seconds))
        elif self.gone or not self.made:
            await answer.refuse(404, "NotFound", "no")
        elif request.method == "PATCH" and request.json["metadata"]["resourceVersion"] != str(self.version):
            await answer.refuse(409, "Conflict", "the object has been modified")
        else:
            if request.method == "PATCH":
                self.version += 1
            await answer.reply(200, lease(self.version, self.holder, self.seconds))


def works_for(tmp_path: Path, then: Callable[[Leases], None]) -> tuple[float, float]:
    """Seconds that a leader goes on working, and thinks that it leads, after `then` has happened to its lease."""

    async def main() -> tuple[float, float]:
        leases = Leases()
        on, off = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            on.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                off.set()

        async with serving(leases.handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            election = Election(kube, "ns", "one", seconds=SECONDS)
            running = asyncio.create_task(election.run(work))
            try:
                await asyncio.wait_for(on.wait(), 10)
                began = time.monotonic()
                then(leases)
                await until(lambda: not election.leading, 3 * SECONDS)
                led = time.monotonic() - began
                await asyncio.wait_for(off.wait(), 2 * SECONDS)
                return time.monotonic() - began, led
            finally:
                leases.hangs = False
                running.cancel()
                await asyncio.wait({running})

    return asyncio.run(main())


def test_a_leader_whose_renewals_hang_stops_after_two_thirds_of_its_lease(tmp_path: Path) -> None:
    worked, led = works_for(tmp_path, lambda leases: setattr(leases, "hangs", True))
    assert max(worked, led) < SECONDS, "before anybody may follow it"


def test_a_leader_whose_lease_is_gone_stops_with_its_next_renewal(tmp_path: Path) -> None:
    """Anybody may make a new one at once."""
    worked, led = works_for(tmp_path, lambda leases: setattr(leases, "gone", True))
    assert max(worked, led) < SECONDS * 2 / 3, "not only when it could not be renewed in time"


def test_a_leader_whose_lease_was_taken_stops_with_its_next_renewal(tmp_path: Path) -> None:
    def taken(leases: Leases) -> None:
        leases.holder, leases.version = "two", leases.version + 1

    worked, led = works_for(tmp_path, taken)
    assert max(worked, led) < SECONDS * 2 / 3, "not only when it could not be renewed in time"


def test_a_renewal_that_took_too_long_counts_from_before_it_was_sent(tmp_path: Path) -> None:
    """Whoever saw it before us has counted for as long."""

    async def main() -> int:
        leases, off = Leases(), asyncio.Event()
        now, renewals = 0.0, 0

        async def handle(request: Request, answer: Answer) -> None:
            nonlocal now, renewals
            if request.method == "PATCH" and "leaseTransitions" not in request.json["spec"]:
                renewals += bool(request.json["spec"]["holderIdentity"])
                now += SECONDS
            await leases.handle(request, answer)

        async def work() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                off.set()

        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            running = asyncio.create_task(Election(kube, "ns", "one", seconds=SECONDS, clock=lambda: now).run(work))
            try:
                await until(lambda: off.is_set() or renewals > 1, 3 * SECONDS)
                return renewals
            finally:
                running.cancel()
                await asyncio.wait({running})

    assert asyncio.run(main()) == 1


def test_a_lease_that_is_renewed_is_not_taken_although_the_watch_tells_nothing(tmp_path: Path) -> None:
    async def main() -> list[str]:
        leases = Leases()
        leases.made, leases.seconds = True, 1
        asked: list[str] = []

        async def handle(request: Request, answer: Answer) -> None:
            if not request.query.get("watch"):
                asked.append(request.method)
                leases.version += request.method == "GET"
            await leases.handle(request, answer)

        async def work() -> None:
            await asyncio.get_running_loop().create_future()

        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            running = asyncio.create_task(Election(kube, "ns", "two", seconds=SECONDS).run(work))
            try:
                await until(lambda: asked.count("GET") == 3 or "PATCH" in asked, 30)
                return asked
            finally:
                running.cancel()
                await asyncio.wait({running})

    assert asyncio.run(main()) == ["GET"] * 3
