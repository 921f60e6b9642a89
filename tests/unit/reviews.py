"""Builders for admission reviews, and what an answer does to a pod."""

import base64
import copy
import json
from typing import Any

import jsonpatch

from ateplace import names
from ateplace.settings import Substrate, Webhook
from ateplace.webhook import mutate

POOL_UID = "0b0ebb4c-6ff4-4a52-a9e1-a3b1f1b2c3d4"
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


def rules(**webhook: Any) -> mutate.Rules:
    return mutate.rules(Webhook(**webhook), Substrate())


def pod(
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    init: list[dict[str, Any]] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """An ateom pod of the pool `pool`, as the API server shows it to webhooks."""
    metadata: dict[str, Any] = {"generateName": "pool-deployment-7d9c-", "namespace": "agents"}
    metadata["labels"] = {"app": "ateom", names.POOL_LABEL: "pool"} if labels is None else labels
    if annotations is not None:
        metadata["annotations"] = annotations
    body: dict[str, Any] = {
        "containers": [{"name": "ateom", "image": "ateom:1", "resources": {}}],
        "schedulerName": "default-scheduler",
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "restartPolicy": "Always",
    }
    if init is not None:
        body["initContainers"] = init
    body.update(spec)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body, "status": {}}


def review(obj: Any, **request: Any) -> dict[str, Any]:
    """A review of the creation of `obj`; keywords replace fields of the request."""
    asked: dict[str, Any] = {
        "uid": UID,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": "agents",
        "operation": "CREATE",
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "object": obj,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    asked.update(request)
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": asked}


def patch(answer: Any) -> list[dict[str, Any]]:
    """The operations in an answer, whose form is checked on the way."""
    response = answer["response"]
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    assert answer["kind"] == "AdmissionReview"
    assert response["uid"] == UID
    assert ("patch" in response) == ("patchType" in response)
    assert all(len(warning) <= 120 for warning in response.get("warnings", []))
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    assert response["allowed"] is True
    found: list[dict[str, Any]] = json.loads(base64.b64decode(response["patch"], validate=True))
    assert found
    return found


def applied(obj: dict[str, Any], answer: Any) -> dict[str, Any]:
    """The object after the answer's patch."""
    result: dict[str, Any] = jsonpatch.JsonPatch(patch(answer)).apply(copy.deepcopy(obj))
    return result


class FixedPools:
    """Pools that a test names; `later` are known only when asked for directly."""

    def __init__(self, known: dict[str, str] | None = None, later: dict[str, str] | None = None) -> None:
        self.pools = {"agents/pool": POOL_UID} if known is None else known
        self.later = later or {}

    def known(self, namespace: str, name: str) -> str | None:
        return self.pools.get(f"{namespace}/{name}")

    async def find(self, namespace: str, name: str, client: str = "") -> str | None:
        return self.later.get(f"{namespace}/{name}")
