"""Our Secrets: read, and written only over the version that was read.

ateplace-ca                 tls.crt, tls.key: the current authority; previous.crt: authorities still trusted
ateplace-webhook-tls        tls.crt, tls.key: a leaf; ca.crt: every authority that is trusted
ateplace-extender-tls       the same; its ca.crt also says whose clients get in
ateplace-scheduler-client   the same, for the scheduler
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Final

from cryptography import x509
from msgspec import Struct

from ateplace.certs import files
from ateplace.certs.pem import Pair, load_certificates
from ateplace.errors import CertificateError, NotFound
from ateplace.kube import Kube, paths
from ateplace.kube.objects import Metadata

PREVIOUS: Final = "previous.crt"
TYPE: Final = "kubernetes.io/tls"
LABELS: Final = {"app.kubernetes.io/name": "ateplace", "app.kubernetes.io/component": "certificates"}


class Secret(Struct, rename="camel"):
    """A Secret as far as we read it."""

    metadata: Metadata
    data: dict[str, str] | None = None

    def text(self, key: str) -> bytes:
        """What is stored under a key; empty when nothing is."""
        try:
            return base64.b64decode((self.data or {}).get(key, ""))
        except binascii.Error:
            return b""

    def pair(self) -> Pair:
        return Pair(self.text(files.CERTIFICATE), self.text(files.KEY))

    def certificates(self, key: str) -> list[x509.Certificate]:
        """The certificates under a key; none when they cannot be read."""
        try:
            return load_certificates(self.text(key))
        except CertificateError:
            return []


class Store:
    """The Secrets of one namespace."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace

    async def read(self, name: str) -> Secret | None:
        """The Secret as it is now; None when there is none."""
        try:
            return await self._kube.get(paths.SECRETS.named(name, self._namespace), Secret)
        except NotFound:
            return None

    async def write(
        self,
        name: str,
        over: Secret | None,
        content: Mapping[str, bytes | None],
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Create it, or change these keys (None: remove) of the version `over`; Conflict when it is another by now.

        Keys, labels and annotations that are not ours stay. `annotations` are for one that is created.
        """
        data = {key: None if value is None else base64.b64encode(value).decode() for key, value in content.items()}
        if over is None:
            body: dict[str, object] = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": TYPE,
                "metadata": {"name": name, "labels": LABELS, "annotations": dict(annotations or {})},
                "data": {key: value for key, value in data.items() if value is not None},
            }
            await self._kube.create(paths.SECRETS.within(self._namespace), body, Secret)
            return
        await self._kube.patch(
            paths.SECRETS.named(name, self._namespace), {"metadata": _version(over), "data": data}, Secret
        )

    async def annotate(self, over: Secret, key: str, value: str) -> None:
        """Set one annotation; Conflict as in `write`."""
        metadata = {**_version(over), "annotations": {key: value}}
        await self._kube.patch(paths.SECRETS.named(over.metadata.name, self._namespace), {"metadata": metadata}, Secret)


def _version(secret: Secret) -> dict[str, str]:
    return {"uid": secret.metadata.uid, "resourceVersion": secret.metadata.resource_version}
