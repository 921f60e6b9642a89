"""Settings: one frozen, grouped, documented model.

Three sources, the later wins: a YAML file (`ATEPLACE_SETTINGS` or `--settings`), the environment
(`ATEPLACE_<GROUP>_<FIELD>`, e.g. `ATEPLACE_WEBHOOK_PORT=9443`), flags (`--set webhook.port=9443`). An unknown key in
any of them is refused.
"""

import ast
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ateplace import label_selectors, names
from ateplace.errors import SettingsError
from ateplace.quantities import quantity

PREFIX = "ATEPLACE_"
FILE_VARIABLE = "ATEPLACE_SETTINGS"
NOT_SETTINGS = (
    FILE_VARIABLE,
    "ATEPLACE_CONTROL_PLANE_BIN",
    "ATEPLACE_CACHE",
    "ATEPLACE_DOWNLOAD_",
)
"""Beginnings of variables with our prefix that the local control plane reads."""

SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT)|PORT_\d+_)")
"""The kubelet's variables for our own Services: ATEPLACE_WEBHOOK_SERVICE_HOST, ATEPLACE_WEBHOOK_PORT=tcp://…"""

BUSYBOX = "docker.io/library/busybox:1.37@sha256:9db7b59979c38555a39def84a31fb98b5296952f9e3afd4f6f11f05b07adfab0"
PAUSE = "registry.k8s.io/pause:3.10@sha256:ee6521f290b2168b6e0935a181d4cff9be1ac3f505666ef0e3c98fae8199917a"

REMOVED = {
    "substrate.atelet_daemonset": "atelet's DaemonSets are found by the labels of their pods now: remove this setting, "
    "and set substrate.atelet_selector if those are not app=atelet",
    "certs.localhost": "serving certificates are for the names of Services only: remove this setting",
}
"""Settings of earlier versions: what to do instead."""

DAY = 24 * 3600
MONTH = 30 * DAY
"""Seconds; the most that may be waited for anything. Numbers without a largest one would let a limit be switched off by
an `inf`, or run over when it is added to a time."""
MIB = 1024 * 1024


def _amount(text: str) -> str:
    if quantity(text) <= 0:
        raise ValueError("it must be greater than zero")
    return text


def _selector(text: str) -> str:
    label_selectors.parse(text)
    return text


Selector = Annotated[str, AfterValidator(_selector)]
"""A label selector, as `app=atelet` or `tier in (a, b)`."""
OptionalSelector = Annotated[str, AfterValidator(lambda text: _selector(text) if text else text)]
Amount = Annotated[str, AfterValidator(_amount)]
"""A Kubernetes quantity, as `500m` or `1.5Gi`."""


class Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Substrate(Group):
    """How Agent Substrate names its things."""

    pool_label: str = names.POOL_LABEL
    """Label on ateom pods that holds their WorkerPool's name."""
    atelet_namespace: str = names.ATELET_NAMESPACE
    """Namespace of the atelet DaemonSets."""
    atelet_selector: Selector = "app=atelet"
    """Label selector of atelet's pods; each DaemonSet whose pods carry these labels is one of atelet's."""
    served_resources: str = names.KVM
    """Extended resources that atelet itself serves, separated by commas: a node has them once atelet is there."""
    served_nodes: OptionalSelector = ""
    """Label selector of nodes that may have them; empty: learned from instance types, label and taint."""
    atelet_port: int = Field(names.ATELET_PORT, ge=1, le=65535)
    """Port on which atelet serves on its node's address."""

    @property
    def served(self) -> frozenset[str]:
        return frozenset(filter(None, (name.strip() for name in self.served_resources.split(","))))


class Cluster(Group):
    """How to reach and trust the API server."""

    kubeconfig: str = ""
    """Path of a kubeconfig; empty means the pod's ServiceAccount, else $KUBECONFIG, else ~/.kube/config."""
    namespace: str = names.NAMESPACE
    """Namespace that ateplace itself runs in."""
    request_timeout: float = Field(10.0, gt=0, le=60)
    """Seconds that one request to the API server may take."""
    stale_after: float = Field(75.0, gt=0, le=3600)
    """Seconds without a sign of life after which a watch counts as stale (bookmarks come once a minute)."""


