"""`python -m local.controller KUBECONFIG`: the stand-in for Agent Substrate's controller.

Turns every WorkerPool into its Deployment by server-side apply, and copies the ready replicas into its status. As
upstream, it does nothing on a WorkerPool's deletion.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from local.api import Api, ApiError, Object
from local.kubeconfig import connect
from local.substrate import deployment

ALL_POOLS = "/apis/ate.dev/v1alpha1/workerpools"
ALL_DEPLOYMENTS = "/apis/apps/v1/deployments"


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
            api.patch(path, {"status": {"replicas": deployed.get("status", {}).get("replicas", 0)}})


def follow(api: Api, path: str, act: Callable[[Api, Object], None]) -> None:
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
                    if event["type"] != "DELETED" and not _try(api, event["object"], act):
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
    follow(connect(kubeconfig), ALL_POOLS, apply)


if __name__ == "__main__":
    main()
