"""Random objects of the Kubernetes API, made from its own schemas, and what can be wrong with them.

The client library's models say which fields every kind has, and of which type. Values are drawn so that objects speak
of each other (a few names, nodes and UIDs), with our labels and annotations among them; then some are replaced by
what nobody expects. A seed makes the same object again. Where a million are wanted, they are made of
parts of some thousands (`tests.unit.splicing`).
"""

import copy
import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from kubernetes.client import models

from ateplace import names
from ateplace.kube.objects import MIRROR_ANNOTATION

Json = dict[str, Any]

SCHEMAS: Final = {
    "Pod": "V1Pod",
    "Node": "V1Node",
    "DaemonSet": "V1DaemonSet",
    "LimitRange": "V1LimitRange",
    "WorkerPool": "WorkerPool",
}
POOL: Final = {"metadata": "V1ObjectMeta", "spec": "WorkerPoolSpec", "status": "WorkerPoolStatus"}
OURS: Final[Mapping[str, Mapping[str, str]]] = {
    "WorkerPool": POOL,
    "WorkerPoolSpec": {"replicas": "int", "ateomImage": "str", "template": "WorkerPoolTemplate", "sandboxClass": "str"},
    "WorkerPoolTemplate": {"nodeSelector": "Dict[str, str]", "nodeAffinity": "V1NodeAffinity", "resources": "object"},
    "WorkerPoolStatus": {"replicas": "int"},
}
"""What is no part of the client library."""

POOL_UID: Final = "WorkerPool-ns-web-0"
"""Of the pool ns/web, or of another that takes its place."""
UIDS: Final = (POOL_UID, "WorkerPool-ns-web-1", "WorkerPool-other-api-0", "0" * 36, "x" * 58, "x" * 63, "", "a/b", "ä")
NODES: Final = ("n1", "n2", "n3", "")
NAMES: Final = ("web", "api", "a" * 100, "x.y", "")
ORDINARY: Final = ("1", "100m", "1Gi", "500m", "2")
QUANTITIES: Final = (*ORDINARY * 6, "0", "-1", "1e999", str(2**63 - 1), "1n", "0.5", "", "x", "9" * 300)
TIMES: Final = (
    "2026-01-01T00:00:00Z",
    "0000-01-01T00:00:00Z",
    "10000-01-01T00:00:00Z",
    "2026-01-01T00:00:00.123456Z",
    "2026-01-01T00:00:00",
    "",
)
TEXTS: Final = (
    "",
    "x",
    "Always",
    "Running",
    "Failed",
    "NoSchedule",
    "In",
    "Exists",
    "True",
    "\u0000",
    "\u202e",
    "𝕏" * 50,
)
NUMBERS: Final = (0, 1, -1, 3, 110, 8085, 2**31, 2**63, -(2**63), 2**70)
ODD: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    1e300,
    "",
    "x",
    "9" * 5000,
    [],
    {},
    [None],
    {"": None},
    [[[]]],
    {"a": {"a": {}}},
)
LABELS: Final = (names.POOL_LABEL, names.POOL_UID_LABEL, names.PLACEHOLDER_LABEL, names.NODE_LABEL, "app", "zone")
RESOURCES: Final = ("cpu", "memory", "pods", "ephemeral-storage", "hugepages-2Mi", "example.com/gpu", "")
USUAL: Final = frozenset(
    {
        "metadata",
        "spec",
        "status",
        "containers",
        "name",
        "namespace",
        "uid",
        "labels",
        "resources",
        "requests",
        "template",
    }
)
"""Fields that are mostly there."""
LIST: Final = re.compile(r"List\[(.+)\]")
DEEPEST: Final = 9
MANGLED: Final = 0.5
"""The share of objects with values that no schema allows."""


