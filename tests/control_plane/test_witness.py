"""The witness can fail: it sees a binding that came before its claim, and lets a proper one pass."""

from collections.abc import Callable

from ateplace import names
from local import ControlPlane
from local.witness import Witness

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
