"""Two versions side by side, as in a rolling update and its undo: an older one from the history, and this one."""

import base64
import copy
import json
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonpatch
import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.pods import Pod
from ateplace.local.replicas import ReplicatedInstallation
from ateplace.local.scheduling import Scheduling
from ateplace.local.witness import Witness
from tests.deploying import NAMESPACE, ROLES, SECOND_SCHEDULER, claimed, newer
from tests.load import Load, failed_calls
from tests.placing import OWNER, ateom, create, where
from tests.versions import ROOT, answer, command, script, unpack

WORK = "agents"
LINGER = 5
ROOM = {"requests": {"cpu": "50m", "memory": "32Mi"}}
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/ateplace"
OVERLAY = SECOND_SCHEDULER.relative_to(ROOT)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("older"))


# -- certificates ------------------------------------------------------------------------------------------------------


FINISH = """
import asyncio, sys
from ateplace.kube import Kube
from ateplace.settings import load
try:
    from certs.keeper import Keeper  # what the older one calls it
    from certs.rotation import Phase, phase
except ModuleNotFoundError:
    from ateplace.certs.controller import Keeper
    from ateplace.certs.rotation import Phase, phase

async def main():
    settings = load(flags=sys.argv[1:]).settings
    kube = await Kube.connect(settings.cluster)
    keeper = Keeper(kube, settings)
    async with asyncio.timeout(60):
        while phase((await keeper.bring_into_step()).world) is not Phase.STEADY:
            await asyncio.sleep(0.1)
    await kube.close()

asyncio.run(main())
"""
"""What a leader does for certificates, until there is nothing left to do."""


@pytest.mark.parametrize("begins", ["old", "new"])
def test_a_change_of_authority_begun_by_one_is_finished_by_the_other(
    plane: ControlPlane, namespace: str, old: Path, begins: str
) -> None:
    first, second = (old, None) if begins == "old" else (None, old)
    place = [f"cluster.kubeconfig={plane.kubeconfig}", f"cluster.namespace={namespace}"]
    flags = [f"--set={each}" for each in place]

    def certs(code: Path | None, *arguments: str) -> Any:
        return answer(code, "certs", *arguments, *flags)

    def secrets() -> dict[str, Object]:
        found = plane.api.list(f"/api/v1/namespaces/{namespace}/secrets")
        return {each["metadata"]["name"]: each["data"] for each in found}

    made, before = certs(first, "bootstrap"), secrets()
    assert (made["phase"], len(before)) == ("Steady", 4)
    assert certs(second, "bootstrap") == made and secrets() == before, "there is nothing to do for the other"
    begun = certs(first, "rotate-ca", "--set=certs.settle=3600")
    assert begun["phase"] == certs(second, "show")["phase"] == "Restarting"
    assert command(second, "certs", "scheduler-restarted", *flags).returncode == 0
    script(second, FINISH, *place, "certs.settle=0.2")
    done = certs(second, "show")
    assert (done["phase"], done["steps"]) == ("Steady", []) and certs(first, "show") == done
    assert all(data != before[name] for name, data in secrets().items())


# -- the extender ------------------------------------------------------------------------------------------------------


@pytest.fixture
def older_substrate() -> Iterator[ControlPlane]:
    """A plane of its own with the shape of Agent Substrate that the older version knows."""
    with ControlPlane() as plane:
        substrate.use(plane, substrate.OLD)
        substrate.install(plane, controller=False)
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": WORK}})
        account = f"/api/v1/namespaces/{WORK}/serviceaccounts/default"
        plane.wait(lambda: plane.api.exists(account), why="a ServiceAccount")
        yield plane


def test_extenders_of_both_place_a_burst_call_by_call(older_substrate: ControlPlane, old: Path) -> None:
    plane = older_substrate
    plane.add_nodes(12, labels={OWNER: WORK})
    pools = [substrate.pool(plane, WORK, name) for name in ("web", "batch")]
    room = {"cpu": "400m", "memory": "64Mi"}
    with Witness(plane) as witness, Scheduling(plane, replicas=2, code={0: old}) as rig:
        create(plane, [ateom(pools[n % 2], f"p{n}", requests=room) for n in range(120)])
        found = where(plane, WORK, 120, timeout=120)
        assert (witness.violations(), witness.bound) == ([], 120)
        for number in (0, 1):
            assert rig.metric("ateplace_extender_calls_total", number, verb="filter") >= 40
            assert not rig.metric("ateplace_extender_calls_total", number, result="error")
        assert len(set(found.values())) <= 8, "120 × 400m on nodes of 8 CPUs: seven, and one more"


# -- everything, in a rolling update -----------------------------------------------------------------------------------


