"""Objects as the API server would send them, decoded as we decode them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ateplace import names
from ateplace.kube.objects import DaemonSet, Node, Pod, WorkerPool


def pool(name: str = "web", uid: str = "u1", replicas: int = 1, *, deleting: bool = False) -> WorkerPool:
    meta: dict[str, Any] = {"name": name, "namespace": "demo", "uid": uid}
    if deleting:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return msgspec.convert({"metadata": meta, "spec": {"replicas": replicas}}, WorkerPool)


def node(name: str, *claims: str, labelled: bool | None = None, **spec: Any) -> Node:
    """`claims`: pool UIDs; the label is there with them unless `labelled` says otherwise."""
    here = bool(claims) if labelled is None else labelled
    labels = {names.NODE_LABEL: "true"} if here else {}
    annotations = {names.claim_key(uid): "2026-01-01T00:00:00Z" for uid in claims}
    meta = {
        "name": name,
        "uid": f"uid-{name}",
        "labels": {**labels, **spec.pop("labels", {})},
        "annotations": annotations,
    }
    return msgspec.convert({"metadata": meta, "spec": spec}, Node)


def pod(
    name: str,
    on: str = "",
    *,
    of: str = "web",
    uid: str = "u1",
    placeholder: bool = False,
    ready: bool = True,
    phase: str = "Running",
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Pod:
    """An ateom, or a placeholder, of a pool."""
    labels = {names.PLACEHOLDER_LABEL if placeholder else names.POOL_LABEL: of}
    if uid:
        labels[names.POOL_UID_LABEL] = uid
    injected = {"initContainers": [{"name": names.INIT_CONTAINER}], "schedulerName": names.SCHEDULER}
    conditions = [{"type": "Ready", "status": str(ready and bool(on))}]
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "demo", "uid": f"uid-{name}", "labels": labels},
            "spec": {"nodeName": on, "containers": [{"name": "ateom"}], **injected, **spec},
            "status": {"phase": phase, "conditions": conditions, **(status or {})},
        },
        Pod,
    )


def atelet(on: str, *, ready: bool = True, bound: bool = True, trouble: str = "") -> Pod:
    """One of the DaemonSet's pods, made for a node."""
    field = {"key": "metadata.name", "operator": "In", "values": [on]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    conditions = [{"type": "Ready", "status": str(ready and bound)}]
    if not bound:
        conditions.append({"type": "PodScheduled", "status": "False", "reason": trouble or "Unschedulable"})
    waiting = [{"name": "atelet", "state": {"waiting": {"reason": trouble}}}] if trouble and bound else []
    return msgspec.convert(
        {
            "metadata": {"name": f"atelet-{on}", "namespace": "ate-system", "uid": f"a-{on}"},
            "spec": {
                "nodeName": on if bound else "",
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            },
            "status": {
                "phase": "Running" if bound else "Pending",
                "conditions": conditions,
                "containerStatuses": waiting,
            },
        },
        Pod,
    )


def daemonset(*, name: str = "atelet", gated: bool = True, desired: int = 0, **spec: Any) -> DaemonSet:
    selector = {names.NODE_LABEL: "true"} if gated else {}
    template = {"spec": {"nodeSelector": selector, "priorityClassName": "system-node-critical", **spec}}
    meta = {"name": name, "namespace": "ate-system", "uid": f"{name}-uid"}
    status = {"desiredNumberScheduled": desired}
    return msgspec.convert({"metadata": meta, "spec": {"template": template}, "status": status}, DaemonSet)
