"""Where the atelet DaemonSet can run."""

import msgspec
import pytest

from ateplace.cluster.atelets import AFFINITY, SELECTOR, cannot_run
from ateplace.cluster.records import atelet_record, atelet_template, node_record
from ateplace.kube.objects import DaemonSet, Node, Pod
from tests.unit.cluster import node


def required(*terms: dict[str, object]) -> dict[str, object]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def daemonset(**spec: object) -> DaemonSet:
    body = {"metadata": {"uid": "ds"}, "spec": {"template": {"spec": {"containers": [], **spec}}}}
    return msgspec.convert(body, DaemonSet)


def match(key: str, operator: str, *values: str) -> dict[str, object]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


MICROVM = ("ate.dev/sandboxClass", "microvm", "NoSchedule")
NOT_TOLERATED = "atelet does not tolerate the taint ate.dev/sandboxClass"


@pytest.mark.parametrize(
    ("spec", "there", "expected"),
    [
        pytest.param({}, node(), "", id="anywhere"),
        pytest.param({"nodeSelector": {"ate.dev/atelet": "true"}}, node(), "", id="our own label does not count"),
        pytest.param({"nodeSelector": {"disk": "ssd"}}, node(labels={"disk": "hdd"}), SELECTOR, id="nodeSelector"),
        pytest.param({"nodeSelector": {"disk": "ssd"}}, node(labels={"disk": "ssd"}), "", id="nodeSelector matches"),
        pytest.param({}, node(taints=(MICROVM,)), NOT_TOLERATED, id="a taint"),
        pytest.param(
            {"tolerations": [{"key": MICROVM[0], "value": "microvm"}]}, node(taints=(MICROVM,)), "", id="tolerated"
        ),
        pytest.param(
            {"tolerations": [{"key": MICROVM[0], "value": "gvisor"}]},
            node(taints=(MICROVM,)),
            NOT_TOLERATED,
            id="another value",
        ),
        pytest.param(
            {"tolerations": [{"key": MICROVM[0], "operator": "Exists", "effect": "NoExecute"}]},
            node(taints=(MICROVM,)),
            NOT_TOLERATED,
            id="another effect",
        ),
        pytest.param({"tolerations": [{"operator": "Exists"}]}, node(taints=(MICROVM,)), "", id="tolerates everything"),
        pytest.param(
            {},
            node(taints=(("node.kubernetes.io/unschedulable", "", "NoSchedule"),)),
            "",
            id="what every DaemonSet tolerates",
        ),
        pytest.param(
            {"affinity": required(match("zone", "In", "a", "b"))}, node(labels={"zone": "c"}), AFFINITY, id="In"
        ),
        pytest.param(
            {"affinity": required(match("zone", "In", "a"), match("disk", "Exists"))},
            node(labels={"disk": "x"}),
            "",
            id="any term will do",
        ),
        pytest.param({"affinity": required(match("zone", "NotIn", "a"))}, node(), "", id="NotIn without the label"),
        pytest.param(
            {"affinity": required(match("zone", "DoesNotExist"))}, node(labels={"zone": "a"}), AFFINITY, id="absent"
        ),
        pytest.param({"affinity": required(match("gen", "Gt", "3"))}, node(labels={"gen": "4"}), "", id="Gt"),
        pytest.param({"affinity": required(match("gen", "Lt", "3"))}, node(labels={"gen": "4"}), AFFINITY, id="Lt"),
        pytest.param({"affinity": required(match("gen", "Gt", "3"))}, node(labels={"gen": "x"}), AFFINITY, id="no int"),
        pytest.param(
            {"affinity": required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]})},
            node("n1"),
            AFFINITY,
            id="by name",
        ),
        pytest.param({"affinity": required({})}, node(), AFFINITY, id="an empty term matches nothing"),
    ],
)
def test_atelet_can_run(spec: dict[str, object], there: object, expected: str) -> None:
    assert cannot_run(atelet_template(daemonset(**spec)), there) == expected  # type: ignore[arg-type]


def test_the_room_that_atelet_needs_is_what_its_pods_will_request() -> None:
    """A template that has limits alone makes pods with requests: the API server adds them to pods, not to templates."""
    limits = {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    mixed = {"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "100m", "memory": "1Ki"}}}
    found = atelet_template(daemonset(containers=[limits, mixed]))
    assert dict(found.requests) == {"cpu": 1100, "memory": 1024**3 + 1024}


def test_an_unbound_atelet_is_known_by_the_node_it_is_made_for() -> None:
    field: dict[str, object] = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    body = {
        "metadata": {"name": "atelet-x", "uid": "a"},
        "spec": {"affinity": required(field)},
        "status": {"phase": "Pending", "conditions": [condition]},
    }
    record = atelet_record(msgspec.convert(body, Pod))
    assert record is not None
    assert (record.node, record.bound, record.ready, record.trouble) == ("n7", False, False, "Unschedulable")


def test_a_node_is_remembered_by_what_is_used_of_it() -> None:
    body = {
        "metadata": {
            "name": "n1",
            "uid": "u",
            "resourceVersion": "17",
            "labels": {"ate.dev/atelet": "true"},
            "annotations": {"ate.dev/claim.A": "", "other": "é"},
        },
        "spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}, {"key": "l", "effect": "NoExecute"}]},
        "status": {"allocatable": {"cpu": "7910m", "memory": "1Gi", "pods": "110"}},
    }
    record = node_record(msgspec.convert(body, Node))
    assert record.claims == {"A": ""} and record.labelled and record.version == 17
    assert record.taints == (("l", "", "NoExecute"),)
    assert record.allocatable == (("cpu", 7910), ("memory", 1024**3)) and record.slots == 110
    assert record.annotation_bytes == len("ate.dev/claim.A") + len("other") + 2
