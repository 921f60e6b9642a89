"""Every recipe in examples/, applied to a real control plane with ateplace installed, does what it says."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.pods import Installation
from ateplace.local.scene import OVERLAY
from tests import third_party

EXAMPLES = Path(__file__).parents[2] / "examples"
TYPE = "node.kubernetes.io/instance-type"
CAPACITY = "example.com/capacity"
UNITS = 4
TAINT = {"key": "ate.dev/sandboxClass", "value": "microvm", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def installed() -> Iterator[Installation]:
    with ControlPlane(start_delay=0.3) as own:
        for zone in "abc":
            own.add_nodes(2, zone, labels={names.ZONE_LABEL: zone})
        for capacity in ("steady", "spot"):
            for kind in ("m5", "m6"):
                own.add_nodes(2, f"{capacity}-{kind}", labels={CAPACITY: capacity, TYPE: kind})
        own.add_nodes(1, "gpu", resources={"nvidia.com/gpu": "4"})
        own.add_nodes(2, "kvm", labels={substrate.KVM_LABEL: str(UNITS)}, taints=[TAINT])
        own.add_nodes(1, "a-without-kvm", taints=[TAINT])
        substrate.install(own)
        installed = Installation(own, OVERLAY)
        installed.start(timeout=180)
        yield installed


@pytest.fixture
def cluster(installed: Installation) -> ControlPlane:
    return installed.plane


def apply(plane: ControlPlane, name: str) -> None:
    plane.kubectl("apply", "--server-side", "-f", str(EXAMPLES / name))


def where(plane: ControlPlane, namespace: str, count: int, selector: str = names.POOL_LABEL) -> list[str]:
    """The nodes of so many pods, once all are bound."""

    def bound() -> list[str]:
        pods = plane.api.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)
        found = [pod["spec"].get("nodeName", "") for pod in pods]
        assert len(found) == count and all(found), found
        return found

    return plane.wait(bound, timeout=180, why=f"{count} pods of {namespace} on nodes", every=0.3)


def labels(plane: ControlPlane, node: str) -> dict[str, str]:
    found: dict[str, str] = plane.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
    return found


def test_every_recipe_has_a_test_and_a_line_in_the_readme() -> None:
    files = {path.name for path in EXAMPLES.glob("*.yaml")}
    readme, tests = (EXAMPLES / "README.md").read_text(), Path(__file__).read_text()
    assert files and all(f"({name})" in readme and f'"{name}"' in tests for name in files)


def test_three_zones(cluster: ControlPlane) -> None:
    apply(cluster, "three-zones.yaml")
    used = set(where(cluster, "example-zones", 12))
    assert len(used) >= 3 and {labels(cluster, name).get(names.ZONE_LABEL) for name in used} >= {"a", "b", "c"}


def test_tenants(cluster: ControlPlane) -> None:
    """Nodes are shared with others, so two of them may have to do for four ateoms."""
    apply(cluster, "tenants.yaml")
    where(cluster, "example-tenant-b", 4)
    assert len(set(where(cluster, "example-tenant-a", 4))) <= 2
    path = "/api/v1/namespaces/example-tenant-a/pods"

    def placeholders() -> list[Object]:
        return cluster.api.list(path, labelSelector=names.PLACEHOLDER_LABEL)

    cluster.wait(lambda: len(placeholders()) == 2, timeout=120, why="two placeholders of the fifty")
    substrate.scale(cluster, "example-tenant-a", "agents", 30)

    def refused() -> bool:
        pods = cluster.api.list(path, labelSelector=names.POOL_LABEL)
        said = [one.get("message", "") for pod in pods for one in pod.get("status", {}).get("conditions", ())]
        return any("rule max-nodes=2: namespace example-tenant-a holds 2" in one for one in said)

    cluster.wait(refused, timeout=180, why="the quota to be said")


def test_spot_beside_steady(cluster: ControlPlane) -> None:
    apply(cluster, "spot.yaml")
    for pool, count, least in (("steady", 2, 2), ("spot", 8, 2)):
        used = Counter(where(cluster, "example-spot", count, f"{names.POOL_LABEL}={pool}"))
        found = [labels(cluster, name) for name in used]
        assert {each[CAPACITY] for each in found} == {pool} and len({each[TYPE] for each in found}) == 1
        assert len(used) >= least and max(used.values()) <= 4


def test_gpus(cluster: ControlPlane) -> None:
    apply(cluster, "gpu.yaml")
    assert set(where(cluster, "example-gpu", 3)) == {"gpu-0000"}
    assert where(cluster, "example-gpu", 1, names.PLACEHOLDER_LABEL) == ["gpu-0000"]


def test_a_horizontal_pod_autoscaler_scales_a_pool(cluster: ControlPlane) -> None:
    apply(cluster, "hpa.yaml")
    where(cluster, "example-hpa", 2)


def test_microvms_go_only_where_atelet_serves_a_free_device(cluster: ControlPlane) -> None:
    """The node that comes first by name may have the device, by its taint, and has none."""
    apply(cluster, "microvm.yaml")
    used = Counter(where(cluster, "example-microvm", 6))
    assert set(used) <= {"kvm-0000", "kvm-0001"} and max(used.values()) <= UNITS
    for name in used:
        assert cluster.api.get(f"/api/v1/nodes/{name}")["status"]["allocatable"]["ate.dev/kvm"] == str(UNITS)
    substrate.scale(cluster, "example-microvm", "sandboxes", 2 * UNITS + 1)
    path = "/api/v1/namespaces/example-microvm/pods"

    def over() -> bool:
        pods = cluster.api.list(path, labelSelector=names.POOL_LABEL)
        bound = Counter(pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName"))
        said = [one.get("message", "") for pod in pods for one in pod.get("status", {}).get("conditions", ())]
        assert max(bound.values()) <= UNITS and set(bound) <= {"kvm-0000", "kvm-0001"}, bound
        return bound.total() == 2 * UNITS and any("no ate.dev/kvm is free" in one for one in said)

    cluster.wait(over, timeout=180, why="all units to be used, and the reason why the last one waits", every=0.3)


def warm_slots(installed: Installation, pool: str) -> dict[str, int]:
    """By state, as the leading reconciler shows them."""
    text = httpx.get(installed.pods["reconciler"].url("/metrics"), timeout=30, trust_env=False).text
    found = re.findall(rf'^ateplace_warm_slots{{pool="{pool}",state="(\w+)"}} (\S+)$', text, re.MULTILINE)
    return {state: int(float(value)) for state, value in found}


def test_keda_fills_warm_nodes_and_opens_none(cluster: ControlPlane, installed: Installation) -> None:
    """KEDA is not there: what its query says is written to the scale subresource, as its autoscaler would. What the
    query says of these series is tested with promtool (tests/unit/test_examples_keda.py)."""
    for path in third_party.definitions(third_party.KEDA, "scaledobjects"):
        cluster.define(path)
    apply(cluster, "keda.yaml")
    target = cluster.api.get("/apis/keda.sh/v1alpha1/namespaces/example-keda/scaledobjects/web")["spec"][
        "scaleTargetRef"
    ]
    assert (target["apiVersion"], target["kind"]) == ("ate.dev/v1alpha1", "WorkerPool")
    nodes = set(where(cluster, "example-keda", 2))

    def room() -> int:
        found = warm_slots(installed, "example-keda/web")
        assert found.get("used") == 2 and found["free"] > 0, found
        return found["used"] + found["free"]

    most = cluster.wait(room, timeout=120, why="its node to be warm", every=0.5)
    scale = f"/apis/ate.dev/v1alpha1/namespaces/example-keda/workerpools/{target['name']}/scale"
    cluster.api.patch(scale, {"spec": {"replicas": most}})
    assert set(where(cluster, "example-keda", most)) == nodes, "no node more"
    full = {"used": most, "free": 0, "placeholder": 0}
    cluster.wait(lambda: warm_slots(installed, "example-keda/web") == full, timeout=60, why="nothing to be free")


def test_a_capacity_buffer_finds_the_ateoms_of_a_pool_and_not_its_placeholder(cluster: ControlPlane) -> None:
    """cluster-autoscaler asks the scale subresource for replicas and a selector, and takes a pod's spec from there."""
    for path in third_party.definitions(third_party.KARPENTER, "capacitybuffers"):
        cluster.define(path)
    apply(cluster, "capacity-buffer.yaml")
    buffers = "/apis/autoscaling.x-k8s.io/v1beta1/namespaces/example-buffer/capacitybuffers"
    ref = cluster.api.get(f"{buffers}/web")["spec"]["scalableRef"]
    assert (ref["apiGroup"], ref["kind"]) == ("ate.dev", "WorkerPool")
    where(cluster, "example-buffer", 5)
    warm = where(cluster, "example-buffer", 1, names.PLACEHOLDER_LABEL)
    scale = f"/apis/ate.dev/v1alpha1/namespaces/example-buffer/workerpools/{ref['name']}/scale"

    def resolved() -> Object:
        status: Object = cluster.api.get(scale)["status"]
        assert status.get("replicas") == 5 and status.get("selector"), status
        return status

    status = cluster.wait(resolved, timeout=60, why="the scale subresource to say what there is")
    found = cluster.api.list("/api/v1/namespaces/example-buffer/pods", labelSelector=status["selector"])
    assert len(found) == 5 and not any(names.PLACEHOLDER_LABEL in pod["metadata"]["labels"] for pod in found)
    assert names.NODE_LABEL in labels(cluster, warm[0]), "the placeholder's node is claimed"
