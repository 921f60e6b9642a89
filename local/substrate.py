"""Stand-ins for Agent Substrate: its WorkerPool resource, its node agent's DaemonSet and its controller.

Our own writing, after what upstream's main branch does; only what ateplace can notice is here.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from local.api import Object
from local.plane import ControlPlane

MANIFESTS = Path(__file__).parent / "manifests"
POOLS = "/apis/ate.dev/v1alpha1/namespaces/{}/workerpools"


def install(plane: ControlPlane, *, gated: bool = True, controller: bool = True) -> None:
    """Install the CRD and atelet (`gated`: with our nodeSelector; else on every node) and start the controller."""
    plane.define(MANIFESTS / "workerpool-crd.yaml")
    plane.apply(MANIFESTS / "atelet.yaml")
    if not gated:
        ungate = {"spec": {"template": {"spec": {"nodeSelector": None}}}}
        plane.api.patch("/apis/apps/v1/namespaces/ate-system/daemonsets/atelet", ungate)
    if controller:
        start_controller(plane)


def start_controller(plane: ControlPlane) -> None:
    """Run the stand-in controller as a process of the plane."""
    plane.run("ate-controller", [sys.executable, "-m", "local.controller", str(plane.kubeconfig)])


def pool(
    plane: ControlPlane,
    namespace: str,
    name: str,
    replicas: int = 0,
    *,
    annotations: Mapping[str, str] | None = None,
    sandbox_class: str = "gvisor",
    **template: Any,
) -> Object:
    """Create a WorkerPool; keywords beyond these go into `spec.template` (nodeSelector, tolerations, resources, …)."""
    spec: Object = {
        "replicas": replicas,
        "ateomImage": "registry.example/ateom:1",
        "sandboxClass": sandbox_class,
    }
    if template:
        spec["template"] = template
    body = {
        "apiVersion": "ate.dev/v1alpha1",
        "kind": "WorkerPool",
        "metadata": {"name": name, "namespace": namespace, "annotations": dict(annotations or {})},
        "spec": spec,
    }
    return plane.api.post(POOLS.format(namespace), body)


def scale(plane: ControlPlane, namespace: str, name: str, replicas: int) -> None:
    """Set `spec.replicas` of a WorkerPool."""
    plane.api.patch(f"{POOLS.format(namespace)}/{name}", {"spec": {"replicas": replicas}})


def delete(plane: ControlPlane, namespace: str, name: str, propagation: str = "Background") -> None:
    """Delete a WorkerPool as `kubectl delete --cascade=…` does."""
    plane.api.delete(f"{POOLS.format(namespace)}/{name}", {"propagationPolicy": propagation})


def deployment(pool: Object) -> Object:
    """The Deployment that upstream's controller applies for a WorkerPool (pure)."""
    meta, spec = pool["metadata"], pool["spec"]
    template = spec.get("template") or {}
    microvm = spec.get("sandboxClass") == "microvm"
    selector = dict(template.get("nodeSelector") or {})
    tolerations = list(template.get("tolerations") or [])
    volumes = [{"name": "run-ateom", "hostPath": {"path": "/var/lib/ateom-gvisor", "type": "DirectoryOrCreate"}}]
    mounts = [{"name": "run-ateom", "mountPath": "/run/ateom"}]
    if microvm:
        selector["ate.dev/sandboxClass"] = "microvm"
        taint = {
            "key": "ate.dev/sandboxClass",
            "operator": "Equal",
            "value": "microvm",
            "effect": "NoSchedule",
        }
        tolerations.append(taint)
        volumes.append({"name": "kvm", "hostPath": {"path": "/dev/kvm", "type": "CharDevice"}})
        mounts.append({"name": "kvm", "mountPath": "/dev/kvm"})
    affinity = {"nodeAffinity": template["nodeAffinity"]} if template.get("nodeAffinity") else {}
    container = {
        "name": "ateom",
        "image": spec["ateomImage"],
        "args": ["--pod-uid=$(POD_UID)"],
        "env": [{"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "securityContext": {"privileged": True, "runAsUser": 0, "runAsGroup": 0},
        "volumeMounts": mounts,
        **({"resources": template["resources"]} if template.get("resources") else {}),
    }
    labels = {"ate.dev/worker-pool": meta["name"]}
    owner = {
        "apiVersion": "ate.dev/v1alpha1",
        "kind": "WorkerPool",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": f"{meta['name']}-deployment",
            "namespace": meta["namespace"],
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {
            "replicas": spec["replicas"],
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "priorityClassName": template.get("priorityClassName", ""),
                    "nodeSelector": selector,
                    "tolerations": tolerations,
                    "affinity": affinity,
                    "securityContext": {"runAsUser": 0},
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    }
