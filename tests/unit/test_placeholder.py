"""The shape of placeholders: what is copied from a pool's live Deployment, and what never is."""

from typing import Any

import msgspec
import pytest
import yaml

from ateplace import names
from ateplace.cluster.records import PoolRecord
from ateplace.local import substrate
from ateplace.reconciler.headroom.placeholder import (
    AteomShape,
    Deployment,
    DeploymentRecord,
    ateom_shape,
    deployment,
    deployment_record,
    name_of,
    without_prepull,
)
from ateplace.settings import PAUSE, Headroom, Settings, Webhook
from tests.unit import cluster

SETTINGS = Settings()
GIB = 1 << 30


def pool(name: str = "web", uid: str = "u1", headroom: str = "5") -> PoolRecord:
    return PoolRecord(uid, "ns", name, 1, deleting=False, finalizers=(), headroom=headroom, warm=True)


def live(resources: Any = None, **template: Any) -> dict[str, Any]:
    """The pod spec that the controller makes of a pool."""
    spec = {"replicas": 1, "ateomImage": "registry.example/ateom:1"}
    spec["template"] = template | ({"resources": resources} if resources else {})
    spec["sandboxClass"] = template.pop("sandboxClass", "gvisor")
    made = substrate.deployment({"metadata": {"name": "web", "namespace": "ns", "uid": "u1"}, "spec": spec})
    found: dict[str, Any] = made["spec"]["template"]["spec"]
    return found