class Serve(Group):
    """What every server of ours does."""

    host: str = "::"
    """Address to listen on; `::` takes IPv4 as well."""
    health_port: int = Field(8080, ge=0, le=65535)
    """Port for /healthz, /readyz and /metrics."""
    debug_port: int = Field(0, ge=0, le=65535)
    """Loopback port for profiling; 0 is off."""
    max_connections: int = Field(512, ge=1, le=65536)
    """Connections open at once on a TLS port; for one more the address with most gives up one that is idle or slow."""
    header_bytes: int = Field(64 * 1024, ge=1024, le=MIB)
    """Bytes of request line and headers before a connection is closed."""
    request_deadline: float = Field(10.0, gt=0, le=600)
    """Seconds from a request's first byte until it has arrived whole; slower clients are closed."""
    drain: float = Field(3.0, ge=0, le=600)
    """Seconds after SIGTERM during which new calls are still taken, until Services have noticed."""
    grace: float = Field(20.0, ge=0, le=3600)
    """Seconds that requests under way may take after that."""


class Webhook(Group):
    """The mutating admission webhook."""

    port: int = Field(8443, ge=0, le=65535)
    """Port for admission reviews (TLS)."""
    tls_directory: str = "/etc/ateplace/webhook-tls"
    """Directory with tls.crt, tls.key and ca.crt, mounted from a Secret (ours or cert-manager's)."""
    body_bytes: int = Field(4 * MIB, ge=1024, le=64 * MIB)
    """Largest admission review taken; a larger one is answered 413."""
    init_image: str = BUSYBOX
    """Image of the `wait-for-atelet` init container: any with a shell and busybox's nc."""
    init_cpu: Amount = "100m"
    """CPU that `wait-for-atelet` requests and may use, and so the least that an ateom requests. With less, every ateom
    starts later, as starting the container counts. A LimitRange of a pool's namespace may want more."""
    init_memory: Amount = "16Mi"
    """Memory that `wait-for-atelet` requests and may use."""
    init_deadline: int = Field(0, ge=0, le=MONTH)
    """Seconds after which `wait-for-atelet` fails with a message; 0 waits for ever."""
    priority_class: str = names.ATEOM_PRIORITY_CLASS
    """PriorityClass that ateoms get."""
    priority_policy: Literal["IfUnset", "Always", "Never"] = "IfUnset"
    """When to set it; the cluster's default class counts as unset."""
    scheduler_name: str = names.SCHEDULER
    """Scheduler for ateoms that name none; empty leaves the default one."""
    gating_resource: str = ""
    """Extended resource put on our init container, for the kube-scheduler-config mode; empty is off."""


class Extender(Group):
    """The kube-scheduler extender."""

    port: int = Field(8444, ge=0, le=65535)
    """Port for the scheduler's calls (mutual TLS)."""
    tls_directory: str = "/etc/ateplace/extender-tls"
    """Directory with tls.crt, tls.key and ca.crt, mounted from a Secret (ours or cert-manager's)."""
    client_name: str = names.EXTENDER_CLIENT
    """DNS name in the client certificate that may call us."""
    body_bytes: int = Field(8 * MIB, ge=1024, le=64 * MIB)
    """Largest call taken (5,000 node names are 150 KB, a pod up to 1.5 MB)."""
    deadline: float = Field(4.0, gt=0, le=60)
    """Seconds a verb may take; keep it under half of the scheduler's `httpTimeout`."""
    open_ahead: int = Field(24, ge=0, le=64)
    """Most cold nodes that are claimed at once, ahead of the pods that will need them."""
    nominate_nodes: int = Field(6000, ge=0, le=1_000_000)
    """On clusters of at least so many nodes, pods that wait behind another are nominated to a node; 0 means never."""
    ateoms_per_node: int = Field(0, ge=0, le=10_000)
    """Most ateoms on one node; 0 means as many as fit. Two replicas that answer at the same time may exceed it."""
    atelet_unready_seconds: float = Field(60.0, ge=0, le=MONTH)
    """Seconds that a node's atelet may be un-Ready, or not serve what pods ask for, before they are kept off it."""
    preempt_others: bool = False
    """Whether an ateom with our injected class may evict pods that are not placeholders."""
    placement: Literal["prefer-warm", "hold-warm"] = "prefer-warm"
    """Whether a cold node is opened before (prefer-warm) or after (hold-warm) placeholders are preempted."""
    hold_warm_seconds: float = Field(30.0, ge=0, le=MONTH)
    """Longest time that `hold-warm` holds a pod back from cold nodes."""
    decisions: int = Field(2000, ge=0, le=1_000_000)
    """How many pods' last decisions are kept for `explain`."""


