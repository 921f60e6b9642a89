"""Headroom with everything real: webhook, extender, reconciler and a second scheduler as processes, an autoscaler."""

import contextlib
import json
import re
import time
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from rich.console import Console

from ateplace import names
from ateplace.cluster.records import PoolRecord
from ateplace.cluster.state import MAKING
from ateplace.errors import LocalError
from ateplace.local import ApiError, ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.burst import HEADROOM, SLOT, Recorder, Stage, is_ready
from ateplace.local.headroom_scene import experiment, timeline
from ateplace.local.pods import Installation
from ateplace.local.scene import OVERLAY
from ateplace.local.witness import Witness
from ateplace.reconciler.headroom import placeholder
from ateplace.settings import Settings
from tests.placing import priority_class

LINGER = 15.0
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "u", "controller": True}


class World:
    """A plane of its own: the whole cluster must be full, and that would hurt others."""

    def __init__(self, plane: ControlPlane, installed: Installation, witness: Witness) -> None:
        self.plane, self.installed, self.witness = plane, installed, witness

    @contextlib.contextmanager
    def stage(self, namespace: str) -> Iterator[Stage]:
        stage = Stage(self.plane, namespace)
        try:
            yield stage
        finally:
            stage.tear_down()

    def metric(self, name: str, labels: str = "") -> float:
        """The sum of what the extender and the reconciler have counted."""
        return sum(self.counted(role, name, labels) for role in ("extender", "reconciler"))

    def counted(self, role: str, name: str, labels: str = "") -> float:
        text = httpx.get(self.installed.pods[role].url("/metrics"), timeout=30, trust_env=False).text
        found = re.findall(rf"^ateplace_{name}{re.escape(labels)} (\S+)$", text, re.MULTILINE)
        return float(found[0]) if found else 0.0

    def gave_way(self, namespace: str) -> float:
        """How many placeholders did, for whomever."""
        return self.metric("placeholders_preempted_total", f'{{pool="{namespace}/web"}}')

    def preempted(self, namespace: str) -> list[str]:
        """Every pod that a scheduler says it preempted."""
        events = self.plane.api.list(f"/api/v1/namespaces/{namespace}/events", fieldSelector="reason=Preempted")
        return [event["involvedObject"]["name"] for event in events]

    def restart_extender(self, **settings: str) -> None:
        extender = self.installed.pods["extender"]
        extender._extra = extender._extra | {
            f"ATEPLACE_EXTENDER_{key.upper()}": value for key, value in settings.items()
        }
        extender.restart()
        self.plane.wait(self.installed.ready, timeout=60, why="the extender to be ready again")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with ControlPlane(start_delay=0.3) as own:
        substrate.install(own)
        installed = Installation(own, OVERLAY, reconciler__linger=LINGER)
        installed.start()
        with Witness(own) as witness:
            yield World(own, installed, witness)


def pods(stage: Stage, selector: str) -> list[Object]:
    return stage.plane.api.list(f"/api/v1/namespaces/{stage.namespace}/pods", labelSelector=selector)


def where(stage: Stage, selector: str) -> set[str]:
    return {pod["spec"].get("nodeName", "") for pod in pods(stage, selector)}


def claimed(stage: Stage) -> set[str]:
    found = stage.plane.api.list("/api/v1/nodes", labelSelector=f"{names.NODE_LABEL}=true")
    return {node["metadata"]["name"] for node in found}


@pytest.mark.versions
def test_a_burst_takes_the_headroom_at_once_and_the_cluster_grows_behind_it(world: World) -> None:
    plane = world.plane
    refills, waits = (world.metric(f"{name}_seconds_count") for name in ("placeholder_refill", "ateom_wait"))
    with world.stage("burst") as stage, Recorder(plane) as record:
        stage.set_up()
        assert len(where(stage, names.PLACEHOLDER_LABEL)) >= 2
        ordinary = {pod["metadata"]["uid"] for pod in pods(stage, f"!{names.PLACEHOLDER_LABEL}")}
        stage.start_autoscaler(delay=15, idle=4)  # pods that wait for a node are to be seen first
        took = experiment(plane, stage, record)
        Console().print(timeline(record))
        print(took)
        assert world.preempted("burst") == [], "the extender was quicker"
        assert ordinary <= {pod["metadata"]["uid"] for pod in pods(stage, f"!{names.PLACEHOLDER_LABEL}")}
        assert not [
            pod for pod in pods(stage, names.POOL_LABEL) if names.PLACEHOLDER_LABEL in pod["metadata"]["labels"]
        ]
        assert world.gave_way("burst") == HEADROOM
        assert world.metric("placeholder_refill_seconds_count") - refills == HEADROOM
        assert world.metric("placeholders", '{pool="burst/web",state="wanted"}') == HEADROOM
        assert world.metric("placeholders", '{pool="burst/web",state="running"}') == HEADROOM
        assert world.metric("placeholders", '{pool="burst/web",state="pending"}') == 0
        warm = world.metric("ateom_starts_total", '{pool="burst/web",start="warm"}')
        cold = world.metric("ateom_starts_total", '{pool="burst/web",start="cold"}')
        assert warm + cold == 7
        assert warm >= HEADROOM
        assert world.metric("ateom_wait_seconds_count") - waits >= 7
    assert world.witness.violations() == []


