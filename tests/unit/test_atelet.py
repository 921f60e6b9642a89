"""Where atelet can run, and what it takes there."""

import msgspec
import pytest

from ateplace.cluster.atelets import AFFINITY, SELECTOR, Templates, cannot_run
from ateplace.cluster.records import (
    NodeRecord,
    atelet_record,
    atelet_template,
    live_atelet_template,
    node_record,
)
from ateplace.cluster.state import Warmth
from ateplace.extender.fit import NO_ROOM, no_room
from ateplace.kube.objects import DaemonSet, Metadata, Node, Pod, Toleration
from ateplace.label_selectors import parse
from tests.unit.cluster import atelet, case, ledger, node, template


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


V1 = (("ate.dev/substrate-version", "v1"),)
V2 = (("ate.dev/substrate-version", "v2"),)
EVERYTHING = (Toleration(operator="Exists"),)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        pytest.param(node(labels=dict(V1)), ("", {"cpu": 50}, {8085, 9090}, {"old"}), id="the old version's"),
        pytest.param(node(labels=dict(V2)), ("", {"cpu": 100, "memory": 9}, {8085}, {"new"}), id="the new version's"),
        pytest.param(node(), (SELECTOR, {}, set(), set()), id="no version's"),
        pytest.param(
            node(labels=dict(V1), taints=(MICROVM,)),
            (NOT_TOLERATED, {}, set(), set()),
            id="the taint says more",
        ),
        pytest.param(
            node(labels=dict(V2), taints=(MICROVM,)),
            ("", {"cpu": 100, "memory": 9}, {8085}, {"new"}),
            id="tolerated",
        ),
    ],
)
def test_a_node_has_the_atelet_of_the_daemonset_that_fits_it(there: NodeRecord, expected: tuple[object, ...]) -> None:
    old = template(cpu=50, uid="old", selector=V1, ports=(8085, 9090))
    new = template(cpu=100, memory=9, uid="new", selector=V2, tolerations=EVERYTHING)
    need = Templates([old, new]).need(there)
    assert (need.barred, dict(need.requests), {port for _, port in need.ports}, need.daemonsets) == expected


def test_where_several_daemonsets_fit_the_room_kept_back_is_the_largest_of_each_resource() -> None:
    """One atelet at a time has the host port, and which one it is cannot be known."""
    need = Templates([template(cpu=50, memory=9, uid="old"), template(cpu=100, uid="new", ports=(8086,))]).need(node())
    assert dict(need.requests) == {"cpu": 100, "memory": 9}
    assert need.ports == {("TCP", 8085), ("TCP", 8086)}


def test_a_node_is_warm_by_the_atelet_of_a_daemonset_that_fits_it_now() -> None:
    known = ledger(node("n1", "A", labels=dict(V1)), atelet("n1", daemonset="old"))
    known.daemonset_gone("ds", 0.0)
    known.daemonset_seen(template(uid="old", selector=V1), 0.0)
    known.daemonset_seen(template(uid="new", selector=V2), 0.0)
    there = known.nodes["n1"]
    assert there.warmth() is Warmth.READY
    known.node_seen(node("n1", "A", version=2, labels=dict(V2)), 1.0)
    assert there.warmth() is Warmth.CLAIMED and not there.atelet_bound, "the old one ends soon"
    known.atelet_seen(atelet("n1", daemonset="new", uid="second", ready=False, bound=False), 2.0)
    assert there.unready_since == 2.0
    known.atelet_gone("atelet-n1", 3.0)
    known.atelet_seen(atelet("n1", daemonset="new", uid="second"), 4.0)
    assert there.warmth() is Warmth.READY
    known.daemonset_gone("new", 5.0)
    assert there.warmth() is Warmth.CLAIMED, "its DaemonSet is gone, and it will be"


def test_a_daemonset_whose_template_changes_changes_what_is_refused() -> None:
    known = ledger(node("n1", cpu=1500))
    wanted = case(known, atelet_template=template(cpu=500))
    assert no_room(wanted, known.nodes["n1"]) == ""
    before = known.generation
    known.daemonset_seen(template(cpu=500), 1.0)
    assert known.generation == before, "its status alone has changed"
    known.daemonset_seen(template(cpu=501), 2.0)
    assert known.generation > before, "or an old refusal would be given again"
    assert no_room(wanted, known.nodes["n1"]) == NO_ROOM


def test_a_daemonset_that_is_being_deleted_makes_no_pods() -> None:
    there = daemonset()
    there.spec.template.metadata = Metadata(labels={"app": "atelet", "ate.dev/substrate-version": "v2"})
    assert live_atelet_template(there, parse("app=atelet")) == atelet_template(there)
    assert live_atelet_template(there, parse("app=other")) is None
    there.metadata.deletion_timestamp = "2026-11-18T00:00:00Z"
    assert live_atelet_template(there, parse("app=atelet")) is None
