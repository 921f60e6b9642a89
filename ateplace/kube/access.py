"""The API server's address and our credentials, kept current while tokens and certificates rotate.

The configuration (`credentials`) is read again when it changes: the mounted token once a minute, by the monotonic
clock, everything else when the API server answers 401 or its certificate is not trusted any more.
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

import yaml

from ateplace.errors import SettingsError
from ateplace.kube import credentials
from ateplace.kube.credentials import Credentials

log = logging.getLogger(__name__)

TOKEN_SECONDS = 60.0
"""The kubelet replaces a token when 80 % of its life (an hour by default) is over: once a minute is often enough."""
PLUGIN_SECONDS = 60.0
"""How long an exec plugin of a kubeconfig may take: people log in through some of them."""
RELOAD_SECONDS = 5.0
"""Least time between two readings after a refusal, so that wrong credentials do not start plugins without end."""

UNUSABLE = (OSError, AttributeError, TypeError, ValueError, yaml.YAMLError)
"""What reading a configuration raises: little of it is checked, and it stumbles over the rest."""


class Access:
    """The address, the TLS context and the credentials; `tls` and `authorization()` are for every new request.

    A changed certificate or CA becomes a new context: the connection pool keeps connections of different contexts
    apart, so that requests under way are not touched.
    """

    def __init__(self, kubeconfig: str) -> None:
        self._kubeconfig = kubeconfig
        self._in_cluster = not kubeconfig and credentials.in_cluster()
        self._read_at = -math.inf
        self._reloading: asyncio.Task[bool] | None = None
        self._reloaded_at = -math.inf
        self._used = Credentials("")
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
                self._use(credentials.service_account())
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
        before = self._used
        try:
            await self._read()
        except UNUSABLE as error:
            log.warning("cannot read the cluster configuration again", extra={"error": str(error)})
        return self._used != before

    async def _read(self) -> None:
        self._read_at = time.monotonic()
        if self._in_cluster:
            self._use(credentials.service_account())
            return
        path = self._kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        async with asyncio.timeout(PLUGIN_SECONDS):
            self._use(await credentials.kubeconfig(path))

    def _use(self, found: Credentials) -> None:
        if self.tls is True or found._replace(authorization="") != self._used._replace(authorization=""):
            self.tls = found.tls()
        self.server = found.server
        self.namespace = found.namespace
        self.server_name = found.server_name
        self.proxy = found.proxy or _proxy(found.server)
        self._authorization = found.authorization
        self._used = found
        log.debug("cluster configuration read", extra={"server": self.server})


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