def test_an_ateom_that_takes_a_placeholders_room_finds_atelet_ready(world: World) -> None:
    """0 s from bound to a Ready atelet: each is the one that was Ready before the burst, and has not ended since."""

    def atelets() -> dict[str, str]:
        found = world.plane.api.list("/api/v1/namespaces/ate-system/pods")
        return {pod["spec"]["nodeName"]: pod["metadata"]["uid"] for pod in found if is_ready(pod)}

    with world.stage("ready") as stage:
        stage.set_up(headroom=4, free=4, nodes=2)
        before = atelets()
        stage.scale_and_wait(4)
        after = atelets()
        used = where(stage, names.POOL_LABEL)
        assert len(used) == 2
        assert {node: after[node] for node in used} == {node: before[node] for node in used}
        assert world.gave_way("ready") == 4
        assert world.metric("ateom_starts_total", '{pool="ready/web",start="warm"}') == 4
        assert world.metric("ateom_starts_total", '{pool="ready/web",start="cold"}') == 0
    assert world.witness.violations() == []


def cold_beside_warm(stage: Stage) -> str:
    """A warm node full of placeholders, and an empty cold one, whose name is returned."""
    warm, cold = stage.fill(free=24, nodes=2)
    stage.ordinary("ordinary", warm, 10)
    stage.plane.api.patch(f"/api/v1/nodes/{cold}", {"spec": {"unschedulable": True}})
    stage.create(headroom=2)
    stage.plane.api.patch(f"/api/v1/nodes/{cold}", {"spec": {"unschedulable": None}})
    assert where(stage, names.PLACEHOLDER_LABEL) == claimed(stage) == {warm}
    return cold


def test_prefer_warm_opens_a_cold_node_before_it_preempts(world: World) -> None:
    with world.stage("prefer") as stage:
        cold = cold_beside_warm(stage)
        stage.scale(1)
        stage.wait(lambda seen: seen.ateoms == 1, "the ateom on a node")
        assert where(stage, names.POOL_LABEL) == {cold}
        assert world.gave_way("prefer") == 0
        stage.scale(24 - 12)
        stage.wait(lambda seen: seen.ateoms == 12, "as many ateoms as the cold node takes")
        assert where(stage, names.POOL_LABEL) == {cold}
        assert world.gave_way("prefer") == 0
        stage.scale(13)
        stage.wait(lambda seen: seen.ateoms == 13, "one more ateom")
        assert world.gave_way("prefer") == 1
    assert world.witness.violations() == []


def test_hold_warm_preempts_before_it_opens_a_cold_node_and_for_a_while_only(world: World) -> None:
    world.restart_extender(placement="hold-warm", hold_warm_seconds="2")
    try:
        with world.stage("hold") as stage:
            cold = cold_beside_warm(stage)
            stage.scale(1)
            stage.wait(lambda seen: seen.ateoms == 1, "the ateom on a node")
            assert cold not in where(stage, names.POOL_LABEL)
            assert world.gave_way("hold") == 1
            stage.wait(lambda seen: seen.placeholders == 2, "the headroom to be back, on the cold node")
            assert cold in claimed(stage)
        with world.stage("held") as stage:
            cold = cold_beside_warm(stage)
            (warm,) = where(stage, names.PLACEHOLDER_LABEL)
            stage.plane.api.patch(f"/api/v1/nodes/{warm}", {"spec": {"unschedulable": True}})
            began = time.monotonic()
            stage.scale(1)
            stage.wait(lambda seen: seen.ateoms == 1, "the ateom, when nothing can be preempted", timeout=60)
            assert time.monotonic() - began > 2
            assert where(stage, names.POOL_LABEL) == {cold}
            assert world.gave_way("held") == 0
    finally:
        world.restart_extender(placement="prefer-warm")
    assert world.witness.violations() == []


