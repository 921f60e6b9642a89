"""Every path of the Kubernetes API that we ask for. Names from objects become path segments here and nowhere else.

A name is foreign text: an ownerReference may name "../../secrets?watch=true". `segment` escapes what is not plain, and
refuses what no object can be called, so that a name never reaches another resource than the one meant.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from ateplace import names
from ateplace.errors import NotFound

LONGEST_NAME: Final = 253
"""Characters of an object's name; the API takes no longer one."""

SAFE: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~:@%=+,$&'()*!-]+)+")
"""A path of ours: plain or escaped segments, none empty, none that goes up."""


def segment(name: str) -> str:
    """The name as one segment of a path. NotFound for what can be no object's name: nothing is called so."""
    if not name or name in {".", ".."} or len(name) > LONGEST_NAME or "/" in name or "%" in name:
        raise NotFound(f"{name[:64]!r} cannot be the name of an object", status=404)
    return quote(name, safe="")


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object: its group and version as in a path, and its plural."""

    version: str
    plural: str

    @property
    def everywhere(self) -> str:
        """The collection: all namespaces, or the whole cluster where the kind has none."""
        return f"{self.version}/{self.plural}"

    def within(self, namespace: str) -> str:
        """One namespace's collection."""
        return f"{self.version}/namespaces/{segment(namespace)}/{self.plural}"

    def named(self, name: str, namespace: str = "") -> str:
        """One object."""
        return f"{self.within(namespace) if namespace else self.everywhere}/{segment(name)}"

    def status(self, name: str, namespace: str = "") -> str:
        """One object's status."""
        return f"{self.named(name, namespace)}/status"


CORE: Final = "/api/v1"
APPS: Final = "/apis/apps/v1"

PODS: Final = Resource(CORE, "pods")
NODES: Final = Resource(CORE, "nodes")
NAMESPACES: Final = Resource(CORE, "namespaces")
SERVICES: Final = Resource(CORE, "services")
SECRETS: Final = Resource(CORE, "secrets")
CONFIG_MAPS: Final = Resource(CORE, "configmaps")
CORE_EVENTS: Final = Resource(CORE, "events")
LIMIT_RANGES: Final = Resource(CORE, "limitranges")
DEPLOYMENTS: Final = Resource(APPS, "deployments")
REPLICA_SETS: Final = Resource(APPS, "replicasets")
DAEMON_SETS: Final = Resource(APPS, "daemonsets")
CONTROLLER_REVISIONS: Final = Resource(APPS, "controllerrevisions")
EVENTS: Final = Resource("/apis/events.k8s.io/v1", "events")
LEASES: Final = Resource("/apis/coordination.k8s.io/v1", "leases")
PRIORITY_CLASSES: Final = Resource("/apis/scheduling.k8s.io/v1", "priorityclasses")
ACCESS_REVIEWS: Final = Resource("/apis/authorization.k8s.io/v1", "subjectaccessreviews")
MUTATING_WEBHOOKS: Final = Resource("/apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
POOLS: Final = Resource(f"/apis/{names.GROUP}/{names.POOL_VERSION}", names.POOL_PLURAL)


def pod_proxy(namespace: str, pod: str, port: int, page: str) -> str:
    """A page that a pod serves, through the API server."""
    return f"{PODS.within(namespace)}/http:{segment(pod)}:{port}/proxy/{page}"
