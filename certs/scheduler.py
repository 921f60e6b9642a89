"""The scheduler as a client that trusts us: which authorities it has read, and how to make it read them again.

kube-scheduler reads the extender's CA file once. In a cluster it is a Deployment, and a new annotation on its
pod template restarts it. On a first installation its pods wait for their Secret, so that is where it is noted what they
will read: an annotation on the template would start each of them twice. Where there is no Deployment (the cluster's own
scheduler calls us, in the kube-scheduler-config mode) an administrator restarts it and says so with
`ateplace certs scheduler-restarted`, which is noted on its Secret too.
"""

from typing import Protocol

from ateplace.certs import rotation
from ateplace.certs.store import Store
from ateplace.errors import CertificateError, Forbidden, NotFound
from ateplace.kube import Kube, paths
from ateplace.kube.objects import Deployment
from ateplace.names import SCHEDULER_CERTIFICATE, TRUST_ANNOTATION


class Scheduler(Protocol):
    """What knows how the scheduler stands, and can restart it."""

    async def look(self) -> rotation.Scheduler:
        """How it stands now."""
        ...

    async def restart(self, mark: str) -> None:
        """Begin a restart after which it trusts what `mark` stands for; Conflict when it has changed since `look`."""
        ...


class SchedulerDeployment:
    """The scheduler in a Deployment of ours or, when there is none, the cluster's own."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self._kube = kube
        self._store = Store(kube, namespace)
        self._name = name
        self._namespace = namespace
        self._seen: Deployment | None = None

    async def look(self) -> rotation.Scheduler:
        try:
            self._seen = await self._kube.get(paths.DEPLOYMENTS.named(self._name, self._namespace), Deployment)
        except (NotFound, Forbidden):
            self._seen = None
            return rotation.Scheduler(await self._noted(), running=True, restartable=False)
        template = self._seen.spec.template.metadata
        mark = (template.annotation(TRUST_ANNOTATION) if template else "") or await self._noted()
        waiting = not mark and not self._seen.available()
        return rotation.Scheduler(mark, self._seen.rolled_out(), restartable=True, waiting=waiting)

    async def _noted(self) -> str:
        """What is noted on its Secret."""
        secret = await self._store.read(SCHEDULER_CERTIFICATE)
        return secret.metadata.annotation(TRUST_ANNOTATION) if secret else ""

    async def restart(self, mark: str) -> None:
        if self._seen is None:
            raise CertificateError("there is no scheduler of ours to restart")
        metadata = self._seen.metadata
        body = {
            "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version},
            "spec": {"template": {"metadata": {"annotations": {TRUST_ANNOTATION: mark}}}},
        }
        await self._kube.patch(paths.DEPLOYMENTS.named(self._name, self._namespace), body, Deployment)

    async def acknowledge(self, mark: str) -> None:
        """Record that the scheduler has been restarted."""
        secret = await self._store.read(SCHEDULER_CERTIFICATE)
        if secret is None:
            raise CertificateError(f"there is no Secret {SCHEDULER_CERTIFICATE}: nothing to acknowledge")
        await self._store.annotate(secret, TRUST_ANNOTATION, mark)