def pod_of(made: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = made["spec"]["template"]["spec"]
    return spec


def make(spec: dict[str, Any], settings: Settings = SETTINGS, *, prepull: bool = True) -> dict[str, Any]:
    return deployment(pool(), ateom_shape(spec, settings.webhook), 5, settings, prepull=prepull)


def test_the_whole_deployment_for_a_plain_pool() -> None:
    made = make(live({"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"cpu": "4"}}))
    assert made == yaml.safe_load(f"""
        apiVersion: apps/v1
        kind: Deployment
        metadata:
          name: web-headroom-u1-ateplace-placeholders
          namespace: ns
          labels: &labels
            ateplace.ate.dev/placeholder: web
            ate.dev/worker-pool-uid: u1
            app.kubernetes.io/managed-by: ateplace
          ownerReferences:
            - {{apiVersion: ate.dev/v1alpha1, kind: WorkerPool, name: web, uid: u1, controller: true}}
        spec:
          replicas: 5
          selector: &selector
            matchLabels: {{ateplace.ate.dev/placeholder: web, ate.dev/worker-pool-uid: u1}}
          strategy: {{type: RollingUpdate, rollingUpdate: {{maxUnavailable: 1, maxSurge: 0}}}}
          revisionHistoryLimit: 0
          template:
            metadata:
              labels: *labels
              annotations: {{cluster-autoscaler.kubernetes.io/safe-to-evict: "true"}}
            spec:
              schedulerName: ateplace-scheduler
              priorityClassName: ateplace-placeholder
              terminationGracePeriodSeconds: 0
              automountServiceAccountToken: false
              enableServiceLinks: false
              securityContext:
                {{runAsNonRoot: true, runAsUser: 65535, runAsGroup: 65535, seccompProfile: {{type: RuntimeDefault}}}}
              topologySpreadConstraints:
                - maxSkew: 1
                  topologyKey: kubernetes.io/hostname
                  whenUnsatisfiable: ScheduleAnyway
                  labelSelector: *selector
              volumes:
                - {{name: ateom, image: {{reference: "registry.example/ateom:1", pullPolicy: IfNotPresent}}}}
              containers:
                - name: placeholder
                  image: {PAUSE}
                  imagePullPolicy: IfNotPresent
                  resources:
                    requests: &amounts {{cpu: 1500m, memory: 1024Mi}}
                    limits: *amounts
                  securityContext:
                    allowPrivilegeEscalation: false
                    readOnlyRootFilesystem: true
                    capabilities: {{drop: [ALL]}}
                  volumeMounts: [{{name: ateom, mountPath: /ateom, readOnly: true}}]
    """)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"requests": {"cpu": "2", "memory": "512Mi"}}, {"cpu": "2000m", "memory": "512Mi"}),
        ({"limits": {"cpu": "2", "memory": "20000000"}}, {"cpu": "2000m", "memory": "20000000"}),
        ({"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}}, {"cpu": "1000m", "memory": "1024Mi"}),
        ({"requests": {"memory": "1Gi"}}, {"cpu": "100m", "memory": "1024Mi"}),
        ({"requests": {"cpu": "500m"}}, {"cpu": "500m", "memory": "16Mi"}),
        ({"requests": {"cpu": "1m", "memory": "1Mi"}}, {"cpu": "100m", "memory": "16Mi"}),
        ({"requests": {"cpu": "1", "nvidia.com/gpu": "2"}}, {"cpu": "1000m", "memory": "16Mi", "nvidia.com/gpu": "2"}),
        ({"requests": {"nvidia.com/gpu": "1"}}, {"nvidia.com/gpu": "1", "cpu": "500m", "memory": "512Mi"}),
        (None, {"cpu": "500m", "memory": "512Mi"}),
    ],
)
def test_a_placeholder_asks_for_what_an_ateom_reserves(resources: Any, expected: dict[str, str]) -> None:
    asked = pod_of(make(live(resources)))["containers"][0]["resources"]
    assert asked == {"requests": expected, "limits": expected}


def test_all_containers_count_as_the_scheduler_counts_them() -> None:
    spec = live({"requests": {"cpu": "1", "memory": "1Gi"}})
    spec["containers"].append({"name": "side", "resources": {"requests": {"cpu": "500m"}}})
    spec["initContainers"] = [{"name": "big", "resources": {"requests": {"memory": "3Gi"}}}]
    spec["overhead"] = {"cpu": "7"}
    spec["runtimeClassName"] = "kata"
    assert ateom_shape(spec, Webhook()).requests == (("cpu", 1500), ("memory", 3 * GIB))
    assert pod_of(make(spec))["runtimeClassName"] == "kata"


def test_what_a_pool_without_requests_gets_is_a_setting() -> None:
    settings = Settings(headroom=Headroom(cpu="2", memory="4Gi"))
    assert pod_of(make(live(), settings))["containers"][0]["resources"]["requests"] == {"cpu": "2", "memory": "4Gi"}
    assert not ateom_shape(live(), Webhook()).reserves
    assert ateom_shape(live({"requests": {"cpu": "1m"}}), Webhook()).reserves


def test_where_ateoms_may_go_placeholders_may_go() -> None:
    affinity: Any = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]}
    }
    taint = {"key": "team", "operator": "Exists"}
    spec = live(nodeSelector={"disk": "ssd"}, tolerations=[taint], nodeAffinity=affinity, sandboxClass="microvm")
    pod = pod_of(make(spec))
    assert pod["nodeSelector"] == {"disk": "ssd", "ate.dev/sandboxClass": "microvm"}
    assert pod["tolerations"] == [taint, *spec["tolerations"][1:]]
    assert len(pod["tolerations"]) == 2
    assert pod["affinity"] == {"nodeAffinity": affinity}


def test_host_ports_are_not_held() -> None:
    """A placeholder that listens nowhere needs none, and one with a host port would keep a stranger's from its node."""
    spec = live()
    spec["containers"][0]["ports"] = [{"containerPort": 80}, {"containerPort": 7, "hostPort": 7070, "protocol": "UDP"}]
    assert "ports" not in pod_of(make(spec))["containers"][0]


def test_nothing_that_an_ateom_may_do_is_copied() -> None:
    spec = live(sandboxClass="microvm")
    spec |= {"hostNetwork": True, "hostPID": True, "serviceAccountName": "strong"}
    pod = pod_of(make(spec, prepull=False))
    assert set(pod) == {
        "schedulerName",
        "priorityClassName",
        "terminationGracePeriodSeconds",
        "automountServiceAccountToken",
        "enableServiceLinks",
        "securityContext",
        "topologySpreadConstraints",
        "containers",
        "nodeSelector",
        "tolerations",
    }
    assert set(pod["containers"][0]) == {"name", "image", "imagePullPolicy", "resources", "securityContext"}


