"""The shape of a pool's placeholders (pure): what is read off its live Deployment, and the Deployment made of that.

A placeholder holds the room of one ateom and gives it up to the first ateom that needs it. Whatever decides where an
ateom fits is copied; whatever an ateom may do is not: a placeholder is a pause container without rights, token or host
access.

Copied from the live Deployment and not from the WorkerPool, because Agent Substrate's controller adds things that the
WorkerPool does not say (a nodeSelector and a toleration for microvm). What a template says is not all that a pod asks
for: our webhook adds an init container, which counts as kube-scheduler counts it, and a LimitRange fills in what
containers leave open. The latter is read off the pool's live ateoms.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, structs

from ateplace import names
from ateplace.cluster.atelets import matches
from ateplace.cluster.records import NodeRecord, PoolRecord
from ateplace.cluster.resources import CPU, MEMORY, Amounts, default_requests, pack, requests
from ateplace.kube.objects import Condition, Container, Metadata, NodeSelectorTerm, PodSpec, Resources
from ateplace.settings import Settings, Webhook

Json = dict[str, Any]

OLD_SUFFIX: Final = "-headroom"
"""The name of a pool's placeholders was its own and this, until pools' Deployments came to have any name."""
TAIL: Final = "ateplace-placeholders"
"""Makes the name longer than a label's value can be, so that no WorkerPool that has ateoms is called so."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OWNER: Final = "ateplace"
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DEFAULT_SCHEDULER: Final = "default-scheduler"
DEFAULT_ACCOUNT: Final = "default"
ATEOM: Final = "ateom"
USER: Final = 65535
"""The user of the pause image."""


class RollingUpdate(Struct, rename="camel"):
    max_unavailable: int | str | None = None


class Strategy(Struct, rename="camel"):
    rolling_update: RollingUpdate | None = None


class DeploymentSpec(Struct, rename="camel"):
    template: Raw
    replicas: int | None = None
    strategy: Strategy | None = None


class DeploymentStatus(Struct, rename="camel"):
    replicas: int = 0
    updated_replicas: int = 0
    conditions: list[Condition] | None = None


class Deployment(Struct):
    """As it is read: the template stays bytes until it is known to matter."""

    metadata: Metadata
    spec: DeploymentSpec
    status: DeploymentStatus | None = None


class AteomShape(Struct, frozen=True):
    """What decides where a pool's ateoms fit, and what they pull."""

    requests: Amounts
    """With our init container."""
    reserves: bool = True
    """Whether an ateom's own containers ask for CPU or memory at all."""
    fixed: frozenset[str] = frozenset()
    """Resources that every container says how much of it wants: nothing fills these in."""
    image: str = ""
    """Empty where only an account or a secret of the pool's could pull it: a placeholder has neither."""
    scheduler: str = ""
    node_selector: Json | None = None
    tolerations: list[Any] | None = None
    affinity: Json | None = None
    terms: tuple[NodeSelectorTerm, ...] | None = None
    """Required node affinity: any of these; None when there is none."""
    runtime_class: str = ""

    def filled_in(self, live: Iterable[Amounts]) -> "AteomShape":
        """The same with what the pool's live ateoms ask for where its template leaves that open."""
        amounts, reserves = dict(self.requests), self.reserves
        for requested in live:
            for name, amount in requested:
                if name not in self.fixed and amount > amounts.get(name, 0):
                    amounts[name] = amount
                    reserves = reserves or name in {CPU, MEMORY}
        return structs.replace(self, requests=pack(amounts), reserves=reserves)

    def goes_to(self, node: NodeRecord) -> bool:
        """Whether its node selector and required node affinity allow the node."""
        if any(node.labels.get(key) != value for key, value in (self.node_selector or {}).items()):
            return False
        return self.terms is None or any(matches(term, node) for term in self.terms)


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
    shape: AteomShape | None
    """None on ours, and where it cannot be read."""
    old: bool = False
    """Ours, under the name that it had in earlier versions."""
    rank: tuple[bool, str] = (False, "")
    """Of several that are one pool's own, the last is its: one that it controls, the newest."""
    outdated: int = 0
    """How many of its pods are of an earlier template."""
    spare: int = 0
    """How many of its pods beside one may be missing while they are replaced."""
    starved: int = 0
    """How many pods it lacks because a ResourceQuota allows no more."""


def name_of(pool: str, uid: str) -> str:
    """What a pool's placeholders' Deployment is called."""
    return f"{pool}{OLD_SUFFIX}-{uid}-{TAIL}"


