"""Pods that an API server may or may not accept."""

import random

from ateplace import names
from ateplace.local.api import Object


def random_pod(chance: random.Random) -> Object:
    """Something that may or may not be a valid pod."""

    def name() -> str:
        return chance.choice(["a", "b", "c", "wait-for-atelet", "x" * 63, "Bad_Name", "side-car"])

    def container() -> Object:
        found: Object = {"name": name(), "image": chance.choice(["i:1", "i@sha256:" + "0" * 64, "busybox"])}
        if chance.random() < 0.3:
            found["resources"] = {"requests": {"cpu": chance.choice(["1", "10m", "0", "x"]), "memory": "1Gi"}}
        if chance.random() < 0.2:
            found["securityContext"] = {
                "runAsUser": chance.choice([0, 1000]),
                "runAsNonRoot": chance.choice([True, False]),
            }
        if chance.random() < 0.2:
            found["restartPolicy"] = "Always"
        if chance.random() < 0.2:
            found["env"] = [{"name": "X", "value": "$(Y) ~ / é"}]
        return found

    labels = {names.POOL_LABEL: "pool"}
    for key in ("a/b", "app.kubernetes.io/name", "a~b", names.POOL_UID_LABEL):
        if chance.random() < 0.2:
            labels[key] = chance.choice(["", "v", "x" * 64, "with space"])
    spec: Object = {"containers": [container() | {"restartPolicy": None} for _ in range(chance.randint(1, 3))]}
    if chance.random() < 0.6:
        spec["initContainers"] = [container() for _ in range(chance.randint(0, 3))]
    for key, choices in (
        ("schedulerName", ["", "default-scheduler", "batch"]),
        ("priorityClassName", ["", "system-node-critical", names.ATEOM_PRIORITY_CLASS, "absent"]),
        ("priority", [0, 1000, 2000001000]),
        ("preemptionPolicy", ["Never", "PreemptLowerPriority"]),
        ("nodeName", ["n1"]),
        ("hostNetwork", [True]),
        ("restartPolicy", ["Always", "Never", "OnFailure"]),
        ("terminationGracePeriodSeconds", [0, 30, -1]),
        ("serviceAccountName", ["default", "absent"]),
        ("automountServiceAccountToken", [False, True]),
        ("securityContext", [{"runAsUser": 0}, {"runAsNonRoot": True}, {"fsGroup": 5}]),
        ("os", [{"name": "linux"}]),
        ("resources", [{"requests": {"cpu": "2"}}]),
        ("schedulingGates", [[{"name": "test/gate"}]]),
    ):
        if chance.random() < 0.2:
            spec[key] = chance.choice(choices)
    metadata: Object = {"generateName": "random-", "labels": labels}
    if chance.random() < 0.3:
        metadata["annotations"] = {"x/y": "~1", "z": ""}
    return {"metadata": metadata, "spec": spec}
