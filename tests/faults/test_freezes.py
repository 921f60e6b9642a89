"""Processes that stand still, and API servers that answer late or from an old state.

A process that was stopped goes on with what it believed before. The linger is 4 s here instead of 120 s, and everything
that is stopped, is stopped for a thirtieth of 5 s to 3 min, so that claims are released meanwhile.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import ApiError, Object
from ateplace.local.scheduling import Scheduling
from ateplace.local.witness import Witness
from tests.faults.meddler import Meddler
from tests.faults.relay import Relay
from tests.placing import OWNER, ateom, claims, create, where
from tests.reconciling import Reconciler

Nodes = Callable[..., list[str]]
LINGER = 4.0
SHORTEST, LONGEST = 5 / 30, 180 / 30
HALF = {"cpu": "3", "memory": "64Mi"}
"""Two of them on a node of eight CPUs, so that a few pods open and leave several nodes."""
TOGETHER = 6
"""Pods that come at once, at the most; half of those before them go first, so that they always fit."""


@pytest.fixture(scope="module")
def hurt() -> Iterator[ControlPlane]:
    """A plane of this module's own: what is frozen here would freeze others' tests."""
    with ControlPlane() as running:
        substrate.install(running, controller=False)
        yield running


class Cluster:
    """One pool on nodes of its own, with an extender, its scheduler and a reconciler as processes."""

    def __init__(self, plane: ControlPlane, namespace: str, count: int) -> None:
        self.plane = plane
        self.namespace = namespace
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        plane.wait(lambda: plane.api.exists(account), why="a ServiceAccount")
        self.nodes = plane.add_nodes(count, prefix=namespace, labels={OWNER: namespace})
        self.pool: Object = substrate.pool(plane, namespace, "web")
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self._made = 0

    def create(self, count: int) -> None:
        create(self.plane, [ateom(self.pool, f"p{self._made + n}", requests=HALF) for n in range(count)])
        self._made += count

    def pods(self) -> list[Object]:
        return self.plane.api.list(self.path)

    def end(self, pods: list[Object]) -> None:
        for pod in pods:
            with contextlib.suppress(ApiError):
                self.plane.api.delete(f"{self.path}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})

    def claimed(self) -> set[str]:
        key = names.claim_key(self.pool["metadata"]["uid"])
        return {name for name in self.nodes if key in claims(self.plane, name)}


@contextlib.contextmanager
def frozen(pid: int, seconds: float) -> Iterator[None]:
    """The process stands still for so long, while the block runs and after."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + seconds
    try:
        yield
        time.sleep(max(0.0, until - time.monotonic()))  # how long it stands still is what is tried here
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def slow(meddler: Meddler, seconds: float) -> Iterator[None]:
    """The extender's API server takes two seconds longer for each answer, for so long."""
    meddler.delay = 2.0
    until = time.monotonic() + seconds
    try:
        yield
        time.sleep(max(0.0, until - time.monotonic()))
    finally:
        meddler.delay = 0.0


@contextlib.contextmanager
def away(meddler: Meddler, seconds: float) -> Iterator[None]:
    """The extender's API server is not there, for so long."""
    meddler.leave(True)
    until = time.monotonic() + seconds
    try:
        yield
        time.sleep(max(0.0, until - time.monotonic()))
    finally:
        meddler.leave(False)


@pytest.mark.parametrize("faults", [6, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_whatever_stands_still_in_a_burst_no_ateom_is_bound_before_its_node_is_claimed(
    hurt: ControlPlane, faults: int
) -> None:
    chance = random.Random(11)  # noqa: S311 - no secret
    cluster = Cluster(hurt, f"freeze-{faults}", 12)
    reconciler = Reconciler(hurt, cluster.namespace, linger=LINGER, unbound_wait=120)
    with (
        Witness(hurt) as witness,
        Meddler(hurt) as meddler,
        Scheduling(hurt, reconciler__linger=LINGER, cluster__kubeconfig=meddler.kubeconfig) as rig,
    ):
        reconciler.start()
        try:
            scheduler = hurt.pid("scheduler-ateplace")
            kinds: list[Callable[[float], contextlib.AbstractContextManager[None]]] = [
                lambda seconds: frozen(rig.pids[0], seconds),
                lambda seconds: frozen(reconciler.pid, seconds),
                lambda seconds: frozen(scheduler, seconds),
                lambda seconds: slow(meddler, seconds),
                lambda seconds: away(meddler, seconds),
                lambda seconds: frozen(rig.pids[0], seconds),
            ]
            for number in range(faults):
                there = cluster.pods()
                chance.shuffle(there)
                cluster.end(there[: chance.randint(len(there) // 2, len(there))])
                cluster.create(chance.randint(1, TOGETHER))
                time.sleep(chance.uniform(0.0, LINGER / 2))  # chance decides where in the burst it strikes
                with kinds[number % len(kinds)](chance.uniform(SHORTEST, LONGEST)):
                    bound = [pod for pod in cluster.pods() if pod["spec"].get("nodeName")]
                    cluster.end(bound[: len(bound) // 2])
                    cluster.create(chance.randint(1, TOGETHER))
            found = where(hurt, cluster.namespace, len(cluster.pods()), timeout=120)
            assert witness.violations() == []
            print(f"\n{faults} freezes and partitions, {witness.bound} ateoms bound, none before its node was claimed")
            assert witness.bound >= faults
            hurt.wait(
                lambda: cluster.claimed() == set(found.values()),
                timeout=60,
                why="claims on the nodes with pods alone",
                every=0.5,
            )
        finally:
            reconciler.kill()
            hurt.remove_nodes(cluster.nodes)


def kubeconfig_at(plane: ControlPlane, url: str) -> Path:
    """The administrator's, at another API server."""
    path = plane.directory / "kubeconfig-elsewhere"
    path.write_text(plane.kubeconfig.read_text().replace(plane.url, url))
    return path


@pytest.mark.long
def test_an_extender_whose_api_server_is_cut_off_from_etcd_answers_no_node_until_it_is_back(hurt: ControlPlane) -> None:
    """Its watches look alive, and show a claim that has been released since."""
    cluster = Cluster(hurt, "cut-off", 2)
    reconciler = Reconciler(hurt, cluster.namespace, linger=LINGER, unbound_wait=120)
    with Relay(hurt.etcd_port) as relay:
        there = kubeconfig_at(hurt, hurt.add_apiserver(relay.port))
        with (
            Witness(hurt) as witness,
            Scheduling(hurt, reconciler__linger=LINGER, cluster__kubeconfig=there) as rig,
        ):
            reconciler.start()
            try:
                cluster.create(1)
                (node,) = set(where(hurt, cluster.namespace, 1).values())
                relay.hold()
                cluster.end(cluster.pods())
                hurt.wait(lambda: not claims(hurt, node), timeout=60, why="the claim to be released", every=0.2)
                cluster.create(1)
                hurt.wait(
                    lambda: rig.metric("ateplace_extender_calls_total", verb="filter", result="error") > 0,
                    timeout=60,
                    why="the extender to say that it cannot decide",
                )
                assert not cluster.pods()[0]["spec"].get("nodeName")
                relay.flow()
                where(hurt, cluster.namespace, 1, timeout=120)
                assert witness.violations() == []
            finally:
                relay.flow()
                reconciler.kill()
                hurt.remove_nodes(cluster.nodes)