@contextlib.contextmanager
def no_ateoms_made(plane: ControlPlane, namespace: str) -> Iterator[None]:
    """A policy of somebody's denies the ateoms that controllers make there, from `with` to its end."""
    group, kind = "admissionregistration.k8s.io", "ValidatingAdmissionPolicy"
    made = "has(object.metadata.ownerReferences) && 'ate.dev/worker-pool' in object.metadata.labels"
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    only = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    spec = {
        "matchConstraints": {"resourceRules": rules, "namespaceSelector": only},
        "validations": [{"expression": f"!({made})", "message": "no ateoms here"}],
    }
    bound = {"policyName": "no-ateoms", "validationActions": ["Deny"]}
    common = {"apiVersion": f"{group}/v1", "metadata": {"name": "no-ateoms"}}
    plane.apply([{**common, "kind": kind, "spec": spec}, {**common, "kind": f"{kind}Binding", "spec": bound}])
    probe = ateom("probe") | {"metadata": ateom("probe")["metadata"] | {"ownerReferences": [OWNER]}}

    def works() -> bool:
        try:
            plane.api.post(f"/api/v1/namespaces/{namespace}/pods", probe, dryRun="All")
        except ApiError as error:
            return "no ateoms here" in error.body
        return False

    plane.wait(works, why="the policy to work")
    try:
        yield
    finally:
        for plural in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            plane.api.delete(f"/apis/{group}/v1/{plural}/no-ateoms")


def ateom(name: str) -> Object:
    container = {"name": "ateom", "image": "registry.example/ateom:1", "resources": {"requests": dict(SLOT)}}
    return {"metadata": {"name": name, "labels": {names.POOL_LABEL: "web"}}, "spec": {"containers": [container]}}


def test_no_room_is_made_for_ateoms_that_are_never_made(world: World) -> None:
    """Twenty are wanted and none comes, but for one made by hand: for it alone a placeholder goes."""
    with world.stage("never") as stage, contextlib.ExitStack() as stack:
        stage.set_up(headroom=HEADROOM, free=HEADROOM)
        stack.enter_context(no_ateoms_made(world.plane, "never"))
        stage.scale(20)
        began = time.monotonic()
        world.plane.wait(lambda: time.monotonic() - began > MAKING + 1, why="time to pass in which they might be made")
        assert stage.counts().ateoms == stage.counts().waiting == 0
        world.plane.api.post("/api/v1/namespaces/never/pods", ateom("one"))
        stage.wait(lambda seen: seen.ateoms == 1, "the only ateom on a node")
        stage.wait(lambda seen: seen.pending == 1, "its placeholder's next one, which has no room")
        assert world.gave_way("never") == 1
    assert world.witness.violations() == []


def test_a_new_shape_is_rolled_out_with_never_more_than_one_missing(world: World) -> None:
    with world.stage("roll") as stage:
        stage.fill(free=24, nodes=2)
        stage.create(headroom=4)
        label = {"metadata": {"labels": {"disk": "ssd"}}}
        for node in stage.plane.api.list("/api/v1/nodes"):
            stage.plane.api.patch(f"/api/v1/nodes/{node['metadata']['name']}", label)
        path = f"{substrate.POOLS.format('roll')}/web"
        template = {"nodeSelector": {"disk": "ssd"}, "resources": {"requests": SLOT | {"cpu": "700m"}}}
        with Recorder(stage.plane, every=0.02) as record:
            stage.plane.api.patch(path, {"spec": {"template": template}})

            def followed() -> bool:
                found = pods(stage, names.PLACEHOLDER_LABEL)
                shapes = [pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] for pod in found]
                assert shapes == ["700m"] * 4, shapes
                return all(pod["spec"].get("nodeName") for pod in found)

            stage.plane.wait(followed, timeout=60, why="all placeholders to have the new shape")
        assert min(seen.placeholders for _, seen in record.rows) >= 3
        assert all(pod["spec"]["nodeSelector"] == {"disk": "ssd"} for pod in pods(stage, names.PLACEHOLDER_LABEL))


def test_headroom_that_is_not_warm_costs_no_atelet(world: World) -> None:
    with world.stage("plain") as stage:
        stage.fill(free=24, nodes=2)
        stage.create(headroom=4, warm=False)
        assert len(where(stage, names.PLACEHOLDER_LABEL)) == 2
        assert claimed(stage) == set()
        assert stage.counts().warm == 0
        early = world.witness.violations()
        assert all("/web-headroom-" in complaint for complaint in early)


