"""Quantities and pod requests, against what kube-scheduler computes."""

from typing import Any

import msgspec
import pytest

from ateplace.cluster.resources import default_requests, host_ports, requests, shape
from ateplace.kube.objects import PodSpec, PodStatus
from ateplace.quantities import quantity

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("text", "scale", "expected"),
    [
        ("1", 0, 1),
        ("100m", 3, 100),
        ("0.1", 3, 100),
        ("1.5", 3, 1500),
        ("1.5", 0, 2),
        ("100u", 3, 1),
        ("1n", 3, 1),
        ("0", 3, 0),
        (".5", 3, 500),
        ("2.", 0, 2),
        ("200Mi", 0, 200 * MIB),
        ("1.5Gi", 0, 1536 * MIB),
        ("1k", 0, 1000),
        ("1e3", 0, 1000),
        ("12E-1", 0, 2),
        ("1E", 0, 10**18),
        ("2Ei", 0, 2**61),
        ("-1", 0, -1),
        ("+3", 0, 3),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: str, scale: int, expected: int) -> None:
    assert quantity(text, scale) == expected


@pytest.mark.parametrize("text", ["", "m", ".", "1 Gi", "1mi", "0x1", "1e", "1e9999", "NaN", "1Ki5"])
def test_what_is_not_a_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        quantity(text)


def container(cpu: str = "", memory: str = "", *, sidecar: bool = False, **other: str) -> dict[str, object]:
    wanted = {"cpu": cpu, "memory": memory, **{key.replace("_", "/"): value for key, value in other.items()}}
    return {
        "resources": {"requests": {key: value for key, value in wanted.items() if value}},
        "restartPolicy": "Always" if sidecar else None,
    }


def spec(**fields: object) -> PodSpec:
    return msgspec.convert(fields, PodSpec)


@pytest.mark.parametrize(
    ("pod", "requested", "counted"),
    [
        pytest.param(
            spec(containers=[container()]),
            {},
            {"cpu": 100, "memory": 200 * MIB},
            id="no requests count for 100m and 200 MiB",
        ),
        pytest.param(
            spec(containers=[container(), container()]),
            {},
            {"cpu": 200, "memory": 400 * MIB},
            id="each container counts",
        ),
        pytest.param(
            spec(containers=[container("1", "1Gi"), container("500m", "1Gi")]),
            {"cpu": 1500, "memory": 2048 * MIB},
            {"cpu": 1500, "memory": 2048 * MIB},
            id="containers add up",
        ),
        pytest.param(
            spec(containers=[container("1")]),
            {"cpu": 1000},
            {"cpu": 1000, "memory": 200 * MIB},
            id="what is missing gets the default, what is there does not",
        ),
        pytest.param(
            spec(containers=[container("1", "1Gi")], initContainers=[container("2", "10Mi"), container("1", "2Gi")]),
            {"cpu": 2000, "memory": 2048 * MIB},
            {"cpu": 2000, "memory": 2048 * MIB},
            id="init containers run one after the other",
        ),
        pytest.param(
            spec(
                containers=[container("1", "1Gi")],
                initContainers=[container("500m", "1Gi", sidecar=True), container("2", "1Gi")],
            ),
            {"cpu": 2500, "memory": 2048 * MIB},
            {"cpu": 2500, "memory": 2048 * MIB},
            id="a sidecar stays, beside the containers and beside later init containers",
        ),
        pytest.param(
            spec(
                containers=[container("1", "1Gi")],
                initContainers=[container("2", "1Gi"), container("500m", "1Gi", sidecar=True)],
            ),
            {"cpu": 2000, "memory": 2048 * MIB},
            {"cpu": 2000, "memory": 2048 * MIB},
            id="a sidecar does not count beside earlier init containers",
        ),
        pytest.param(
            spec(containers=[container("1", "1Gi")], overhead={"cpu": "250m", "memory": "120Mi"}),
            {"cpu": 1250, "memory": 1144 * MIB},
            {"cpu": 1250, "memory": 1144 * MIB},
            id="overhead is added",
        ),
        pytest.param(
            spec(containers=[container("1"), container()], resources={"requests": {"cpu": "3", "example.com/x": "9"}}),
            {"cpu": 3000},
            {"cpu": 3000, "memory": 400 * MIB},
            id="pod-level requests replace the containers', for the resources that can have them",
        ),
        pytest.param(
            spec(containers=[container("1", "1Gi", example_gpu="2"), container("1", "1Gi", example_gpu="1")]),
            {"cpu": 2000, "memory": 2048 * MIB, "example/gpu": 3},
            {"cpu": 2000, "memory": 2048 * MIB, "example/gpu": 3},
            id="extended resources add up",
        ),
    ],
)
def test_a_pod_is_counted_as_kube_scheduler_counts_it(
    pod: PodSpec, requested: dict[str, int], counted: dict[str, int]
) -> None:
    found = shape(pod)
    assert (dict(found.requests), dict(found.counted)) == (requested, counted)
    assert requests(pod) == found.requests


def test_equal_pods_share_one_shape() -> None:
    assert shape(spec(containers=[container("1")])) is shape(spec(containers=[container("1000m")]))


def test_host_ports_are_those_of_all_containers() -> None:
    ports = [{"hostPort": 8085}, {"hostPort": 9090, "protocol": "UDP"}, {"containerPort": 80}]
    assert host_ports(spec(containers=[{"ports": ports}])) == {("TCP", 8085), ("UDP", 9090)}