def test_no_selector_of_agent_substrate_matches_a_placeholder() -> None:
    made = make(live())
    assert names.POOL_LABEL not in made["spec"]["template"]["metadata"]["labels"]
    assert names.POOL_LABEL not in made["metadata"]["labels"]


@pytest.mark.parametrize(
    ("own", "pulled"),
    [
        ({}, True),
        ({"serviceAccountName": "default"}, True),
        ({"serviceAccountName": "puller"}, False),
        ({"imagePullSecrets": [{"name": "key"}]}, False),
    ],
)
def test_an_image_that_needs_the_pools_account_or_secret_is_not_pulled_ahead(own: dict[str, Any], pulled: bool) -> None:
    """A placeholder has neither: its image volume would fail, and the placeholder never start."""
    pod = pod_of(make(live() | own))
    assert ("volumes" in pod, "volumeMounts" in pod["containers"][0]) == (pulled, pulled)
    assert not {"serviceAccountName", "imagePullSecrets"} & set(pod)


def test_without_image_volumes_it_is_as_if_pulling_ahead_were_off() -> None:
    spec = live({"requests": {"cpu": "1"}})
    with_it, without = make(spec), make(spec, prepull=False)
    assert without_prepull(with_it) == without
    assert without_prepull(without) == without


@pytest.mark.parametrize(
    ("own", "setting", "expected"),
    [
        ("default-scheduler", "ateplace-scheduler", "ateplace-scheduler"),
        ("default-scheduler", "", "default-scheduler"),
        ("mine", "ateplace-scheduler", "mine"),
        ("", "other", "other"),
    ],
)
def test_placeholders_use_the_scheduler_that_the_ateoms_use(own: str, setting: str, expected: str) -> None:
    settings = Settings(webhook=Webhook(scheduler_name=setting))
    assert pod_of(make(live() | {"schedulerName": own}, settings))["schedulerName"] == expected


def test_the_gating_resource_brings_placeholders_to_the_extender_as_well() -> None:
    settings = Settings(webhook=Webhook(gating_resource="ateplace.ate.dev/gate"))
    assert pod_of(make(live(), settings))["containers"][0]["resources"]["limits"]["ateplace.ate.dev/gate"] == "1"


def record(made: dict[str, Any], **metadata: Any) -> DeploymentRecord | None:
    made = made | {"metadata": made["metadata"] | metadata}
    return deployment_record(msgspec.json.decode(msgspec.json.encode(made), type=Deployment), Webhook())


def test_of_all_deployments_only_pools_and_ours_are_kept() -> None:
    spec = {"replicas": 3, "ateomImage": "i", "template": {"resources": {"requests": {"cpu": "1"}}}}
    theirs = substrate.deployment({"metadata": {"name": "web", "namespace": "ns", "uid": "u1"}, "spec": spec})
    kept = record(theirs, uid="d1", generation=2)
    assert kept is not None
    assert (kept.pool_uid, kept.ours, kept.replicas) == ("u1", False, 3)
    assert kept.shape == AteomShape((("cpu", 1000), ("memory", 16 << 20)), fixed=frozenset({"cpu"}), image="i")
    ours = record(make(live()), uid="d2", generation=7)
    assert ours is not None
    assert (ours.pool_uid, ours.ours, ours.owned, ours.generation, ours.shape) == ("u1", True, True, 7, None)
    orphaned = record(make(live()), ownerReferences=None)
    assert orphaned is not None
    assert (orphaned.ours, orphaned.owned) == (True, False)
    assert record(theirs, ownerReferences=[{"kind": "Other", "uid": "x"}]) is None
    foreign = {"apiVersion": "example.com/v1", "kind": "WorkerPool", "uid": "u1", "controller": True}
    assert record(theirs, ownerReferences=[foreign]) is None


