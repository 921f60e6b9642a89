"""Resources that atelet itself serves: which nodes are answered, claimed or given up."""

import json

import pytest
from msgspec import structs

from ateplace import names
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import NodeRecord
from ateplace.cluster.resources import Shape
from ateplace.extender.context import Case
from ateplace.extender.filter.ahead import unserved
from ateplace.extender.filter.choose import choose, refusals
from ateplace.extender.fit import passes
from ateplace.extender.protocol import Names
from ateplace.extender.served import INSTANCE_TYPE, SANDBOX_CLASS, SHARED, wanted
from ateplace.kube.objects import Toleration
from ateplace.label_selectors import parse
from tests.unit.cluster import atelet, case, ledger, node, pod, pool, template

UNIT = Shape((("ate.dev/kvm", 1), ("cpu", 1000)), (("ate.dev/kvm", 1), ("cpu", 1000)))
MICROVM = (SANDBOX_CLASS, "microvm", "NoSchedule")


def with_units(record: NodeRecord, units: int) -> NodeRecord:
    return structs.replace(record, allocatable=(("ate.dev/kvm", units), *record.allocatable))


def microvm(known: Ledger, *, nodes: str = "", now: float = 0.0) -> Case:
    tolerant = template(tolerations=(Toleration(key=SANDBOX_CLASS, operator="Exists"),))
    made = case(known, shape=UNIT, now=now, atelet_template=tolerant)
    asked = wanted(UNIT.requests, frozenset({names.KVM}), parse(nodes) if nodes else None, 60.0, known.nodes.values())
    return structs.replace(made, served=asked)


def decided(known: Ledger, *sent: str, nodes: str = "", now: float = 0.0) -> tuple[str, list[str], dict[str, str]]:
    """The node that is answered, those that are claimed instead, and why the rest is refused."""
    made, among = microvm(known, nodes=nodes, now=now), names_of(*sent)
    choice = choose(made, among)
    if choice:
        return choice.node.name, [], {}
    return "", [one.name for one in unserved(made, among)], refusals(made, sent)


def names_of(*sent: str) -> Names:
    return Names(json.dumps(list(sent)).encode())


def test_a_cold_node_that_may_have_it_is_claimed_and_refused_and_answered_once_it_advertises_a_free_unit() -> None:
    known = ledger(pool("A"), pod("new", shape=UNIT), node("a", taints=(MICROVM,)))
    assert decided(known, "a") == ("", ["a"], {"a": "serves no ate.dev/kvm yet"})
    known.node_seen(node("a", "A", version=2, taints=(MICROVM,)), 1.0)
    known.atelet_seen(atelet("a"), 2.0)
    assert decided(known, "a", now=3.0)[2] == {"a": "claimed, and waits for atelet to serve ate.dev/kvm"}
    known.node_seen(with_units(node("a", "A", version=3, taints=(MICROVM,)), 1), 4.0)
    assert decided(known, "a", now=5.0)[0] == "a"
    known.pod_seen(pod("first", on="a", shape=UNIT), 6.0)
    assert decided(known, "a", now=7.0) == ("", [], {"a": "no ate.dev/kvm is free"})


def test_a_node_whose_atelet_serves_none_is_given_up_and_remembered() -> None:
    known = ledger(pool("A"), node("a", taints=(MICROVM,)))
    known.claims.sending("a", "A", "then")
    known.node_seen(node("a", "A", version=2, taints=(MICROVM,)), 0.0)
    known.atelet_seen(atelet("a"), 0.0)
    assert decided(known, "a") == ("", ["a"], {"a": "claimed, and waits for atelet to serve ate.dev/kvm"})
    assert decided(known, "a", now=59.0)[1] == ["a"]
    reason = "atelet was Ready there, and served no ate.dev/kvm"
    given_up: tuple[str, list[str], dict[str, str]] = ("", [], {"a": reason})
    assert decided(known, "a", now=61.0) == given_up
    known.atelet_gone("atelet-a", 70.0)
    known.node_seen(node("a", version=3, taints=(MICROVM,)), 71.0)
    assert decided(known, "a", now=72.0) == given_up, "or it would be claimed again and again"
    known.node_gone("a", 80.0)
    known.node_seen(node("a", uid="other", version=4, taints=(MICROVM,)), 81.0)
    assert decided(known, "a", now=82.0)[1] == ["a"], "another machine"


