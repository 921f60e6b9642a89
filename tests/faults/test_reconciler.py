"""The reconciler while the way to the API server, the API server or a leader breaks; named by the fault's number."""

import contextlib
import random
import threading
import time
from collections.abc import Iterator

import pytest

from ateplace import names
from ateplace.local import ApiError, ControlPlane, substrate
from ateplace.local.scheduling import Scheduling, pool_pod
from ateplace.local.witness import Witness
from tests import reconciling
from tests.faults.meddler import Fate, Meddler, only, passes
from tests.placing import create
from tests.reconciling import Model, Reconciler, ateom, claims, force_delete, pod_path, pool_path, settled

WORK = "/api/v1/namespaces/agents/pods"
SMALL = {"cpu": "400m", "memory": "64Mi"}

RECOVERY = 30
"""Seconds after a fault within which everything is as it should be."""

WATCHES = 8
"""What a reconciler watches: the view's six, Deployments for headroom, and the lease."""
CUTS = 20
"""How often each of them is cut at least; one that has nothing to tell comes back more and more slowly."""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def hurt() -> Iterator[ControlPlane]:
    """A plane of our own, to be hurt."""
    with ControlPlane(nodes=20) as plane:
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": "agents"}})
        plane.wait(
            lambda: plane.api.exists("/api/v1/namespaces/agents/serviceaccounts/default"), why="a ServiceAccount"
        )
        with reconciling.agent_substrate(plane, controller=False):
            reconciling.wait_for_the_garbage_collector(plane, "agents")
            yield plane


@pytest.fixture
def meddler(hurt: ControlPlane) -> Iterator[Meddler]:
    with Meddler(hurt) as between:
        yield between


@pytest.fixture
def behind(hurt: ControlPlane, meddler: Meddler) -> Iterator[Reconciler]:
    """A reconciler that reaches the API server only through the meddler."""
    with reconciling.reconciling(hurt, kubeconfig=meddler.kubeconfig) as (running,):
        yield running
        assert "Traceback" not in running.said()
        assert running.missed() == 0


@pytest.fixture
def clean(hurt: ControlPlane) -> Iterator[None]:
    """Afterwards pools, their pods and their claims are gone, whoever is still there to help."""
    yield
    for pod in hurt.api.list("/api/v1/namespaces/agents/pods"):
        force_delete(hurt, pod)
    for pool in hurt.api.list(reconciling.POOLS):
        substrate.delete(hurt, "agents", pool["metadata"]["name"])
        reconciling.unhold(hurt, pool)
    hurt.wait(lambda: not hurt.api.list(reconciling.POOLS), why="the pools to go")
    for node in hurt.api.list(reconciling.NODES):
        keys = {key: None for key in node["metadata"].get("annotations", {}) if names.claimed_pool(key)}
        body = {"metadata": {"annotations": keys, "labels": {names.NODE_LABEL: None}}}
        hurt.api.patch(f"{reconciling.NODES}/{node['metadata']['name']}", body)


@pytest.fixture
def pools(hurt: ControlPlane, clean: None) -> dict[str, str]:
    """Five pools, by name."""
    return {name: substrate.pool(hurt, "agents", name)["metadata"]["uid"] for name in "abcde"}


class Churn:
    """Pods that come and go on all nodes, a few every step."""

    def __init__(self, plane: ControlPlane, pools: dict[str, str], seed: int = 1) -> None:
        self.plane = plane
        self._pools = list(pools.items())
        self._nodes = [node["metadata"]["name"] for node in plane.api.list(reconciling.NODES)]
        self._dice = random.Random(seed)  # noqa: S311 - no secret
        self._pods: list[dict[str, object]] = []
        self.made = 0

    def step(self, most: int = 60) -> None:
        for _ in range(5):
            name, uid = self._dice.choice(self._pools)
            self._pods.append(ateom(self.plane, "agents", name, uid, self._dice.choice(self._nodes)))
            self.made += 1
        while len(self._pods) > most:
            self.remove()

    def remove(self) -> None:
        with contextlib.suppress(ApiError):  # its node was deleted, and it with that
            force_delete(self.plane, self._pods.pop(self._dice.randrange(len(self._pods))))


