"""The scheduler as one who trusts us: which authorities it has read, and how to make it read them again.

kube-scheduler reads the extender's CA file once. In a cluster it is a Deployment, and a new annotation on its
pod template restarts it. Where there is none (the cluster's own scheduler calls us, in the
kube-scheduler-config mode) somebody restarts it by hand and says so with `ateplace certs
scheduler-restarted`, which is noted on its Secret.
"""

from typing import Protocol

from msgspec import Struct

from ateplace.errors import CertificateError, Forbidden, NotFound
from ateplace.kube import Kube, paths
from ateplace.kube.objects import Metadata
from ateplace.names import SCHEDULER_CERTIFICATE, TRUST_ANNOTATION
from certs import rotation
from certs.store import Store


class Scheduler(Protocol):
    """Whoever can tell about the scheduler and restart it."""

    async def look(self) -> rotation.Scheduler:
        """How it stands now."""
        ...

    async def restart(self, mark: str) -> None:
        """Begin a restart after which it trusts what `mark` stands for; Conflict when it has changed since `look`."""
        ...


class Template(Struct):
    metadata: Metadata | None = None


class Spec(Struct):
    template: Template
    replicas: int = 1


class Status(Struct, rename="camel"):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0


class Deployment(Struct):
    """A Deployment as far as we read it."""

    metadata: Metadata
    spec: Spec
    status: Status | None = None

    def mark(self) -> str:
        found = self.spec.template.metadata
        return found.annotation(TRUST_ANNOTATION) if found else ""

    def rolled_out(self) -> bool:
        """Whether all its pods, and no others, are of the newest template and up."""
        status = self.status or Status()
        counts = {status.replicas, status.updated_replicas, status.available_replicas}
        return status.observed_generation >= self.metadata.generation and counts == {self.spec.replicas}


class SchedulerDeployment:
    """The scheduler in a Deployment of ours or, when there is none, somebody else's."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self._kube = kube
        self._store = Store(kube, namespace)
        self._path = paths.DEPLOYMENTS.named(name, namespace)
        self._seen: Deployment | None = None

    async def look(self) -> rotation.Scheduler:
        try:
            self._seen = await self._kube.get(self._path, Deployment)
        except (NotFound, Forbidden):
            self._seen = None
            secret = await self._store.read(SCHEDULER_CERTIFICATE)
            said = secret.metadata.annotation(TRUST_ANNOTATION) if secret else ""
            return rotation.Scheduler(said, running=True, restartable=False)
        return rotation.Scheduler(self._seen.mark(), self._seen.rolled_out(), restartable=True)

    async def restart(self, mark: str) -> None:
        if self._seen is None:
            raise CertificateError("there is no scheduler of ours to restart")
        metadata = self._seen.metadata
        body = {
            "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version},
            "spec": {"template": {"metadata": {"annotations": {TRUST_ANNOTATION: mark}}}},
        }
        await self._kube.patch(self._path, body, Deployment)

    async def acknowledge(self, mark: str) -> None:
        """Note that somebody has restarted the scheduler."""
        secret = await self._store.read(SCHEDULER_CERTIFICATE)
        if secret is None:
            raise CertificateError(f"there is no Secret {SCHEDULER_CERTIFICATE}: nothing to acknowledge")
        await self._store.annotate(secret, TRUST_ANNOTATION, mark)
