"""The API server's address and our credentials, read once from the pod's ServiceAccount or a kubeconfig.

Kubeconfigs with a certificate or a token are read here, as kubectl reads them. Only where a program or a login provider
has to be asked is the Kubernetes client library used, which knows how: importing it takes a third of a role's start,
and 20 MiB for as long as the process lives.
"""

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import yaml

HOST: Final = "KUBERNETES_SERVICE_HOST"
PORT: Final = "KUBERNETES_SERVICE_PORT"
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
READ_HERE: Final = {
    "token",
    "tokenFile",
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
}
"""What a user of a kubeconfig may have without the client library being asked."""
SECTIONS: Final = {"clusters": "cluster", "contexts": "context", "users": "user"}


class Credentials(NamedTuple):
    server: str
    authorization: str = ""
    ca: bytes = b""
    """PEM; without it the system's authorities are trusted."""
    certificate: bytes = b""
    key: bytes = b""
    verify: bool = True
    server_name: str | None = None
    proxy: str | None = None
    namespace: str = "default"

    def tls(self) -> ssl.SSLContext:
        """The context for connections to this server."""
        # Comments beside the certificates may be in any alphabet; Python takes ASCII only.
        context = ssl.create_default_context(cadata=self.ca.decode("ascii", "backslashreplace") or None)
        # Python 3.13 refuses CAs without key identifiers, which some clusters have and every Go client takes.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.certificate:
            # OpenSSL's interface takes no bytes. Where the system has files in memory, no key is on a disk, not even
            # after a kill.
            with _scratch() as file:
                file.write(self.certificate + b"\n" + self.key)
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}" if isinstance(file.name, int) else file.name)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _scratch() -> IO[bytes]:
    """A file for a moment, which only we can read."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("ateplace"), "wb")
    return tempfile.NamedTemporaryFile()


def in_cluster() -> bool:
    """Whether this is a pod with a ServiceAccount."""
    return bool(os.environ.get(HOST)) and (SERVICE_ACCOUNT / "token").is_file()


def service_account() -> Credentials:
    """What the kubelet has mounted now."""
    host, port = os.environ[HOST], os.environ.get(PORT, "")
    if not port:
        raise ValueError(f"{PORT} is not set")
    token = (SERVICE_ACCOUNT / "token").read_text("utf-8").strip()
    ca = (SERVICE_ACCOUNT / "ca.crt").read_bytes()
    if not token or not ca:
        raise ValueError(f"{SERVICE_ACCOUNT} has an empty token or ca.crt")
    address = f"[{host}]" if ":" in host else host
    return Credentials(f"https://{address}:{port}", f"Bearer {token}", ca)


async def kubeconfig(paths: str) -> Credentials:
    """The current context of a file, or of several as in $KUBECONFIG. OSError, ValueError or a relative of these when
    it cannot be used."""
    try:
        config = Config(paths)
        if set(config.user) <= READ_HERE:
            return config.credentials()
        return await _by_library(paths, config)
    except KeyError as error:
        raise ValueError(f"{error} is missing") from error


class Config:
    """Kubeconfigs merged as kubectl merges them: whichever file has a name first defines it."""

    def __init__(self, paths: str) -> None:
        every = (Path(path).expanduser() for path in paths.split(os.pathsep) if path)
        files = [path for path in every if path.is_file()]
        if not files:
            raise FileNotFoundError(f"no such file: {paths}")
        self.current = ""
        found: dict[str, dict[str, tuple[Any, Path]]] = {section: {} for section in SECTIONS}
        for file in files:
            document = yaml.load(file.read_text("utf-8"), Loader=_LOADER)  # noqa: S506 - a safe loader
            if not isinstance(document, dict):
                raise ValueError(f"{file} is not a kubeconfig")  # noqa: TRY004 - a wrong text, not a wrong argument
            self.current = self.current or document.get("current-context") or ""
            for section, kind in SECTIONS.items():
                for each in document.get(section) or ():
                    found[section].setdefault(each["name"], (each.get(kind) or {}, file.absolute().parent))
        self.context, _ = _named(found["contexts"], "context", self.current)
        self.cluster, self._cluster_at = _named(found["clusters"], "cluster", self.context["cluster"])
        self.user, self._user_at = found["users"].get(self.context.get("user", ""), ({}, Path()))

    def credentials(self, authorization: str = "", certificate: bytes = b"", key: bytes = b"") -> Credentials:
        """With what is given, or else what the user has."""
        cluster, user = self.cluster, self.user
        if not authorization:
            token = user.get("token") or _content(user, "tokenFile", self._user_at).decode()
            authorization = f"Bearer {token.strip()}" if token else ""
        return Credentials(
            server=cluster["server"].rstrip("/"),
            authorization=authorization,
            ca=_content(cluster, "certificate-authority", self._cluster_at),
            certificate=certificate or _content(user, "client-certificate", self._user_at),
            key=key or _content(user, "client-key", self._user_at),
            verify=not cluster.get("insecure-skip-tls-verify", False),
            server_name=cluster.get("tls-server-name"),
            proxy=cluster.get("proxy-url"),
            namespace=self.context.get("namespace") or "default",
        )


_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _named(found: Mapping[str, tuple[Any, Path]], kind: str, name: str) -> tuple[Any, Path]:
    if name not in found:
        raise ValueError(f"there is no {kind} {name!r} in it")
    return found[name]


def _content(of: Mapping[str, Any], field: str, base: Path) -> bytes:
    """A field's bytes: from its `-data`, or from the file that it names."""
    if data := of.get(f"{field}-data"):
        return base64.b64decode(data)
    return (base / of[field]).read_bytes() if of.get(field) else b""


async def _by_library(paths: str, config: Config) -> Credentials:
    from kubernetes.aio.client.configuration import Configuration  # noqa: PLC0415 - see above
    from kubernetes.aio.config import ConfigException, load_kube_config  # noqa: PLC0415

    found = Configuration()
    try:
        await load_kube_config(
            config_file=paths, context=config.current, client_configuration=found, persist_config=False
        )
    except ConfigException as error:
        raise ValueError(str(error)) from error
    authorization = found.api_key.get("BearerToken", "").strip()
    return config.credentials(authorization, _read(found.cert_file), _read(found.key_file))


def _read(path: str | None) -> bytes:
    return Path(path).read_bytes() if path else b""