def test_the_name_of_placeholders_is_no_working_pools_name() -> None:
    """Where a pool's Deployment has the pool's name, each of its ateoms has that as a label."""
    shortest = name_of("a", "00000000-0000-0000-0000-000000000000")
    assert 63 < len(shortest) <= 253 and len(name_of("a" * 63, "0" * 36)) <= 253


def test_placeholders_under_their_old_name_are_ours_too() -> None:
    kept = record(make(live()), name="web-headroom")
    assert kept is not None
    assert (kept.ours, kept.old, kept.pool_uid) == (True, True, "u1")
    now = record(make(live()))
    assert now is not None
    assert (now.ours, now.old) == (True, False)


def test_what_a_template_leaves_open_is_read_off_live_ateoms() -> None:
    shape = ateom_shape(live({"requests": {"cpu": "500m"}}), Webhook())
    live_ones = [(("cpu", 4000), ("memory", GIB)), (("memory", GIB // 2),)]
    assert shape.filled_in(live_ones).requests == (("cpu", 500), ("memory", GIB)), "the template says how much CPU"
    nothing = ateom_shape(live(), Webhook())
    assert not nothing.filled_in([(("cpu", 10), ("memory", 16 << 20))]).reserves, "that is our own init container"
    filled = nothing.filled_in([(("cpu", 2000), ("memory", GIB))])
    assert (filled.reserves, filled.requests) == (True, (("cpu", 2000), ("memory", GIB)))


@pytest.mark.parametrize(
    ("template", "labels", "goes"),
    [
        ({}, {}, True),
        ({"nodeSelector": {"version": "1"}}, {"version": "1"}, True),
        ({"nodeSelector": {"version": "1"}}, {"version": "2"}, False),
        ({"nodeAffinity": {}}, {"version": "2"}, True),
        ({"required": "1"}, {"version": "1"}, True),
        ({"required": "1"}, {"version": "2"}, False),
    ],
)
def test_whether_a_node_may_take_an_ateom(template: dict[str, Any], labels: dict[str, str], goes: bool) -> None:
    if wanted := template.pop("required", ""):
        term = {"matchExpressions": [{"key": "version", "operator": "In", "values": [wanted]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        template = {"nodeAffinity": required}
    assert ateom_shape(live(**template), Webhook()).goes_to(cluster.node("n1", labels=labels)) is goes


@pytest.mark.parametrize(
    ("message", "starved"),
    [('pods "x" is forbidden: exceeded quota: q, requested: pods=1', 4), ("denied by somebody's webhook", 0)],
)
def test_a_deployment_says_how_many_pods_a_quota_keeps_from_it(message: str, starved: int) -> None:
    spec = {"replicas": 6, "ateomImage": "i"}
    theirs = substrate.deployment({"metadata": {"name": "web", "namespace": "ns", "uid": "u1"}, "spec": spec})
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    kept = record(theirs | {"status": {"replicas": 2, "conditions": [failure]}})
    assert kept is not None
    assert kept.starved == starved


@pytest.mark.parametrize(
    "forged",
    [
        {"name": "web"},
        {"labels": {names.PLACEHOLDER_LABEL: "web", names.POOL_UID_LABEL: "u1"}},
        {"labels": {"app.kubernetes.io/managed-by": "ateplace"}, "ownerReferences": []},
    ],
)
def test_a_deployment_that_merely_looks_like_ours_is_nobodys(forged: dict[str, Any]) -> None:
    found = record(make(live()), **forged)
    assert found is None or not found.ours


def test_a_template_that_cannot_be_read_gives_no_shape() -> None:
    theirs = substrate.deployment(
        {"metadata": {"name": "web", "namespace": "ns", "uid": "u1"}, "spec": {"replicas": 1, "ateomImage": "i"}}
    )
    theirs["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "much"}}
    kept = record(theirs)
    assert kept is not None
    assert kept.shape is None
