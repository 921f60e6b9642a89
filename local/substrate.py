"""Stand-ins for Agent Substrate: its WorkerPool resource, its node agent's DaemonSets and its controller.

Our own writing, after what upstream does; only what ateplace can notice is here. Upstream changed its shape in 2026,
and both are in use: `OLD` is what it was in June, `NEW` what it is since autumn.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from ateplace.local.api import Object
from ateplace.local.plane import ControlPlane

MANIFESTS: Final = Path(__file__).parent / "manifests"
POOLS: Final = "/apis/ate.dev/v1alpha1/namespaces/{}/workerpools"
DAEMONSETS: Final = "/apis/apps/v1/namespaces/ate-system/daemonsets"
VERSION_LABEL: Final = "ate.dev/substrate-version"
KVM: Final = "ate.dev/kvm"
KVM_LABEL: Final = "local.ateplace/kvm"
"""On a Node that has /dev/kvm: how many units of `ate.dev/kvm` atelet serves there."""
VERSION: Final = "v1"


@dataclass(frozen=True)
class Shape:
    name: str
    atelet: str
    """Its DaemonSet's name."""
    deployment: str
    """The name of a pool's Deployment, with the pool's."""

    def spec(self, sandbox_class: str, image: str) -> Object:
        """Of a WorkerPool."""
        if self is OLD:
            return {"ateomImage": image, "sandboxClass": sandbox_class}
        return {"workerImage": image, "sandboxClasses": [{"name": sandbox_class}]}


OLD: Final = Shape("old", "atelet", "{}-deployment")
NEW: Final = Shape("new", f"atelet-{VERSION}", "{}")
SHAPES: Final = {shape.name: shape for shape in (OLD, NEW)}

_shapes: WeakKeyDictionary[ControlPlane, Shape] = WeakKeyDictionary()


def use(plane: ControlPlane, shape: Shape) -> None:
    """What `install` installs on this plane; without this it is `NEW`."""
    _shapes[plane] = shape


def shape(plane: ControlPlane) -> Shape:
    return _shapes.get(plane, NEW)


def daemonset(plane: ControlPlane) -> str:
    """The path of the atelet DaemonSet that `install` makes."""
    return f"{DAEMONSETS}/{shape(plane).atelet}"


def deployment_path(plane: ControlPlane, namespace: str, pool: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/deployments/{shape(plane).deployment.format(pool)}"


def install(plane: ControlPlane, *, gated: bool = True, controller: bool = True) -> None:
    """Install the CRD and atelet (`gated`: with our nodeSelector; else on every node) and start the controller."""
    new = shape(plane) is NEW
    plane.define(MANIFESTS / shape(plane).name / "workerpool-crd.yaml")
    if new:
        label_nodes(plane)
    plane.apply(atelet(plane) if gated else ungated(atelet(plane)))
    if controller:
        start_controller(plane)


def label_nodes(plane: ControlPlane, version: str = VERSION) -> None:
    """As the installer does: every node that has no version gets this one. So do those that come later."""
    plane.node_labels.setdefault(VERSION_LABEL, version)
    for node in plane.api.list("/api/v1/nodes"):
        if VERSION_LABEL not in node["metadata"].get("labels", {}):
            set_version(plane, node["metadata"]["name"], version)


def set_version(plane: ControlPlane, node: str, version: str) -> None:
    """What the operator does in an upgrade, node by node."""
    plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {VERSION_LABEL: version}}})


def atelet(plane: ControlPlane, version: str = VERSION) -> str:
    """Atelet's manifest, gated."""
    return (MANIFESTS / shape(plane).name / "atelet.yaml").read_text("utf-8").replace("VERSION", version)


def ungated(manifest: str) -> str:
    return "".join(line for line in manifest.splitlines(keepends=True) if "ate.dev/atelet:" not in line)


def start_controller(plane: ControlPlane) -> None:
    """Run the stand-in controller as a process of the plane."""
    plane.run("ate-controller", [sys.executable, "-m", "ateplace.local.controller", str(plane.kubeconfig)])


def pool(
    plane: ControlPlane,
    namespace: str,
    name: str,
    replicas: int = 0,
    *,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    sandbox_class: str = "gvisor",
    image: str = "registry.example/ateom:1",
    **template: Any,
) -> Object:
    """Create a WorkerPool; keywords beyond these go into `spec.template` (nodeSelector, tolerations, resources, …)."""
    spec: Object = {"replicas": replicas, **shape(plane).spec(sandbox_class, image)}
    if template:
        spec["template"] = template
    meta = {"name": name, "namespace": namespace, "annotations": dict(annotations or {}), "labels": dict(labels or {})}
    body = {"apiVersion": "ate.dev/v1alpha1", "kind": "WorkerPool", "metadata": meta, "spec": spec}
    return plane.api.post(POOLS.format(namespace), body)


def set_image(plane: ControlPlane, namespace: str, name: str, image: str, template: Object | None = None) -> None:
    """A new image for a WorkerPool's ateoms, and what else is to change in its template."""
    field = "ateomImage" if shape(plane) is OLD else "workerImage"
    spec = {field: image, **({"template": template} if template else {})}
    plane.api.patch(f"{POOLS.format(namespace)}/{name}", {"spec": spec})


