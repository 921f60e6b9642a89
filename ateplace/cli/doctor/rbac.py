"""RBAC: every role may do what it must. The API server is asked, so that whatever grants it counts."""

import asyncio
from typing import Final, NamedTuple

from msgspec import Struct

from ateplace import names
from ateplace.cli.doctor.look import Look
from ateplace.cli.findings import APPLY, Finding, fail, ok, some
from ateplace.kube import paths
from ateplace.settings import Settings

AT_ONCE: Final = 16
OWN_NAMES: Final = "if you have set other names, change them in its ClusterRoles and Roles too"


class Right(NamedTuple):
    """Verbs on a resource, or on its `resource/subresource`: everywhere, or in our own namespace; on all objects, or on
    the one with a name."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    own: bool = False
    name: str = ""

    @property
    def plural(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource


WATCH: Final = ("list", "watch")
READ: Final = ("get", *WATCH)
EXTENDER: Final = "ateplace-extender"
RECONCILER: Final = "ateplace-reconciler"
ADMISSION: Final = "admissionregistration.k8s.io"
LEASES: Final = "coordination.k8s.io"
SECRETS: Final = (
    names.CA_CERTIFICATE,
    names.WEBHOOK_CERTIFICATE,
    names.EXTENDER_CERTIFICATE,
    names.SCHEDULER_CERTIFICATE,
)
NEEDED: Final[dict[str, tuple[Right, ...]]] = {
    "ateplace-webhook": (
        Right(names.GROUP, names.POOL_PLURAL, READ),
        Right("scheduling.k8s.io", "priorityclasses", WATCH),
    ),
    EXTENDER: (
        Right("", "nodes", (*READ, "patch")),
        Right("", "pods", (*WATCH, "delete")),
        Right("", "namespaces", WATCH),
        Right("apps", "daemonsets", WATCH),
        Right(names.GROUP, names.POOL_PLURAL, READ),
    ),
    RECONCILER: (
        Right("", "nodes", (*WATCH, "patch")),
        Right("", "pods", (*WATCH, "delete")),
        Right("", "namespaces", WATCH),
        Right(names.GROUP, names.POOL_PLURAL, (*READ, "patch")),
        Right("apps", "deployments", (*READ, "create", "update", "delete")),
        Right("apps", "replicasets", ("get",)),
        Right("apps", "daemonsets", (*READ, "patch")),
        Right("events.k8s.io", "events", ("create", "patch")),
        Right(LEASES, "leases", ("create",), own=True),
        Right(LEASES, "leases", (*READ, "patch"), own=True, name=RECONCILER),
    ),
}
"""What each role's ServiceAccount must be granted, whatever the settings."""

FOR_CERTIFICATES: Final = (
    Right(ADMISSION, "mutatingwebhookconfigurations", (*READ, "patch"), name=names.WEBHOOK_CONFIGURATION),
    Right("", "secrets", ("create",), own=True),
    *(Right("", "secrets", ("get", "patch"), own=True, name=name) for name in SECRETS),
)
"""What the reconciler must be granted besides, unless cert-manager makes the certificates."""


def needed(settings: Settings) -> dict[str, tuple[Right, ...]]:
    """ServiceAccount to rights. With the default settings the shipped manifests grant exactly this (tested)."""
    found = {account: list(rights) for account, rights in NEEDED.items()}
    for account in (EXTENDER, RECONCILER):
        found[account].append(Right("", "limitranges", WATCH))
    if settings.extender.nominate_nodes:
        found[EXTENDER].append(Right("", "pods/status", ("patch",)))
    if settings.certs.managed:
        found[RECONCILER] += FOR_CERTIFICATES
        if settings.certs.scheduler_deployment:
            name = settings.certs.scheduler_deployment
            found[RECONCILER].append(Right("apps", "deployments", ("get", "patch"), own=True, name=name))
    return {account: tuple(rights) for account, rights in found.items()}


class Verdict(Struct):
    allowed: bool = False


class Review(Struct):
    status: Verdict | None = None


async def check(look: Look) -> list[Finding]:
    turns = asyncio.Semaphore(AT_ONCE)

    async def lacks(account: str, right: Right, verb: str) -> str:
        async with turns:
            allowed = await _may(look, account, right, verb)
        return "" if allowed else f"{verb} {right.plural}{f' {right.name}' if right.name else ''}"

    found = []
    for account, rights in needed(look.settings).items():
        asked = [(right, verb) for right in rights for verb in right.verbs]
        missing = list(filter(None, await asyncio.gather(*(lacks(account, *one) for one in asked))))
        if missing:
            says = f"the ServiceAccount {account} may not: {some(missing, 5)}"
            found.append(fail(says, f"{APPLY}; {OWN_NAMES}"))
        else:
            found.append(ok(f"{account} has all {len(asked)} permissions"))
    return found


async def _may(look: Look, account: str, right: Right, verb: str) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {"group": right.group, "resource": resource, "verb": verb, "name": right.name}
    if subresource:
        attributes["subresource"] = subresource
    if right.own:
        attributes["namespace"] = look.namespace
    user = f"system:serviceaccount:{look.namespace}:{account}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{look.namespace}", "system:authenticated"]
    spec = {"user": user, "groups": groups, "resourceAttributes": attributes}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    review = await look.kube.create(paths.ACCESS_REVIEWS.everywhere, body, Review)
    return bool(review.status and review.status.allowed)