def deployment_record(deployment: Deployment, webhook: Webhook) -> DeploymentRecord | None:
    """None for a Deployment that is neither a pool's nor ours."""
    meta, status = deployment.metadata, deployment.status or DeploymentStatus()
    owners = (one for one in meta.owner_references or () if one.is_a(names.GROUP, names.POOL_KIND))
    owner = max(owners, key=lambda one: bool(one.controller), default=None)
    pool, uid = meta.label(names.PLACEHOLDER_LABEL), meta.label(names.POOL_UID_LABEL)
    old = meta.name == pool + OLD_SUFFIX
    ours = bool(pool) and meta.label(MANAGED_BY) == OWNER and (old or meta.name == name_of(pool, uid))
    if not (ours or (owner and not pool)):
        return None
    pool_uid = uid if ours or owner is None else owner.uid
    replicas = 1 if deployment.spec.replicas is None else deployment.spec.replicas
    if len(meta.labels or {}) > LABELS:
        raise ValueError(f"{len(meta.labels or {})} labels: more than {LABELS} are not accepted")
    return DeploymentRecord(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        pool_uid=pool_uid,
        replicas=replicas,
        generation=meta.generation,
        deleting=meta.deletion_timestamp is not None,
        ours=ours,
        owned=owner is not None and owner.uid == pool_uid,
        labels=meta.labels or {},
        shape=None if ours else _read_shape(deployment.spec.template, webhook),
        old=ours and old,
        rank=(owner is not None and bool(owner.controller), meta.creation_timestamp or ""),
        outdated=status.replicas - status.updated_replicas,
        spare=_spare(deployment.spec.strategy, replicas),
        starved=max(0, replicas - status.replicas) if any(map(_over_quota, status.conditions or ())) else 0,
    )


def _spare(strategy: Strategy | None, replicas: int) -> int:
    missing = strategy.rolling_update.max_unavailable if strategy and strategy.rolling_update else None
    return min(max(0, missing - 1), replicas) if isinstance(missing, int) else 0


def _over_quota(condition: Condition) -> bool:
    return (condition.type, condition.status) == ("ReplicaFailure", "True") and "exceeded quota" in condition.message


def _read_shape(template: Raw, webhook: Webhook) -> AteomShape | None:
    """None when the template says something that we cannot read: then what is there stays as it is."""
    if len(memoryview(template)) > TEMPLATE_BYTES:
        return None
    try:
        return ateom_shape(msgspec.json.decode(template, type=Json)["spec"], webhook)
    except (msgspec.MsgspecError, ValueError, KeyError, RecursionError):
        return None


def ateom_shape(spec: Json, webhook: Webhook) -> AteomShape:
    """Read a pod template's spec, as it will be when our webhook has been at it."""
    typed = msgspec.convert(spec, PodSpec)
    typed.overhead = None  # comes with the runtime class
    containers = typed.containers or []
    default_requests(typed)
    said = [set(one.resources.requests or ()) if one.resources else set[str]() for one in containers]
    reserves = any(name in {CPU, MEMORY} for name, _ in requests(typed))
    asked = Resources(requests={CPU: webhook.init_cpu, MEMORY: webhook.init_memory})
    others = [one for one in typed.init_containers or () if one.name != names.INIT_CONTAINER]
    typed.init_containers = [Container(name=names.INIT_CONTAINER, resources=asked), *others]
    named = [container for container in containers if container.name == ATEOM] or containers
    scheduler = typed.scheduler_name
    private = spec.get("serviceAccountName") not in {None, "", DEFAULT_ACCOUNT} or bool(spec.get("imagePullSecrets"))
    affinity = typed.affinity.node_affinity if typed.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return AteomShape(
        requests=requests(typed),
        reserves=reserves,
        fixed=frozenset(set.intersection(*said)) if said else frozenset(),
        image=named[0].image if named and not private else "",
        scheduler="" if scheduler == DEFAULT_SCHEDULER else scheduler,
        node_selector=spec.get("nodeSelector") or None,
        tolerations=spec.get("tolerations") or None,
        affinity=spec.get("affinity") or None,
        terms=tuple(required.node_selector_terms or ()) if required else None,
        runtime_class=spec.get("runtimeClassName") or "",
    )


def deployment(
    pool: PoolRecord, shape: AteomShape, replicas: int, settings: Settings, *, prepull: bool, waiting: int = 0
) -> Json:
    """The placeholders' Deployment, as we want it. No label of it makes Agent Substrate take its pods for workers.

    `waiting` of them have no node: they hold no room, and are replaced first when the shape changes.
    """
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
            "name": name_of(pool.name, pool.uid),
            "namespace": pool.namespace,
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector},
            # Surplus placeholders would make a full cluster grow for the length of an update.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1 + waiting, "maxSurge": 0}},
            "revisionHistoryLimit": 0,
            "template": {
                "metadata": {"labels": labels, "annotations": {SAFE_TO_EVICT: "true"}},
                "spec": _pod(shape, selector, settings, prepull=prepull),
            },
        },
    }


def _pod(shape: AteomShape, selector: Json, settings: Settings, *, prepull: bool) -> Json:
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


def _container(shape: AteomShape, settings: Settings, *, prepull: bool) -> Json:
    # Of what atelet serves a cold node has none, and a placeholder with a unit would keep an ateom from it.
    served = settings.substrate.served
    amounts = {name: _quantity(name, amount) for name, amount in shape.requests if name not in served}
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