@dataclass
class Update:
    """An installation between two versions."""

    plane: ControlPlane
    installed: ReplicatedInstallation
    old: Path
    newer: Path

    def forward(self) -> None:
        """What `kubectl apply` of the newer manifests begins."""
        self.plane.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(self.newer))
        self.installed.change(None)

    def back(self) -> None:
        """What `kubectl rollout undo` begins."""
        for role in ROLES:
            self.plane.kubectl("rollout", "undo", "-n", NAMESPACE, f"deployment/ateplace-{role}")
        self.installed.change(self.old)

    def halfway(self) -> None:
        """One pod of each version in each role."""
        for role in ROLES:
            if len({pod.code for pod in self.installed.of(role)}) == 1:
                self.installed.roll(role, 1)

    def roll(self) -> None:
        """All Deployments at once, as a cluster does."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(self.installed.roll, ROLES))

    def versions(self) -> dict[str, set[Path | None]]:
        return {role: {pod.code for pod in self.installed.of(role)} for role in ROLES}

    def of_version(self, role: str, code: Path | None) -> Pod:
        (found,) = (pod for pod in self.installed.of(role) if pod.code == code)
        return found

    def led_by(self, code: Path | None) -> None:
        """Have the reconciler of this version lead, and it alone: the other one steps down, if need be."""
        wanted, other = self.of_version("reconciler", code), self.of_version("reconciler", self.other(code))
        self.plane.wait(lambda: leads(wanted) or leads(other), timeout=60, why="a leader")
        if leads(other):
            other.restart()
        self.plane.wait(lambda: leads(wanted) and not leads(other), timeout=60, why="one version to lead, not both")

    def other(self, code: Path | None) -> Path | None:
        return None if code else self.old

    def pool(self, name: str, replicas: int = 4, **annotations: str) -> Object:
        """A pool that runs, with our finalizer on it."""
        made = substrate.pool(self.plane, WORK, name, replicas, resources=ROOM, annotations=annotations)
        self.plane.wait(lambda: len(self.running(name)) == replicas, timeout=90, why=f"{name} to run")
        path = f"{substrate.POOLS.format(WORK)}/{name}"
        self.plane.wait(
            lambda: names.FINALIZER in self.plane.api.get(path)["metadata"].get("finalizers", ()), why="our finalizer"
        )
        assert {pod["spec"]["nodeName"] for pod in self.running(name)} <= set(claimed(self.plane, made))
        return made

    def running(self, name: str) -> list[Object]:
        pods = self.plane.api.list(f"/api/v1/namespaces/{WORK}/pods", labelSelector=f"{names.POOL_LABEL}={name}")
        return [pod for pod in pods if pod["status"].get("phase") == "Running"]

    def shrinks(self, pool: Object) -> None:
        substrate.scale(self.plane, WORK, pool["metadata"]["name"], 0)
        self.plane.wait(lambda: not claimed(self.plane, pool), timeout=90, why="its claims to be released")

    def goes(self, pool: Object) -> None:
        substrate.delete(self.plane, WORK, pool["metadata"]["name"])
        self.is_gone(pool)

    def is_gone(self, pool: Object) -> None:
        name = pool["metadata"]["name"]
        path = f"{substrate.POOLS.format(WORK)}/{name}"
        self.plane.wait(
            lambda: not self.plane.api.exists(path) and not claimed(self.plane, pool), timeout=90, why=f"{name} to go"
        )

    def trust(self) -> dict[str, Any]:
        """Every Secret, and what the API server trusts our webhook by."""
        secrets = {each["metadata"]["name"]: each["data"] for each in self.plane.api.list(SECRETS)}
        hooks = self.plane.api.get(HOOKS)["webhooks"]
        return {"secrets": secrets, "caBundle": [hook["clientConfig"]["caBundle"] for hook in hooks]}


def leads(pod: Pod) -> bool:
    try:
        text = httpx.get(pod.url("/metrics"), timeout=5, trust_env=False).text
    except httpx.HTTPError as error:
        raise AssertionError(str(error)) from error
    return "ateplace_leader 1.0" in text.splitlines()


@pytest.fixture(scope="module")
def update(old: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Update]:
    """Begins with the older version alone, from its own manifests; this one's are applied, and nothing has rolled."""
    with ControlPlane(nodes=6) as plane:
        substrate.use(plane, substrate.OLD)  # the older version knows no other
        substrate.install(plane)
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": WORK}})
        with ReplicatedInstallation(plane, old / OVERLAY, code=old, reconciler__linger=LINGER) as installed:
            update = Update(plane, installed, old, newer(tmp_path_factory.mktemp("newer")))
            update.forward()
            yield update


@pytest.fixture
def halfway(update: Update) -> Update:
    update.halfway()
    assert update.versions() == {role: {update.old, None} for role in ROLES}
    return update


def mutated(pod: Pod, authorities: str, review: Object) -> list[Object]:
    """The patch that one webhook answers with."""
    context = ssl.create_default_context(cadata=authorities)
    with httpx.Client(verify=context, trust_env=False, timeout=10) as client:
        url = f"https://{pod.address}:8443/mutate"
        name = f"{names.WEBHOOK_SERVICE}.{NAMESPACE}.svc"
        answered = client.post(url, json=review, headers={"Host": name}, extensions={"sni_hostname": name})
    response = answered.raise_for_status().json()["response"]
    assert response["allowed"], response
    return json.loads(base64.b64decode(response["patch"])) if "patch" in response else []