@pytest.mark.parametrize("text", ["1e999", "9" * 60, "1" + "0" * 30 + "Ei", "9223372036854775808"])
def test_a_quantity_beyond_what_the_api_server_takes_is_cut_down(text: str) -> None:
    assert quantity(text) == 2**63 - 1
    assert quantity(f"-{text}") == -(2**63 - 1)


@pytest.mark.parametrize("text", ["1e9999", "9" * 65, "1Zi", "0x10", "", ".", "1e", "NaN", "٣"])
def test_what_is_no_quantity_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        quantity(text)


def status(**fields: Any) -> PodStatus:
    return msgspec.convert(fields, PodStatus)


def granted(cpu: str, allocated: str = "") -> dict[str, Any]:
    return {
        "name": "c",
        "resources": {"requests": {"cpu": cpu}},
        **({"allocatedResources": {"cpu": allocated}} if allocated else {}),
    }


PENDING = {"type": "PodResizePending", "reason": "Deferred"}
INFEASIBLE = {"type": "PodResizePending", "reason": "Infeasible"}


@pytest.mark.parametrize(
    ("asked", "has", "cpu"),
    [
        ("4", status(), 4000),
        ("4", status(containerStatuses=[granted("1")]), 4000),
        ("1", status(containerStatuses=[granted("4")]), 4000),
        ("1", status(containerStatuses=[granted("1", "3")]), 3000),
        ("4", status(containerStatuses=[granted("1", "1")], conditions=[PENDING]), 4000),
        ("4", status(containerStatuses=[granted("1", "1")], conditions=[INFEASIBLE]), 1000),
        ("4", status(containerStatuses=[granted("1", "2")], conditions=[INFEASIBLE]), 2000),
        ("4", status(containerStatuses=[{"name": "c"}], conditions=[INFEASIBLE]), 4000),
        ("4", status(containerStatuses=[{**granted("1"), "name": "other"}], conditions=[INFEASIBLE]), 4000),
    ],
    ids=[
        "nothing is known",
        "it grows",
        "it shrinks",
        "it was promised more than it has",
        "deferred",
        "infeasible",
        "infeasible after another one was promised",
        "infeasible, and the kubelet does not say what it has",
        "another container's",
    ],
)
def test_a_resize_in_place_counts_as_kube_scheduler_counts_it(asked: str, has: PodStatus, cpu: int) -> None:
    pod = spec(containers=[{"name": "c", "resources": {"requests": {"cpu": asked}}}])
    assert dict(shape(pod, has).requests) == {"cpu": cpu}
    assert dict(requests(pod, has)) == {"cpu": cpu}


def test_a_resize_of_init_containers_counts_for_sidecars_only() -> None:
    init = {"resources": {"requests": {"cpu": "4"}}}
    made = spec(initContainers=[{**init, "name": "c"}, {**init, "name": "s", "restartPolicy": "Always"}])
    has = [granted("1"), {**granted("1"), "name": "s"}]
    found = requests(made, status(initContainerStatuses=has, conditions=[INFEASIBLE]))
    assert dict(found) == {"cpu": 4000}  # while the first runs; the sidecar after it has 1


def test_a_resize_of_the_pod_as_a_whole_counts_too() -> None:
    made = spec(containers=[{"name": "c"}], resources={"requests": {"cpu": "4"}})
    has = status(resources={"requests": {"cpu": "1"}}, allocatedResources={"cpu": "2"}, conditions=[INFEASIBLE])
    assert dict(requests(made, has)) == {"cpu": 2000}


@pytest.mark.parametrize(
    ("template", "defaults", "cpu", "ports"),
    [
        ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, {}, 2000, set()),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}]}, {}, 1000, set()),
        ({"containers": [{}], "resources": {"limits": {"cpu": "3"}}}, {}, 3000, set()),
        (
            {"containers": [{"resources": {"requests": {"cpu": "1"}}}], "resources": {"limits": {"cpu": "3"}}},
            {},
            1000,
            set(),
        ),
        ({"containers": [{}], "resources": {"limits": {"cpu": "3"}, "requests": {"cpu": "2"}}}, {}, 2000, set()),
        ({"containers": [{}, {}]}, {"cpu": "500m"}, 1000, set()),
        ({"containers": [{"resources": {"requests": {"cpu": "1"}}}, {}]}, {"cpu": "500m"}, 1500, set()),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, {"cpu": "500m"}, 2000, set()),
        ({"containers": [{}], "initContainers": [{}]}, {"cpu": "500m"}, 500, set()),
        ({"hostNetwork": True, "containers": [{"ports": [{"containerPort": 8085}]}]}, {}, 0, {("TCP", 8085)}),
        ({"containers": [{"ports": [{"containerPort": 8085}]}]}, {}, 0, set()),
    ],
    ids=[
        "a limit",
        "a limit and a request",
        "a limit of the pod",
        "a limit of the pod, and containers that request",
        "a limit and a request of the pod",
        "a LimitRange",
        "a LimitRange and a request",
        "a LimitRange and a limit",
        "a LimitRange and an init container",
        "a port in the node's network",
        "a port of its own",
    ],
)
def test_a_template_is_counted_as_the_api_server_would_admit_its_pod(
    template: dict[str, Any], defaults: dict[str, str], cpu: int, ports: set[tuple[str, int]]
) -> None:
    made = spec(**template)
    default_requests(made, defaults)
    assert dict(requests(made)).get("cpu", 0) == cpu
    assert host_ports(made) == ports
