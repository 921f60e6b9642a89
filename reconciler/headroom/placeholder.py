"""The shape of a pool's placeholders (pure): what is read off its live Deployment, and the Deployment made of that.

A placeholder holds the room of one ateom and gives it up to whoever needs it. Whatever decides where an ateom fits is
copied; whatever an ateom may do is not: a placeholder is a pause container without rights, token or host access.

Copied from the live Deployment and not from the WorkerPool, because Agent Substrate's controller adds things that the
WorkerPool does not say (a nodeSelector and a toleration for microvm).
"""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from ateplace import names
from ateplace.cluster.records import PoolRecord
from ateplace.cluster.resources import CPU, MEMORY, Amounts, default_requests, requests
from ateplace.kube.objects import Metadata, PodSpec
from ateplace.settings import Settings

Json = dict[str, Any]

SUFFIX: Final = "-headroom"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OWNER: Final = "ateplace"
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DEFAULT_SCHEDULER: Final = "default-scheduler"
DEFAULT_ACCOUNT: Final = "default"
ATEOM: Final = "ateom"
USER: Final = 65535
"""The user of the pause image."""


class DeploymentSpec(Struct, rename="camel"):
    template: Raw
    replicas: int | None = None


class Deployment(Struct):
    """As it is read: the template stays bytes until it is known to matter."""

    metadata: Metadata
    spec: DeploymentSpec


class Mould(Struct, frozen=True):
    """What decides where a pool's ateoms fit, and what they pull."""

    requests: Amounts
    image: str = ""
    """Empty where only an account or a secret of the pool's could pull it: a placeholder has neither."""
    scheduler: str = ""
    node_selector: Json | None = None
    tolerations: list[Any] | None = None
    affinity: Json | None = None
    runtime_class: str = ""

    @property
    def reserves(self) -> bool:
        """Whether an ateom asks for CPU or memory at all."""
        return any(name in {CPU, MEMORY} for name, _ in self.requests)


TEMPLATE_BYTES: Final = 64 * 1024
"""A template that is longer cannot be read: parts of it are kept, for every Deployment that says it is a pool's."""
LABELS: Final = 64
"""So many labels such a Deployment may have."""


class DeploymentRecord(Struct, frozen=True):
    """What is kept of a Deployment that is a pool's, or ours."""

    namespace: str
    name: str
    uid: str
    pool_uid: str
    replicas: int
    generation: int
    deleting: bool
    ours: bool
    owned: bool
    """Whether the pool is an owner."""
    labels: Json
    mould: Mould | None
    """None on ours, and where it cannot be read."""


def deployment_record(deployment: Deployment) -> DeploymentRecord | None:
    """None for a Deployment that is neither a pool's nor ours."""
    meta = deployment.metadata
    owner = next((one.uid for one in meta.owner_references or () if one.kind == names.POOL_KIND), "")
    pool = meta.label(names.PLACEHOLDER_LABEL)
    ours = bool(pool) and meta.label(MANAGED_BY) == OWNER and meta.name == pool + SUFFIX
    if not (ours or (owner and not pool)):
        return None
    pool_uid = meta.label(names.POOL_UID_LABEL) if ours else owner
    if len(meta.labels or {}) > LABELS:
        raise ValueError(f"{len(meta.labels or {})} labels: more than {LABELS} are not taken")
    return DeploymentRecord(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        pool_uid=pool_uid,
        replicas=1 if deployment.spec.replicas is None else deployment.spec.replicas,
        generation=meta.generation,
        deleting=meta.deletion_timestamp is not None,
        ours=ours,
        owned=owner == pool_uid,
        labels=meta.labels or {},
        mould=None if ours else _read_mould(deployment.spec.template),
    )


def _read_mould(template: Raw) -> Mould | None:
    """None when the template says something that we cannot read: then what is there stays as it is."""
    if len(memoryview(template)) > TEMPLATE_BYTES:
        return None
    try:
        return mould(msgspec.json.decode(template, type=Json)["spec"])
    except (msgspec.MsgspecError, ValueError, KeyError, RecursionError):
        return None