def scale(plane: ControlPlane, namespace: str, name: str, replicas: int) -> None:
    """Set `spec.replicas` of a WorkerPool."""
    plane.api.patch(f"{POOLS.format(namespace)}/{name}", {"spec": {"replicas": replicas}})


def delete(plane: ControlPlane, namespace: str, name: str, propagation: str = "Background") -> None:
    """Delete a WorkerPool as `kubectl delete --cascade=…` does."""
    plane.api.delete(f"{POOLS.format(namespace)}/{name}", {"propagationPolicy": propagation})


def deployment(pool: Object) -> Object:
    """The Deployment that upstream's controller applies for a WorkerPool (pure)."""
    return _new_deployment(pool) if "workerImage" in pool["spec"] else _old_deployment(pool)


MICROVM: Final = {"key": "ate.dev/sandboxClass", "operator": "Equal", "value": "microvm", "effect": "NoSchedule"}
POD_UID: Final = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}


def _old_deployment(pool: Object) -> Object:
    spec = pool["spec"]
    template = spec.get("template") or {}
    selector = dict(template.get("nodeSelector") or {})
    tolerations = list(template.get("tolerations") or [])
    volumes = [{"name": "run-ateom", "hostPath": {"path": "/var/lib/ateom-gvisor", "type": "DirectoryOrCreate"}}]
    mounts = [{"name": "run-ateom", "mountPath": "/run/ateom"}]
    if spec.get("sandboxClass") == "microvm":
        selector["ate.dev/sandboxClass"] = "microvm"
        tolerations.append(MICROVM)
        volumes.append({"name": "kvm", "hostPath": {"path": "/dev/kvm", "type": "CharDevice"}})
        mounts.append({"name": "kvm", "mountPath": "/dev/kvm"})
    container = {
        "name": "ateom",
        "image": spec["ateomImage"],
        "args": ["--pod-uid=$(POD_UID)"],
        "env": [POD_UID],
        "securityContext": {"privileged": True, "runAsUser": 0, "runAsGroup": 0},
        "volumeMounts": mounts,
        **({"resources": template["resources"]} if template.get("resources") else {}),
    }
    pod = {
        "nodeSelector": selector,
        "tolerations": tolerations,
        "securityContext": {"runAsUser": 0},
        "containers": [container],
        "volumes": volumes,
    }
    return _deployment(pool, OLD.deployment, pod, {}, {})


def _new_deployment(pool: Object) -> Object:
    spec = pool["spec"]
    template = spec.get("template") or {}
    tolerations = list(template.get("tolerations") or [])
    volumes = [{"name": "ate", "hostPath": {"path": "/var/lib/ate", "type": "DirectoryOrCreate"}}]
    mounts = [{"name": "ate", "mountPath": "/var/lib/ate"}]
    resources = dict(template.get("resources") or {})
    if spec["sandboxClasses"][0]["name"] == "microvm":
        tolerations.append(MICROVM)
        resources["limits"] = {**resources.get("limits", {}), KVM: "1"}
        volumes.append({"name": "tun", "hostPath": {"path": "/dev/net/tun", "type": "CharDevice"}})
        mounts.append({"name": "tun", "mountPath": "/dev/net/tun"})
    container = {
        "name": "ateom",
        "image": spec["workerImage"],
        "args": ["--pod-uid=$(POD_UID)"],
        "env": [POD_UID],
        "ports": [{"name": "health", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8080}},
        "securityContext": {
            "capabilities": {"add": ["SYS_ADMIN", "NET_ADMIN"]},
            "seccompProfile": {"type": "Unconfined"},
            "appArmorProfile": {"type": "Unconfined"},
            **(template.get("securityContext") or {}),
        },
        "volumeMounts": mounts,
        **({"resources": resources} if resources else {}),
    }
    pod = {
        "nodeSelector": dict(template.get("nodeSelector") or {}),
        "tolerations": tolerations,
        "terminationGracePeriodSeconds": 3600,
        **({"serviceAccountName": template["serviceAccountName"]} if template.get("serviceAccountName") else {}),
        "containers": [container],
        "volumes": volumes,
    }
    return _deployment(pool, NEW.deployment, pod, template.get("labels") or {}, template.get("annotations") or {})


def _deployment(pool: Object, name: str, pod: Object, more: Object, annotations: Object) -> Object:
    meta, spec = pool["metadata"], pool["spec"]
    template = spec.get("template") or {}
    labels = {"ate.dev/worker-pool": meta["name"]}
    owner = {
        "apiVersion": "ate.dev/v1alpha1",
        "kind": "WorkerPool",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    pod["priorityClassName"] = template.get("priorityClassName", "")
    pod["affinity"] = {"nodeAffinity": template["nodeAffinity"]} if template.get("nodeAffinity") else {}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name.format(meta["name"]),
            "namespace": meta["namespace"],
            "labels": {**more, **labels},
            "annotations": annotations,
            "ownerReferences": [owner],
        },
        "spec": {
            "replicas": spec["replicas"],
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": {**more, **labels}, "annotations": annotations}, "spec": pod},
        },
    }
