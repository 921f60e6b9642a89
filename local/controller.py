"""`python -m ateplace.local.controller KUBECONFIG`: the stand-in for Agent Substrate's controller.

Turns every WorkerPool into its Deployment by server-side apply, and copies its replicas into its status. As upstream,
it does nothing on a WorkerPool's deletion.

It also stands in for what atelet and the kubelets do together: a Node with `local.ateplace/kvm: N` advertises N units
of `ate.dev/kvm` while an atelet is Ready there, and none afterwards.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx

from ateplace.local.api import Api, ApiError, Object
from ateplace.local.burst import is_ready
from ateplace.local.kubeconfig import connect
from ateplace.local.substrate import KVM, KVM_LABEL, deployment

ALL_POOLS = "/apis/ate.dev/v1alpha1/workerpools"
ALL_DEPLOYMENTS = "/apis/apps/v1/deployments"
ATELETS = "/api/v1/namespaces/ate-system/pods"


def apply(api: Api, pool: Object) -> None:
    """Make the pool's Deployment what the pool says; a pool on its way out is left alone."""
    if pool["metadata"].get("deletionTimestamp"):
        return
    wanted = deployment(pool)
    meta = wanted["metadata"]
    path = f"/apis/apps/v1/namespaces/{meta['namespace']}/deployments/{meta['name']}"
    api.patch(path, wanted, "apply", fieldManager="ate-controller", force="true")


def report(api: Api, deployed: Object) -> None:
    """Copy a Deployment's replicas into its pool's status."""
    meta = deployed["metadata"]
    for owner in meta.get("ownerReferences", ()):
        if owner["kind"] == "WorkerPool" and owner.get("controller"):
            path = f"/apis/ate.dev/v1alpha1/namespaces/{meta['namespace']}/workerpools/{owner['name']}/status"
            found = deployed.get("status", {})
            selector = f"ate.dev/worker-pool={owner['name']}"
            counts = {"replicas": found.get("replicas", 0), "readyReplicas": found.get("readyReplicas", 0)}
            api.patch(path, {"status": {**counts, "selector": selector}})


def advertise(api: Api, pod: Object) -> None:
    """What a node's kubelet says of `ate.dev/kvm`, after a change of an atelet there."""
    name = pod["spec"].get("nodeName")
    if not name or pod["metadata"].get("labels", {}).get("app") != "atelet":
        return
    node = api.get(f"/api/v1/nodes/{name}")
    units = node["metadata"].get("labels", {}).get(KVM_LABEL, "")
    if not units:
        return
    there = api.list(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", fieldSelector=f"spec.nodeName={name}")
    serving = any(is_ready(one) and "deletionTimestamp" not in one["metadata"] for one in there)
    known = node["status"].get("allocatable", {}).get(KVM)
    if known != (said := units if serving else "0") and (serving or known):
        api.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": {KVM: said}, "allocatable": {KVM: said}}})


def follow(api: Api, path: str, act: Callable[[Api, Object], None], *, deleted: bool = False) -> None:
    """List, then watch, for ever; a restart of the API server is waited out, and what was refused is tried again."""
    while True:
        with contextlib.suppress(httpx.HTTPError, ApiError, KeyError):
            listed = api.get(path)
            done = [_try(api, item, act) for item in listed["items"]]
            if not all(done):
                time.sleep(1)
                continue
            with api.watch(path, resourceVersion=listed["metadata"]["resourceVersion"]) as events:
                for event in events:
                    if event["type"] == "ERROR":
                        break
                    if (event["type"] != "DELETED" or deleted) and not _try(api, event["object"], act):
                        break
        time.sleep(0.2)


def _try(api: Api, item: Object, act: Callable[[Api, Object], None]) -> bool:
    """Whether that is all: what has gone or changed meanwhile has another event, any other refusal has none."""
    try:
        act(api, item)
    except ApiError as error:
        if error.status not in (404, 409):
            sys.stderr.write(f"{item['metadata']['name']}: {error}\n")
            sys.stderr.flush()
            return False
    return True


def main() -> None:
    """Follow pools and their Deployments until we are stopped."""
    kubeconfig = Path(sys.argv[1])
    threading.Thread(target=follow, args=(connect(kubeconfig), ALL_DEPLOYMENTS, report), daemon=True).start()
    devices = partial(follow, connect(kubeconfig), ATELETS, advertise, deleted=True)
    threading.Thread(target=devices, daemon=True).start()
    follow(connect(kubeconfig), ALL_POOLS, apply)


if __name__ == "__main__":
    main()