def mould(spec: Json) -> Mould:
    """Read a pod template's spec."""
    typed = msgspec.convert(spec, PodSpec)
    typed.overhead = None  # comes with the runtime class
    containers = typed.containers or []
    default_requests(typed)
    named = [container for container in containers if container.name == ATEOM] or containers
    scheduler = typed.scheduler_name
    private = spec.get("serviceAccountName") not in {None, "", DEFAULT_ACCOUNT} or bool(spec.get("imagePullSecrets"))
    return Mould(
        requests=requests(typed),
        image=named[0].image if named and not private else "",
        scheduler="" if scheduler == DEFAULT_SCHEDULER else scheduler,
        node_selector=spec.get("nodeSelector") or None,
        tolerations=spec.get("tolerations") or None,
        affinity=spec.get("affinity") or None,
        runtime_class=spec.get("runtimeClassName") or "",
    )


def deployment(pool: PoolRecord, shape: Mould, replicas: int, settings: Settings, *, prepull: bool) -> Json:
    """The placeholders' Deployment, as we want it. No label of it makes Agent Substrate take its pods for workers."""
    selector = {names.PLACEHOLDER_LABEL: pool.name, names.POOL_UID_LABEL: pool.uid}
    labels = {**selector, MANAGED_BY: OWNER}
    owner = {
        "apiVersion": f"{names.GROUP}/{names.POOL_VERSION}",
        "kind": names.POOL_KIND,
        "name": pool.name,
        "uid": pool.uid,
        "controller": True,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": pool.name + SUFFIX,
            "namespace": pool.namespace,
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector},
            # Surplus placeholders would make a full cluster grow for the length of an update.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            "revisionHistoryLimit": 0,
            "template": {
                "metadata": {"labels": labels, "annotations": {SAFE_TO_EVICT: "true"}},
                "spec": _pod(shape, selector, settings, prepull=prepull),
            },
        },
    }


def _pod(shape: Mould, selector: Json, settings: Settings, *, prepull: bool) -> Json:
    prepull = prepull and bool(shape.image)
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector},
    }
    pod: Json = {
        "schedulerName": shape.scheduler or settings.webhook.scheduler_name or DEFAULT_SCHEDULER,
        "priorityClassName": names.PLACEHOLDER_PRIORITY_CLASS,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [spread],
        "containers": [_container(shape, settings, prepull=prepull)],
    }
    copied = {
        "nodeSelector": shape.node_selector,
        "tolerations": shape.tolerations,
        "affinity": shape.affinity,
        "runtimeClassName": shape.runtime_class,
    }
    if prepull:
        pod["volumes"] = [{"name": ATEOM, "image": {"reference": shape.image, "pullPolicy": "IfNotPresent"}}]
    return pod | {key: value for key, value in copied.items() if value}


def _container(shape: Mould, settings: Settings, *, prepull: bool) -> Json:
    amounts = {name: _quantity(name, amount) for name, amount in shape.requests}
    if not shape.reserves:
        amounts |= {CPU: settings.headroom.cpu, MEMORY: settings.headroom.memory}
    if settings.webhook.gating_resource:
        amounts[settings.webhook.gating_resource] = "1"
    container: Json = {
        "name": "placeholder",
        "image": settings.headroom.image,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if prepull:
        container["volumeMounts"] = [{"name": ATEOM, "mountPath": "/ateom", "readOnly": True}]
    return container


def _quantity(name: str, amount: int) -> str:
    if name == CPU:
        return f"{amount}m"
    return f"{amount >> 20}Mi" if amount and amount % (1 << 20) == 0 else str(amount)


def without_prepull(wanted: Json) -> Json:
    """The same Deployment for an API server that does not take image volumes."""
    spec = wanted["spec"]
    pod = spec["template"]["spec"]
    container = {key: value for key, value in pod["containers"][0].items() if key != "volumeMounts"}
    pod = {key: value for key, value in pod.items() if key != "volumes"} | {"containers": [container]}
    return wanted | {"spec": spec | {"template": spec["template"] | {"spec": pod}}}