class Maker:
    """Makes objects; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - reproducible

    def object(self, kind: str, version: int) -> Json:
        """One that an API server could hold, but for values that it would have refused."""
        made: Json = self._struct(SCHEMAS[kind], 0)
        meta = made.get("metadata") or {}
        if kind == "Pod":
            made.setdefault("spec", {})["nodeName"] = self.chance.choice(NODES)
        return {**made, "metadata": meta | self.identity(kind, version)}

    def identity(self, kind: str, version: int) -> dict[str, str]:
        """What tells an object from others: no two kinds share a UID."""
        pick = self.chance.choice
        name = pick(NODES if kind == "Node" else NAMES) or "o"
        namespace = "" if kind == "Node" else pick(("ns", "other"))
        uid = f"{kind}-{namespace}-{name}-{pick((0, 0, 0, 1))}"
        return {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}

    def text(self, kind: str, version: int, **meta: Any) -> bytes:
        """An object as it would come over the wire, every second one mangled; `meta` is what its metadata has."""
        made = self.object(kind, version)
        made["metadata"] |= meta
        return json.dumps(self.mangled(made) if self.chance.random() < MANGLED else made).encode()

    def mangled(self, made: Json) -> Json:
        """The same with some values that no schema allows; its metadata stays, or nobody could tell of what it is."""
        made = json.loads(json.dumps(made))
        for _ in range(self.chance.randrange(1, 4)):
            at: Any = made
            for _ in range(self.chance.randrange(1, 7)):
                inner = list(at.values() if isinstance(at, dict) else at)
                inner = [one for one in inner if isinstance(one, dict | list) and one]
                if not inner:
                    break
                at = self.chance.choice(inner)
            if at is not made and at is not made["metadata"]:
                key = self.chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
                at[key] = copy.deepcopy(self.chance.choice(ODD))
        return made

    def cut(self, line: bytes) -> bytes:
        """Bytes that are not what was sent."""
        text = bytearray(line)
        for _ in range(self.chance.randrange(1, 3)):
            at = self.chance.randrange(len(text) + 1)
            text[at : at + self.chance.randrange(4)] = self.chance.randbytes(self.chance.randrange(4))
        return bytes(text).replace(b"\n", b" ")

    def _struct(self, name: str, depth: int) -> Json:
        if name in OURS:
            fields: Mapping[str, str] = OURS[name]
        else:
            model = getattr(models, name)
            fields = {model.attribute_map[key]: kind for key, kind in model.openapi_types.items()}
        share = 0.85 if depth < 2 else 0.25
        rare = 0.25 if depth < 4 else 0.1
        return {
            field: self._value(field, kind, depth + 1)
            for field, kind in fields.items()
            if self.chance.random() < (share if field in USUAL else rare)
        }

    def _value(self, field: str, kind: str, depth: int) -> Any:
        pick = self.chance.choice
        if listed := LIST.fullmatch(kind):
            count = 0 if depth > DEEPEST else pick((0, 1, 1, 2))
            return [self._value(field, listed[1], depth) for _ in range(count)]
        if kind.startswith("Dict"):
            return self._map(field)
        makers: dict[str, Callable[[], Any]] = {
            "str": lambda: self._text(field),
            "int": lambda: pick(NUMBERS),
            "bool": lambda: pick((True, False)),
            "float": lambda: pick((0.5, 1e300)),
            "datetime": lambda: pick(TIMES),
            "object": lambda: copy.deepcopy(pick(ODD)),
        }
        if kind in makers:
            return makers[kind]()
        return {} if depth > DEEPEST else self._struct(kind, depth)

    def _text(self, field: str) -> str:
        pools = {
            "name": NAMES,
            "uid": UIDS,
            "nodeName": NODES,
            "namespace": ("ns", "other"),
            "kind": ("DaemonSet", "x"),
        }
        return self.chance.choice(pools.get(field, TEXTS))

    def _map(self, field: str) -> dict[str, str]:
        pick, some = self.chance.choice, range(self.chance.randrange(4))
        match field:
            case "labels" | "nodeSelector" | "matchLabels":
                return {pick(LABELS): pick((*UIDS, *NAMES, "true")) for _ in some}
            case "annotations":
                keys = (MIRROR_ANNOTATION, names.claim_key(pick(UIDS)), names.HEADROOM_ANNOTATION, "other")
                return {pick((*keys[1:], *keys)): pick((*TIMES, "5", "x" * 300)) for _ in some}
            case _:
                return {pick(RESOURCES): pick(QUANTITIES) for _ in some}