class Reconciler(Group):
    """Claims, finalizers, placeholders, certificates."""

    linger: float = Field(120.0, ge=0, le=MONTH)
    """Seconds that an unused claim stays, so that atelet does not flap."""
    unbound_wait: float = Field(600.0, ge=0, le=MONTH)
    """Longest time that a release waits for unbound pods of the pool that may have been answered the node: as long as a
    scheduler may take to bind (kube-scheduler waits 600 s for volumes, `bindTimeoutSeconds` of its VolumeBinding)."""
    resync: float = Field(300.0, gt=0, le=DAY)
    """Seconds between full comparisons of what is with what should be."""
    workers: int = Field(16, ge=1, le=256)
    """Nodes reconciled at the same time (pools: half of it, and a quarter for any one namespace's)."""
    lease_seconds: float = Field(10.0, gt=1, le=3600)
    """How long a silent leader keeps the lease."""
    gate: Literal["follow", "always", "never"] = "follow"
    """Which atelet DaemonSets without pods get our label into their nodeSelector: all once one has it, all, or none."""
    atelet_late: float = Field(60.0, gt=0, le=MONTH)
    """Seconds after which a missing atelet is worth an Event on the waiting pod."""
    deletion_slow: float = Field(30.0, gt=0, le=MONTH)
    """Seconds after which a WorkerPool's deletion is worth an Event that says what it waits for."""


class Headroom(Group):
    """Placeholders."""

    default: int = Field(0, ge=0, le=1000)
    """Placeholders for a pool without the annotation."""
    cap: int = Field(1000, ge=0, le=1000)
    """Most placeholders for any one pool."""
    image: str = PAUSE
    """Image that placeholders run."""
    cpu: Amount = "500m"
    """CPU a placeholder requests when its pool's ateoms request nothing."""
    memory: Amount = "512Mi"
    """Memory a placeholder requests when its pool's ateoms request nothing."""
    prepull: bool = True
    """Mount the pool's ateom image as an image volume, so that nodes have pulled it before a burst."""


class Certs(Group):
    """Where certificates come from and how long they live."""

    managed: bool = True
    """Whether the reconciler makes and renews them; off where cert-manager does."""
    leaf_days: float = Field(30.0, gt=0, le=3650)
    """Life of serving and client certificates."""
    ca_days: float = Field(3650.0, gt=0, le=36500)
    """Life of the certificate authority."""
    settle: float = Field(180.0, ge=0, le=DAY)
    """Seconds after which every pod has a Secret that was written (kubelets look about once a minute)."""
    scheduler_deployment: str = names.SCHEDULER
    """Deployment of the scheduler that calls the extender, restarted when the authority changes."""
    poll: float = Field(1.0, gt=0, le=3600)
    """Seconds between looks at the mounted files."""


