"""The witness can fail: it sees a binding that came before its claim, and lets a proper one pass."""

from collections.abc import Callable

import pytest

from ateplace import names
from ateplace.errors import LocalError
from ateplace.local import ControlPlane
from ateplace.local.witness import Witness

UID = "11111111-2222-3333-4444-555555555555"


def bind(plane: ControlPlane, namespace: str, pod: str, node: str) -> None:
    labels = {names.POOL_LABEL: "web", names.POOL_UID_LABEL: UID}
    spec = {"schedulerName": "somebody", "containers": [{"name": "c", "image": "registry.example/c:1"}]}
    plane.api.post(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": pod, "labels": labels}, "spec": spec})
    target = {"metadata": {"name": pod}, "target": {"kind": "Node", "name": node}}
    plane.api.post(f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", target)


def test_only_bindings_to_unclaimed_nodes_are_complained_of(
    plane: ControlPlane, namespace: str, nodes: Callable[..., list[str]]
) -> None:
    claimed, unlabelled, bare = nodes(3)
    claim = {"annotations": {names.claim_key(UID): ""}}
    plane.api.patch(f"/api/v1/nodes/{claimed}", {"metadata": claim | {"labels": {names.NODE_LABEL: "true"}}})
    plane.api.patch(f"/api/v1/nodes/{unlabelled}", {"metadata": claim})
    with Witness(plane, scheduler="somebody") as witness:
        for pod, node in (("good", claimed), ("half", unlabelled), ("bad", bare)):
            bind(plane, namespace, pod, node)
        plane.api.patch(f"/api/v1/nodes/{bare}", {"metadata": claim | {"labels": {names.NODE_LABEL: "true"}}})
        complaints = witness.violations()
        assert [complaint.split(" at ")[0] for complaint in complaints] == [
            f"{namespace}/half was bound to {unlabelled}",
            f"{namespace}/bad was bound to {bare}",
        ]
        assert witness.bound == 3
        assert witness.violations() == []


def test_a_gap_in_what_it_saw_is_said_once_and_it_goes_on() -> None:
    with ControlPlane(nodes=1, scheduler=False) as own, Witness(own, scheduler="somebody") as witness:
        own.api.post("/api/v1/namespaces", {"metadata": {"name": "agents"}})
        own.wait(lambda: own.api.exists("/api/v1/namespaces/agents/serviceaccounts/default"))
        assert witness.violations() == []
        own.kill_apiserver()
        own.compact_etcd()
        own.start_apiserver()
        own.wait(lambda: any("/api/v1/pods" in gap for gap in witness.gaps), why="the watch of pods to begin again")
        with pytest.raises(LocalError, match=r"between versions \d+ and \d+ was not seen"):
            witness.violations()
        bind(own, "agents", "bad", "node-0000")
        own.wait(lambda: witness.bound == 1, why="the binding to be seen")
        (complaint,) = own.wait(lambda: complaints(witness), why="a call without a gap in it")
        assert complaint.startswith("agents/bad was bound to node-0000")


def complaints(witness: Witness) -> list[str]:
    try:
        return witness.violations()
    except LocalError as error:  # nodes may begin again a moment later than pods
        raise AssertionError from error