@pytest.mark.versions
def test_a_placeholder_preempts_nothing_however_unimportant(world: World) -> None:
    plane = world.plane
    priority_class(plane, "less-than-nothing", -1000)
    with world.stage("meek") as stage:
        (node,) = stage.fill(free=12, nodes=1)
        container = {"name": "c", "image": "registry.example/c:1", "resources": {"requests": {"cpu": "6"}}}
        spec = {"nodeName": node, "priorityClassName": "less-than-nothing", "containers": [container]}
        plane.api.post("/api/v1/namespaces/meek/pods", {"metadata": {"name": "unimportant"}, "spec": spec})
        stage.create(headroom=0)
        note = {"metadata": {"annotations": {names.HEADROOM_ANNOTATION: "1"}}}
        plane.api.patch(f"{substrate.POOLS.format('meek')}/web", note)

        def refused() -> bool:
            (held,) = pods(stage, names.PLACEHOLDER_LABEL) or [{}]
            said = [one["message"] for one in held.get("status", {}).get("conditions", ()) if "message" in one]
            assert any("not eligible due to preemptionPolicy=Never" in message for message in said), said
            return True

        plane.wait(refused, why="the scheduler to say that a placeholder does not preempt")
        assert plane.api.exists("/api/v1/namespaces/meek/pods/unimportant")
        assert world.preempted("meek") == []


@pytest.mark.versions
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metadata": {"name": "other"}}, "no Deployment but those of its placeholders"),
        ({"metadata": {"labels": {names.PLACEHOLDER_LABEL: None}}}, "no Deployment but those of its placeholders"),
        ({"pod": {"hostNetwork": True}}, "nothing of the host's"),
        ({"pod": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}, "nothing of the host's"),
        ({"pod": {"automountServiceAccountToken": True}}, "no token"),
        ({"pod": {"priorityClassName": "system-node-critical"}}, "its priority class"),
        ({"container": {"command": ["sh"]}}, "runs its image as it is"),
        ({"container": {"securityContext": {"privileged": True}}}, "without privileges"),
    ],
)
def test_the_reconciler_may_write_placeholders_and_nothing_else(
    world: World, change: dict[str, Object], message: str
) -> None:
    pool = PoolRecord("u", "default", "web", 1, deleting=False, finalizers=(), headroom="1", warm=True)
    good = placeholder.deployment(pool, placeholder.AteomShape((("cpu", 100),)), 0, Settings(), prepull=True)
    bad = msgspec.json.decode(msgspec.json.encode(good))
    pod = bad["spec"]["template"]["spec"]
    for target, key in ((bad["metadata"], "metadata"), (pod, "pod"), (pod["containers"][0], "container")):
        target.update(change.get(key, {}))
    bad["metadata"]["labels"] = {key: value for key, value in bad["metadata"]["labels"].items() if value}
    account = str(world.installed.pods["reconciler"].kubeconfig)
    create = ("--kubeconfig", account, "create", "--dry-run=server", "-f", "-")
    assert "-ateplace-placeholders created" in world.plane.kubectl(*create, input=json.dumps(good))
    with pytest.raises(LocalError, match=message):
        world.plane.kubectl(*create, input=json.dumps(bad))


def test_the_plain_overprovisioner_is_five_replicas_without_a_reconciler(world: World) -> None:
    rendered = world.plane.kubectl("kustomize", str(OVERLAY.parents[1] / "components" / "overprovisioner-only"))
    world.plane.apply(rendered)
    path = "/apis/apps/v1/namespaces/ateplace-overprovisioner/deployments/overprovisioner"
    try:
        world.plane.add_nodes(1, prefix="over", cpu="4")
        world.plane.wait(
            lambda: world.plane.api.get(path)["status"].get("readyReplicas") == 5, why="five placeholders to run"
        )
        found = world.plane.api.list("/api/v1/namespaces/ateplace-overprovisioner/pods")
        asked = {"cpu": "500m", "memory": "512Mi"}
        assert [pod["spec"]["containers"][0]["resources"]["requests"] for pod in found] == [asked] * 5
        assert {(pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) for pod in found} == {(-10, "Never")}
    finally:
        world.plane.api.delete("/api/v1/namespaces/ateplace-overprovisioner")
        world.plane.remove_nodes(["over-0000"])


@pytest.mark.versions
def test_without_the_right_to_end_placeholders_the_scheduler_preempts_them(world: World) -> None:
    """As in an installation that was updated without its roles."""
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/ateplace-extender"
    shipped = world.plane.api.get(role)["rules"]
    less = [{**rule, "verbs": [verb for verb in rule["verbs"] if verb != "delete"]} for rule in shipped]
    world.plane.api.patch(role, {"rules": less})
    try:
        with world.stage("mute") as stage:
            stage.set_up(headroom=4, free=4, nodes=2)
            stage.scale_and_wait(4)
            assert world.counted("extender", "placeholders_preempted_total", '{pool="mute/web"}') == 0
            world.plane.wait(lambda: world.gave_way("mute") == 4, timeout=60, why="the leader to have counted them")
            world.plane.wait(
                lambda: {name.startswith("web-headroom-") for name in world.preempted("mute")} == {True},
                timeout=60,
                why="the scheduler to say so",
            )
    finally:
        world.plane.api.patch(role, {"rules": shipped})
        world.restart_extender()  # it would not ask again for a minute
    assert world.witness.violations() == []