def as_it_should_be(plane: ControlPlane) -> bool:
    """Whether it is `settled`; an API server that still finds itself and says so is one that is not yet."""
    try:
        return settled(plane)
    except ApiError as error:
        raise AssertionError(str(error)) from error


def recovers(plane: ControlPlane) -> float:
    """Seconds until the cluster is as the model says."""
    began = time.monotonic()
    plane.wait(lambda: as_it_should_be(plane), timeout=RECOVERY, why="the cluster to be as the model says", every=0.1)
    took = time.monotonic() - began
    print(f"\nas the model says after {took:.1f} s")
    return took


def test_27_a_node_that_others_keep_writing_to_is_still_released(
    hurt: ControlPlane, behind: Reconciler, pools: dict[str, str]
) -> None:
    node = "node-0000"
    pod = ateom(hurt, "agents", "a", pools["a"], node)
    hurt.wait(lambda: claims(hurt, node) == ({pools["a"]}, True), why="the claim")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.wait(0.05):
            number += 1
            note = {"metadata": {"annotations": {"example.com/note": str(number)}}}
            hurt.api.patch(f"{reconciling.NODES}/{node}", note)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        force_delete(hurt, pod)
        hurt.wait(lambda: claims(hurt, node) == (set(), False), timeout=15, why="the claim to go")
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("fate", [Fate.REFUSE_429, Fate.REFUSE_500, Fate.DONE_500, Fate.DONE_LOST, Fate.LOST])
def test_28_29_a_write_that_is_refused_or_gets_no_answer_is_looked_into_and_put_right(
    hurt: ControlPlane, behind: Reconciler, meddler: Meddler, pools: dict[str, str], fate: Fate
) -> None:
    node = "node-0001"
    meddler.rule = only("PATCH", "/nodes/", fate)
    pod = ateom(hurt, "agents", "a", pools["a"], node)
    tried = "PATCH", f"/api/v1/nodes/{node}", fate
    hurt.wait(lambda: any(seen[1:] == tried for seen in meddler.seen), why="a write to go wrong")
    if fate is Fate.REFUSE_429:
        hurt.wait(lambda: sum(seen[1:] == tried for seen in meddler.seen) > 1, why="it to be tried again")
        first, second = [seen[0] for seen in meddler.seen if seen[1:] == tried][:2]
        assert second - first >= 1.0, "Retry-After"
    meddler.rule = passes
    hurt.wait(lambda: claims(hurt, node) == ({pools["a"]}, True), timeout=30, why="the claim all the same")
    meddler.seen.clear()
    meddler.rule = only("PATCH", "/nodes/", fate)
    force_delete(hurt, pod)
    hurt.wait(lambda: any(seen[1:] == tried for seen in meddler.seen), why="a release to go wrong")
    meddler.rule = passes
    hurt.wait(lambda: claims(hurt, node) == (set(), False), timeout=30, why="the release all the same")


def test_29_a_finalizer_is_put_on_and_taken_off_whatever_becomes_of_single_writes(
    hurt: ControlPlane, behind: Reconciler, meddler: Meddler, pools: dict[str, str]
) -> None:
    dice = random.Random(3)  # noqa: S311 - no secret
    fates = [Fate.REFUSE_500, Fate.DONE_500, Fate.DONE_LOST, Fate.LOST, Fate.PASS]
    meddler.rule = lambda method, _: dice.choice(fates) if method in {"PATCH", "DELETE"} else Fate.PASS
    substrate.pool(hurt, "agents", "z")
    path = pool_path("agents", "z")
    hurt.wait(
        lambda: hurt.api.get(path)["metadata"].get("finalizers") == [names.FINALIZER],
        timeout=20,
        why="the finalizer",
    )
    substrate.delete(hurt, "agents", "z")
    hurt.wait(lambda: not hurt.api.exists(path), timeout=20, why="the pool to go")


def test_30_watches_cut_every_second_for_a_minute_miss_nothing(
    hurt: ControlPlane, behind: Reconciler, meddler: Meddler, pools: dict[str, str]
) -> None:
    """Every second whatever is open is cut, until a minute has passed and each watch has met it often enough."""
    churn = Churn(hurt, pools)
    end, late = time.monotonic() + 60, time.monotonic() + 240
    while time.monotonic() < end or len(meddler.cuts) < WATCHES or min(meddler.cuts.values()) < CUTS:
        assert time.monotonic() < late, meddler.cuts
        after = time.monotonic() + 1
        churn.step()
        hurt.wait(lambda after=after: time.monotonic() > after, why="a second")  # type: ignore[misc]
        meddler.cut()
    print(f"\n{meddler.cuts}")
    recovers(hurt)