class Log(Group):
    """Logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    format: Literal["auto", "json", "text"] = "auto"
    """JSON or readable lines; auto: readable in a terminal."""


class Settings(Group):
    """Every setting of ateplace."""

    substrate: Substrate = Substrate()
    cluster: Cluster = Cluster()
    serve: Serve = Serve()
    webhook: Webhook = Webhook()
    extender: Extender = Extender()
    reconciler: Reconciler = Reconciler()
    headroom: Headroom = Headroom()
    certs: Certs = Certs()
    log: Log = Log()


Source = Literal["default", "file", "environment", "flag"]
SOURCES: tuple[str, ...] = get_args(Source)


class Loaded(BaseModel):
    """The effective settings, and for each one that was given, where it came from."""

    model_config = ConfigDict(frozen=True)
    settings: Settings
    origins: dict[str, Source]


def load(environ: Mapping[str, str] | None = None, flags: Iterable[str] = (), path: str | Path | None = None) -> Loaded:
    """Merge file, environment and `group.field=value` flags; raise SettingsError naming the bad key and its source."""
    environ = os.environ if environ is None else environ
    path = path or environ.get(FILE_VARIABLE) or None
    values: dict[str, dict[str, Any]] = {}
    origins: dict[str, Source] = {}
    layers: tuple[tuple[Source, Iterable[tuple[str, Any]]], ...] = (
        ("file", _from_file(Path(path)) if path else ()),
        ("environment", _from_environment(environ)),
        ("flag", _from_flags(flags)),
    )
    for source, layer in layers:
        for key, value in layer:
            group, _, field = key.partition(".")
            known = Settings.model_fields.get(group)
            model = known.annotation if known else None
            if key in REMOVED:
                raise SettingsError(f"setting {key!r} ({source}) is gone: {REMOVED[key]}")
            if model is None or field not in getattr(model, "model_fields", {}):
                raise SettingsError(f"unknown setting {key!r} ({source}); `ateplace settings` lists them all")
            values.setdefault(group, {})[field] = value
            origins[key] = source
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"setting {key!r} ({origins.get(key, 'default')}): {first['msg']}") from error
    return Loaded(settings=settings, origins=origins)


def meanings() -> dict[str, str]:
    """What each setting means, by `group.field`: the text below it in this file.

    Read when asked for: pydantic can do it too (`use_attribute_docstrings`), but does so for every process that starts.
    """
    found: dict[str, dict[str, str]] = {}
    for group in ast.parse(Path(__file__).read_text("utf-8")).body:
        if isinstance(group, ast.ClassDef):
            pairs = zip(group.body, group.body[1:], strict=False)
            found[group.name] = {
                field.target.id: " ".join(text.value.value.split())
                for field, text in pairs
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                if isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            }
    models = {group: getattr(field.annotation, "__name__", "") for group, field in Settings.model_fields.items()}
    return {f"{group}.{field}": text for group, model in models.items() for field, text in found[model].items()}


def _from_file(path: Path) -> Iterable[tuple[str, Any]]:
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"cannot read settings from {path}: {error}") from error
    if document is None:
        return
    if not isinstance(document, dict):
        raise SettingsError(f"{path}: expected groups of settings")
    for group, fields in document.items():
        if not isinstance(fields, dict):
            raise SettingsError(f"{path}: group {group!r} must hold settings")
        for field, value in fields.items():
            yield f"{group}.{field}", value


def _from_environment(environ: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    groups = sorted(Settings.model_fields, key=len, reverse=True)
    for name, value in sorted(environ.items()):
        if not name.startswith(PREFIX) or name.startswith(NOT_SETTINGS):
            continue
        if SERVICE_LINK.search(name) or value.startswith("tcp://"):
            continue
        rest = name[len(PREFIX) :].lower()
        group = next((group for group in groups if rest.startswith(group + "_")), "")
        yield (f"{group}.{rest[len(group) + 1 :]}" if group else rest), value


def _from_flags(flags: Iterable[str]) -> Iterable[tuple[str, str]]:
    for flag in flags:
        key, equals, value = flag.partition("=")
        if not equals:
            raise SettingsError(f"--set takes group.field=value, not {flag!r}")
        yield key.strip(), value