@pytest.mark.parametrize(
    ("there", "selector", "claimed"),
    [
        pytest.param(node("a"), "", False, id="nothing says so"),
        pytest.param(node("a", labels={SANDBOX_CLASS: "microvm"}), "", True, id="label"),
        pytest.param(node("a", taints=(MICROVM,)), "", True, id="taint"),
        pytest.param(node("a", labels={INSTANCE_TYPE: "metal"}), "", True, id="an instance type that has it"),
        pytest.param(node("a", labels={INSTANCE_TYPE: "small"}), "", False, id="another instance type"),
        pytest.param(node("a", labels={"kvm": "yes"}), "kvm=yes", True, id="the setting"),
        pytest.param(node("a", taints=(MICROVM,)), "kvm=yes", False, id="the setting alone counts"),
    ],
)
def test_which_nodes_may_have_it(there: NodeRecord, selector: str, claimed: bool) -> None:
    full = with_units(node("full", "A", labels={INSTANCE_TYPE: "metal"}), 1)
    known = ledger(pool("A"), there, full, atelet("full"), pod("first", on="full", shape=UNIT))
    answered, opened, why = decided(known, "a", "full", nodes=selector)
    assert (answered, opened) == ("", ["a"] if claimed else [])
    assert why["a"] == ("serves no ate.dev/kvm yet" if claimed else "nothing says that it has ate.dev/kvm")


def test_as_many_are_claimed_as_the_pods_need_by_the_units_that_others_have() -> None:
    waiting = [pod(f"p{number}", shape=UNIT) for number in range(5)]
    cold = [node(name, taints=(MICROVM,)) for name in "abcd"]
    known = ledger(pool("A"), *waiting, *cold)
    assert decided(known, *"abcd")[1] == ["a"], "by what else they take: nothing is known of units"
    full = with_units(node("full", "A"), 2)
    known.node_seen(full, 1.0)
    known.atelet_seen(atelet("full"), 1.0)
    for number in range(2):
        known.pod_seen(pod(f"there{number}", on="full", shape=UNIT), 1.0)
    assert decided(known, "full", *"abcd")[1] == ["a", "b", "c"], "five pods at two a node"


def test_a_unit_that_another_replica_may_have_given_away_is_not_given_again() -> None:
    """Two units and one ateom there; the other replica may have sent it the second pod that waits."""
    waiting = [pod(name, shape=UNIT) for name in ("new", "second")]
    known = ledger(pool("A"), *waiting, with_units(node("a"), 3), pod("first", on="a", shape=UNIT))
    assert decided(known, "a")[0] == "a", "nobody has claimed it"
    known.node_seen(with_units(node("a", "A", version=2), 3), 10.0)
    assert decided(known, "a", now=11.0)[0] == "a", "there is one for each"
    known.node_seen(with_units(node("a", "A", version=3), 2), 12.0)
    assert decided(known, "a", now=13.0) == ("", [], {"a": SHARED})
    assert passes(microvm(known), "a", SHARED), "so it is an error, and no reason to preempt"
    assert decided(known, "a", now=131.0)[0] == "a", "what it answered is bound by now"
    known.picks.assume("second", "A", "a", UNIT, now=131.0)
    assert decided(known, "a", now=132.0)[2] == {"a": "no ate.dev/kvm is free"}


def test_a_node_that_another_replica_waits_for_is_left_to_it() -> None:
    known = ledger(pool("A"), pod("new", shape=UNIT), node("a", "A", taints=(MICROVM,)))
    assert decided(known, "a", now=1.0)[1] == []
    assert decided(known, "a", now=121.0)[1] == ["a"], "it does so no longer"


def test_a_pod_that_asks_for_nothing_of_the_kind_goes_anywhere() -> None:
    known = ledger(pool("A"), node("a"))
    assert wanted((("cpu", 1),), frozenset({names.KVM}), None, 60.0, known.nodes.values()) is None
    choice = choose(case(known), names_of("a"))
    assert choice is not None and choice.node.name == "a"
