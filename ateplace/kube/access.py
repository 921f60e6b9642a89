"""Where the API server is, and how we show who we are.

The Kubernetes client library reads the configuration (ServiceAccount, kubeconfig, exec plugins) and makes the TLS
context; what is added here is that both are read again when they change: the mounted token once a minute, by the
monotonic clock, everything else when the API server answers 401 or its certificate is not trusted any more.
"""

import asyncio
import contextlib
import ipaddress
import logging
import math
import os
import ssl
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, incluster_config, load_kube_config

from ateplace.errors import SettingsError

log = logging.getLogger(__name__)

TOKEN_SECONDS = 60.0
"""The kubelet replaces a token when 80 % of its life (an hour by default) is over: once a minute is often enough."""
PLUGIN_SECONDS = 60.0
"""How long an exec plugin of a kubeconfig may take: people log in through some of them."""
RELOAD_SECONDS = 5.0
"""Least time between two readings after a refusal, so that wrong credentials do not start plugins without end."""

UNUSABLE = (ConfigException, OSError, AttributeError, TypeError, ValueError, yaml.YAMLError)
"""What the library raises about a configuration: it checks little, and stumbles over the rest."""


class Access:
    """The address, the TLS context and the credentials; `tls` and `authorization()` are for every new request.

    A changed certificate or CA becomes a new context: the connection pool keeps connections of different contexts
    apart, so that requests under way are not touched.
    """

    def __init__(self, kubeconfig: str) -> None:
        self._kubeconfig = kubeconfig
        self._in_cluster = not kubeconfig and _in_cluster()
        self._read_at = -math.inf
        self._reloading: asyncio.Task[bool] | None = None
        self._reloaded_at = -math.inf
        self._files: tuple[bytes, ...] = ()
        self._authorization = ""
        self.server = ""
        self.namespace = "default"
        """Where a command looks that is told no namespace: as kubectl, that of the kubeconfig's current context."""
        self.proxy: str | None = None
        self.server_name: str | None = None
        self.tls: ssl.SSLContext | bool = True

    @classmethod
    async def load(cls, kubeconfig: str = "") -> "Access":
        """Read what there is: the file given, else the pod's ServiceAccount, else $KUBECONFIG, else ~/.kube/config."""
        access = cls(kubeconfig)
        try:
            await access._read()
        except UNUSABLE as error:
            where = kubeconfig or ("the pod's ServiceAccount" if access._in_cluster else "the default kubeconfig")
            raise SettingsError(f"cannot use the cluster configuration from {where}: {error}") from error
        return access

    def authorization(self) -> str:
        """The Authorization header's value, or ""; never older than a minute where it comes from a mounted token."""
        if self._in_cluster and time.monotonic() - self._read_at >= TOKEN_SECONDS:
            self._read_at = time.monotonic()
            try:
                self._use(_service_account())
            except UNUSABLE as error:
                log.warning("cannot read the ServiceAccount token again", extra={"error": str(error)})
        return self._authorization

    async def reload(self, refused: str) -> bool:
        """After a refusal of `refused`: is there something newer to show?

        Callers that were refused together share one reading, which goes on when one of them gives up.
        """
        if self._authorization != refused:
            return True
        if self._reloading is None or self._reloading.done():
            if time.monotonic() - self._reloaded_at < RELOAD_SECONDS:
                return False
            self._reloaded_at = time.monotonic()
            self._reloading = asyncio.create_task(self._reload())
        return await asyncio.shield(self._reloading)

    async def close(self) -> None:
        """End a reading that is under way."""
        if self._reloading is not None:
            self._reloading.cancel()
            await asyncio.wait([self._reloading])

    async def _reload(self) -> bool:
        before = self._authorization, self._files
        try:
            await self._read()
        except UNUSABLE as error:
            log.warning("cannot read the cluster configuration again", extra={"error": str(error)})
        return (self._authorization, self._files) != before

    async def _read(self) -> None:
        self._read_at = time.monotonic()
        if self._in_cluster:
            self._use(_service_account())
            return
        path = self._kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        _must_exist(path)
        configuration = Configuration()
        async with asyncio.timeout(PLUGIN_SECONDS):
            loader = await load_kube_config(config_file=path, client_configuration=configuration, persist_config=False)
        self.namespace = loader.current_context["context"].get("namespace") or "default"
        self._use(configuration)

    def _use(self, configuration: Any) -> None:
        self.server = configuration.host.rstrip("/")
        self.server_name = configuration.tls_server_name
        self.proxy = configuration.proxy or _proxy(self.server)
        self._authorization = configuration.api_key.get("BearerToken", "").strip()
        names = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
        files = tuple(Path(name).read_bytes() if name else b"" for name in names)
        if files != self._files or self.tls is True:
            # Python 3.13 refuses CAs without key identifiers, which some clusters have and every Go client takes.
            configuration.disable_strict_ssl_verification = True
            self.tls = RESTClientObject(configuration).ssl_context
            self._files = files


def _in_cluster() -> bool:
    return (
        bool(os.environ.get(incluster_config.SERVICE_HOST_ENV_NAME))
        and Path(incluster_config.SERVICE_TOKEN_FILENAME).is_file()
    )


def _service_account() -> Any:
    configuration = Configuration()
    incluster_config.InClusterConfigLoader(
        token_filename=incluster_config.SERVICE_TOKEN_FILENAME,
        cert_filename=incluster_config.SERVICE_CERT_FILENAME,
        try_refresh_token=False,
    ).load_and_set(configuration)
    return configuration


def _must_exist(paths: str) -> None:
    """$KUBECONFIG may name several files; the library takes an absent one for empty and fails later, unclearly."""
    if not any(path and Path(path).expanduser().is_file() for path in paths.split(os.pathsep)):
        raise FileNotFoundError(f"no such file: {paths}")


def _proxy(server: str) -> str | None:
    """The environment's proxy for this server, looked up once: aiohttp would ask in a thread for every request.

    In no_proxy networks count too, as they do for Go programs: that is how clusters exempt their own addresses.
    """
    url = urllib.parse.urlsplit(server)
    proxies = urllib.request.getproxies()
    if urllib.request.proxy_bypass(url.netloc):
        return None
    try:
        address = ipaddress.ip_address(url.hostname or "")
    except ValueError:
        return proxies.get(url.scheme)
    for exempt in proxies.get("no", "").split(","):
        with contextlib.suppress(ValueError):
            if address in ipaddress.ip_network(exempt.strip(), strict=False):
                return None
    return proxies.get(url.scheme)