def test_30_an_outage_during_which_etcd_is_compacted_ends_in_a_full_list_that_finds_everything(
    hurt: ControlPlane, behind: Reconciler, meddler: Meddler, pools: dict[str, str]
) -> None:
    churn = Churn(hurt, pools)
    churn.step()
    recovers(hurt)
    meddler.leave(True)
    for _ in range(20):
        churn.step()
    hurt.compact_etcd()
    hurt.api.delete(pool_path("agents", "e"), {"propagationPolicy": "Background"})
    hurt.api.delete(f"{reconciling.NODES}/node-0019")
    hurt.add_nodes(1, prefix="late")
    meddler.leave(False)
    recovers(hurt)
    hurt.api.delete(f"{reconciling.NODES}/late-0000")


def test_31_a_view_that_has_gone_stale_is_not_ready_and_says_why(
    hurt: ControlPlane, meddler: Meddler, pools: dict[str, str]
) -> None:
    with reconciling.reconciling(hurt, kubeconfig=meddler.kubeconfig, cluster__stale_after=4) as (running,):
        meddler.leave(True)
        hurt.wait(lambda: not running.ready(), why="it to notice")
        assert "view: the watch of" in running.readiness()
        meddler.leave(False)
        hurt.wait(running.ready, why="it to recover")


def test_35_a_leader_killed_again_and_again_in_a_churn_of_500_pods_leaves_nothing_behind(
    hurt: ControlPlane, pools: dict[str, str]
) -> None:
    with reconciling.reconciling(hurt, count=2) as both:
        churn = Churn(hurt, pools, seed=5)
        for number in range(100):
            churn.step(most=150)
            if number % 33 == 32:
                leader = next((one for one in both if one.leads()), both[0])
                leader.kill()
                leader.start()
        assert churn.made == 500
        recovers(hurt)
        assert sum(one.missed() for one in both) == 0


def test_35_a_leader_killed_in_a_churn_of_500_pods_that_our_scheduler_places_leaves_nothing_unclaimed_or_behind(
    hurt: ControlPlane, pools: dict[str, str]
) -> None:
    """The linger outlasts a stale view, as shipped, so that claims are also answered without being written again."""
    patient = {"linger": 4, "unbound_wait": 300, "cluster__stale_after": 3}
    with (
        reconciling.reconciling(hurt, count=2, **patient) as both,
        Scheduling(hurt, reconciler__linger=4, cluster__stale_after=3),
        Witness(hurt) as witness,
    ):
        placed = [hurt.api.get(pool_path("agents", name)) for name in pools]
        dice = random.Random(11)  # noqa: S311 - no secret
        made = kills = 0
        while made < 500:
            create(hurt, [pool_pod(dice.choice(placed), f"p{made + n}", requests=SMALL) for n in range(10)])
            made += 10
            here = hurt.api.list(WORK)
            bound = [pod for pod in here if pod["spec"].get("nodeName")]
            for pod in dice.sample(bound, min(len(bound), max(0, len(here) - 150))):
                force_delete(hurt, pod)
            if made in {160, 320, 480}:
                hurt.wait(lambda: any(one.leads() for one in both), why="a leader to kill")
                leader = next(one for one in both if one.leads())
                leader.kill()
                leader.start()
                kills += 1

        def over() -> bool:
            unbound = [pod for pod in hurt.api.list(WORK) if not pod["spec"].get("nodeName")]
            assert not unbound, f"{len(unbound)} pods are unbound"
            return settled(hurt)

        began = time.monotonic()
        hurt.wait(over, timeout=90, why="every pod to be placed and the cluster to be as the model says")
        print(f"\nas the model says after {time.monotonic() - began:.1f} s")
        assert (kills, witness.bound) == (3, 500)
        assert witness.violations() == []
        for pod in hurt.api.list(WORK):
            force_delete(hurt, pod)
        recovers(hurt)
        assert not any(labelled for _, labelled in Model(hurt).found.values()), "0 leaks"
        assert sum(one.missed() for one in both) == 0


