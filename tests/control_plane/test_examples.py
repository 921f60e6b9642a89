"""Every recipe in examples/, applied to a real control plane with ateplace installed, does what it says."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ateplace import names
from local import ControlPlane, substrate
from local.api import Object
from local.pods import Installation
from local.scene import OVERLAY

EXAMPLES = Path(__file__).parents[2] / "examples"
TYPE = "node.kubernetes.io/instance-type"
CAPACITY = "example.com/capacity"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    with ControlPlane(start_delay=0.3) as own:
        for zone in "abc":
            own.add_nodes(2, zone, labels={names.ZONE_LABEL: zone})
        for capacity in ("steady", "spot"):
            for kind in ("m5", "m6"):
                own.add_nodes(2, f"{capacity}-{kind}", labels={CAPACITY: capacity, TYPE: kind})
        own.add_nodes(1, "gpu", resources={"nvidia.com/gpu": "4"})
        substrate.install(own)
        installed = Installation(own, OVERLAY)
        installed.start()
        own.wait(installed.ready, timeout=180, why="ateplace to be ready")
        yield own


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
