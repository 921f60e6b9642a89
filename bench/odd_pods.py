"""Odd pods that an API server accepts: what a tenant can write that no other client would."""

import random
from typing import Any, Final

from ateplace import names
from ateplace.kube.objects import MIRROR_ANNOTATION
from ateplace.local.api import Object

POOL: Final = "theirs"
AMOUNTS: Final = ("0", "1", "1n", "1500m", "0.5", "1e3", "12345678901234", "1Ei", "9223372036854775807")
NAMES: Final = ("x", "x.y", "0", "x" * 200, "a.b-c.0.x")
YEARS: Final = ("0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")


class OddPods:
    """Makes them, the same ones for the same seed. None of them is ever run: their scheduler does not exist, they have
    gates, or their node is one that nothing else uses."""

    def __init__(self, seed: int, node: str) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - reproducible
        self._node = node
        self._made = 0

    def pod(self) -> Object:
        chance = self._chance
        self._made += 1
        name = f"{chance.choice(NAMES)}-{self._made}"
        meta: Object = {"name": name, "labels": self._labels(), "annotations": self._annotations()}
        if chance.random() < 0.2:
            owner = {
                "apiVersion": "example.com/v1",
                "kind": "ReplicaSet",
                "name": "../../pods?watch=true#",
                "uid": name,
            }
            meta["ownerReferences"] = [owner]
        spec: Object = {
            "schedulerName": "nobody",
            "containers": [self._container(f"c{each}") for each in range(chance.choice((1, 1, 2, 30)))],
            "tolerations": [{"key": f"k{each}", "operator": "Exists"} for each in range(chance.choice((0, 0, 50)))],
        }
        if MIRROR_ANNOTATION in meta["annotations"]:
            spec["nodeName"] = self._node
        elif chance.random() < 0.2:
            spec["schedulingGates"] = [{"name": f"example.com/g{each}"} for each in range(3)]
            spec["schedulerName"] = names.SCHEDULER
        elif chance.random() < 0.05:
            spec["nodeName"] = "there-is-no-such-node"
        return {"metadata": meta, "spec": spec}

    def status(self) -> Object:
        """What a kubelet may say about one."""
        ended = {"startedAt": self._chance.choice(YEARS), "finishedAt": self._chance.choice(YEARS), "exitCode": 0}
        one = {"name": names.INIT_CONTAINER, "image": "", "imageID": "", "ready": True, "restartCount": 2**31 - 1}
        return {"status": {"initContainerStatuses": [{**one, "state": {"terminated": ended}}]}}

    def _labels(self) -> dict[str, str]:
        chance = self._chance
        labels = {f"example.com/l{each}": "x" * 63 for each in range(chance.choice((0, 0, 1, 40)))}
        if chance.random() < 0.5:
            labels[names.PLACEHOLDER_LABEL] = chance.choice((POOL, "", "x" * 63, "X.y_z"))
        else:
            labels[names.POOL_LABEL] = POOL
        if chance.random() < 0.3:
            labels[names.POOL_UID_LABEL] = chance.choice(("", "x" * 63, "0", "no-uid"))
        return labels

    def _annotations(self) -> dict[str, str]:
        chance = self._chance
        found = {names.claim_key("x" * 30): "never", names.HEADROOM_ANNOTATION: "9" * 1000}
        found = {key: value for key, value in found.items() if chance.random() < 0.2}
        return found | ({MIRROR_ANNOTATION: "1"} if chance.random() < 0.1 else {})

    def _container(self, name: str) -> Object:
        chance = self._chance
        asked: dict[str, Any] = {f"p{each}.example.com/r": "1" for each in range(chance.choice((0, 0, 1, 60)))}
        for resource in ("cpu", "memory", "ephemeral-storage"):
            if chance.random() < 0.5:
                asked[resource] = chance.choice(AMOUNTS)
        return {"name": name, "image": "registry.example/c:1", "resources": {"limits": asked}}