def test_webhooks_of_both_patch_alike_but_for_the_init_container_and_leave_their_work_alone(halfway: Update) -> None:
    """Each version ships a container of its own; one pod is reviewed by one of them."""
    plane = halfway.plane
    pool = substrate.pool(plane, WORK, "reviewed")
    template = substrate.deployment(pool)["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {**template["metadata"], "generateName": "reviewed-", "namespace": WORK}
    request = {
        "uid": "one",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": WORK,
        "object": pod,
    }
    review: Object = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    authorities = base64.b64decode(plane.api.get(f"{SECRETS}/{names.WEBHOOK_CERTIFICATE}")["data"]["ca.crt"]).decode()
    webhooks = [halfway.of_version("webhook", code) for code in (halfway.old, None)]
    patches = [mutated(each, authorities, review) for each in webhooks]
    others = [[op for op in patch if not op["path"].startswith("/spec/initContainers")] for patch in patches]
    assert others[0] == others[1] and all(len(patch) == len(others[0]) + 1 for patch in patches)
    for webhook, patch in zip(webhooks, patches, strict=True):
        done = copy.deepcopy(review)
        done["request"]["object"] = jsonpatch.apply_patch(pod, patch)
        assert mutated(webhook, authorities, done) == []
    halfway.goes(pool)


@pytest.mark.parametrize("before", ["old", "new"])
def test_one_leads_after_the_other_and_goes_on_with_what_it_finds(halfway: Update, before: str) -> None:
    first, second = (halfway.old, None) if before == "old" else (None, halfway.old)
    halfway.led_by(first)
    kept, shrunk, deleted = (halfway.pool(f"{name}-{before}") for name in ("kept", "shrunk", "deleted"))
    spare = halfway.pool(f"spare-{before}", 1, **{names.HEADROOM_ANNOTATION: "2"})
    trusted = halfway.trust()
    held = claimed(halfway.plane, kept)
    stuck = halfway.running(f"deleted-{before}")[0]["metadata"]["name"]
    halfway.plane.hold_pod(WORK, stuck, "terminating")
    substrate.delete(halfway.plane, WORK, f"deleted-{before}")
    halfway.plane.wait(
        lambda: len(halfway.running(f"deleted-{before}")) <= 1, timeout=60, why="all but one of its pods to end"
    )
    # By this version's policy the older one may write no headroom: what is there stays, what is missing comes later.
    placeholders = _placeholders(halfway.plane, spare) if before == "new" else None
    halfway.led_by(second)
    assert claimed(halfway.plane, deleted), "its last pod has not ended"
    halfway.shrinks(shrunk)
    halfway.plane.api.delete(f"/api/v1/namespaces/{WORK}/pods/{stuck}", {"gracePeriodSeconds": 0})
    halfway.is_gone(deleted)
    assert claimed(halfway.plane, kept) == held
    assert _placeholders(halfway.plane, spare) == placeholders or before == "old"
    assert halfway.trust() == trusted
    for pool in (kept, shrunk, spare):
        halfway.goes(pool)


def _placeholders(plane: ControlPlane, pool: Object) -> set[str]:
    """The pool's placeholder pods, once there are two."""
    selector = f"{names.PLACEHOLDER_LABEL}={pool['metadata']['name']}"

    def two() -> set[str]:
        found = plane.api.list(f"/api/v1/namespaces/{WORK}/pods", labelSelector=selector)
        assert len(found) == 2 and all(pod["spec"].get("nodeName") for pod in found), len(found)
        return {pod["metadata"]["uid"] for pod in found}

    return plane.wait(two, timeout=60, why="two placeholders")


@pytest.mark.slow
def test_an_update_and_its_undo_under_load_lose_nothing(update: Update) -> None:
    plane, installed = update.plane, update.installed
    earlier, trusted = failed_calls(plane), update.trust()
    substrate.pool(plane, WORK, "load", resources=ROOM)
    with Witness(plane) as witness, Load(plane, WORK, "load", rate=5) as load:
        plane.wait(lambda: load.created >= 10, timeout=30, why="the load to flow")
        before = update.pool("before")
        update.roll()
        assert update.versions() == {role: {None} for role in ROLES}
        update.shrinks(before)
        between = update.pool("between")
        update.back()
        update.roll()
        assert update.versions() == {role: {update.old} for role in ROLES}
        update.shrinks(between)
        for pool in (before, between):
            update.goes(pool)
        seen = load.created
        plane.wait(lambda: load.created >= seen + 10, timeout=60, why="the load to flow on")
    plane.wait(load.placed, timeout=60, why="every pod to be bound")
    load.clear()
    print(f"{load.created} pods at {load.rate:.1f}/s, {len(load.failures)} refused, {witness.bound} bound")
    failed = [line for line in failed_calls(plane) if line not in earlier]
    assert (load.failures, failed, witness.violations()) == ([], [], [])
    assert update.trust() == trusted
    update.forward()
    plane.wait(installed.ready, timeout=60, why="everything to be ready")