def test_36_a_claim_lingers_by_the_monotonic_clock(
    hurt: ControlPlane, behind: Reconciler, pools: dict[str, str]
) -> None:
    """Values an hour ahead or behind, as a writer with a wrong clock leaves them, neither shorten nor lengthen it."""
    for hour in ("2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z"):
        meta = {"annotations": {names.claim_key(pools["a"]): hour}, "labels": {names.NODE_LABEL: "true"}}
        began = time.monotonic()
        hurt.api.patch(f"{reconciling.NODES}/node-0002", {"metadata": meta})
        hurt.wait(lambda: claims(hurt, "node-0002") == (set(), False), timeout=10, why="the claim to go")
        assert 0.9 < time.monotonic() - began < 1 + 5, "linger, and not more than 5 s over it"


def test_41_a_crd_deleted_under_us_takes_its_pools_along_and_claims_go_with_their_pods(
    hurt: ControlPlane, clean: None, behind: Reconciler
) -> None:
    uid = substrate.pool(hurt, "agents", "a")["metadata"]["uid"]
    pod = ateom(hurt, "agents", "a", uid, "node-0003")
    hurt.wait(lambda: claims(hurt, "node-0003") == ({uid}, True), why="the claim")
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workerpools.ate.dev"
    hurt.api.delete(crd)
    hurt.wait(lambda: not hurt.api.exists(crd), why="the CRD to go")
    assert claims(hurt, "node-0003") == ({uid}, True), "its pod is still there"
    force_delete(hurt, pod)
    hurt.wait(lambda: claims(hurt, "node-0003") == (set(), False), timeout=20, why="the claim to go")
    substrate.install(hurt, controller=False)
    again = substrate.pool(hurt, "agents", "a")["metadata"]["uid"]
    ateom(hurt, "agents", "a", again, "node-0003")
    hurt.wait(lambda: claims(hurt, "node-0003") == ({again}, True), timeout=20, why="everything to work again")


@pytest.mark.parametrize("how", ["stopped for a minute", "killed"])
def test_43_an_api_server_that_was_away_is_found_again(hurt: ControlPlane, pools: dict[str, str], how: str) -> None:
    with reconciling.reconciling(hurt, count=2) as both:
        churn = Churn(hurt, pools, seed=7)
        for _ in range(20):
            churn.step()
        if how == "killed":
            hurt.kill_apiserver()
        else:
            hurt.stop_apiserver()
            end = time.monotonic() + 60
            hurt.wait(lambda: time.monotonic() > end, timeout=70, why="a minute to pass", every=1)
        hurt.start_apiserver()
        for _ in range(5):
            churn.remove()
        recovers(hurt)
        hurt.wait(lambda: sum(one.leads() for one in both) == 1, why="one leader")
        assert sum(one.missed() for one in both) == 0
        assert not any("Traceback" in one.said() for one in both)


def test_38_pods_force_deleted_while_nobody_looked_are_released(hurt: ControlPlane, pools: dict[str, str]) -> None:
    with reconciling.reconciling(hurt) as (one,):
        pod = ateom(hurt, "agents", "a", pools["a"], "node-0004", finalizers=("example.com/hold",))
        hurt.wait(lambda: claims(hurt, "node-0004") == ({pools["a"]}, True), why="the claim")
        one.kill()
        force_delete(hurt, pod)
        hurt.api.patch(pod_path(pod), {"metadata": {"finalizers": None}})
        one.start()
        recovers(hurt)


def test_44_an_error_whose_body_does_not_end_is_read_to_its_limit_and_no_further(
    hurt: ControlPlane, behind: Reconciler, meddler: Meddler, pools: dict[str, str]
) -> None:
    """What was taken beyond the limit of 64 KiB was in the buffers of the two sockets."""
    meddler.rule = only("PATCH", "/nodes/", Fate.ENDLESS_500)
    ateom(hurt, "agents", "a", pools["a"], "node-0005")
    hurt.wait(lambda: len(meddler.endless) >= 3, why="three such answers")
    meddler.rule = passes
    hurt.wait(lambda: claims(hurt, "node-0005") == ({pools["a"]}, True), timeout=15, why="the claim all the same")
    assert max(meddler.endless) < 8 * 1024 * 1024, meddler.endless
