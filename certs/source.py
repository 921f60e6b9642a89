"""The certificate that a server shows, always the newest good one in a directory.

              ┌────────── unchanged ──────────┐
              v                               │
    poll ──> read ──> changed ──> check ──> good: swapped in (counted)
              ^                     └─────> bad: the one before keeps serving (logged and counted once)
              └───────────────────────────────┘

The server holds one SSLContext for its whole life. New connections are handed the newest context by its
`sni_callback`, which runs with and without SNI; connections that are open keep the one they started with. The
live context itself is never loaded into: a pair that does not match would break every later handshake.
"""

import asyncio
import logging
import ssl
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ateplace.certs import context, files, metrics
from ateplace.certs.pem import load_certificates
from ateplace.errors import CertificateError

log = logging.getLogger(__name__)

REMEMBERED: Final = 64
"""Distinct bad pairs that are not logged again."""
GONE: Final = "gone"


class CertificateSource:
    """A server's certificate and, with `client_ca`, whose clients it accepts, from a directory.

    `names` are DNS names that a pair must carry to be taken; none: any name will do. `name` is the
    certificate's label in logs and metrics.

    The server's owner hands it `context`, and calls `accepts` for every connection right after its
    handshake, before the first byte from the client is looked at: OpenSSL has checked the client's chain by
    then, but not its name, and any other holder of a certificate of this authority would get in.
    """

    def __init__(
        self,
        directory: Path,
        *,
        client_ca: bool,
        client_name: str | None = None,
        poll: float = 1.0,
        names: Sequence[str] = (),
        name: str = "serving",
    ) -> None:
        if client_name is not None and not client_ca:
            raise ValueError("a client's name means nothing without the authority that vouches for it")
        self.directory = directory
        self.name = name
        self.context = context.outer(client_ca=client_ca)
        self.context.sni_callback = self._hand_over
        self._client_ca = client_ca
        self._client_name = client_name
        self._names = tuple(names)
        self._poll = poll
        self._current: ssl.SSLContext | None = None
        self._served = ""
        self._refused: OrderedDict[str, None] = OrderedDict()
        self._lock = asyncio.Lock()
        metrics.BAD_PAIRS.labels(name)  # from 0, or the first one would be no increase

    @property
    def loaded(self) -> bool:
        """Whether there has been a good pair."""
        return self._current is not None

    async def ready(self) -> None:
        """Return once a valid pair has been loaded; `run` need not be running."""
        if not self.loaded:
            log.info("waiting for a certificate", extra={"certificate": self.name, "directory": self.directory})
        while not self.loaded:
            await self.refresh()
            if not self.loaded:
                await asyncio.sleep(self._poll)

    async def run(self) -> None:
        """Follow the directory for ever."""
        while True:
            await self.refresh()
            await asyncio.sleep(self._poll)

    async def refresh(self) -> bool:
        """Look at the directory once; say whether a new pair was taken into service."""
        async with self._lock:
            try:
                return await asyncio.to_thread(self._refresh)
            except Exception as error:  # noqa: BLE001 - no file may end a server that has a good pair
                reason = f"it cannot be looked at: {type(error).__name__}: {error}"
                self._refuse(reason, reason)
                return False

    def accepts(self, connection: ssl.SSLObject | ssl.SSLSocket) -> str:
        """Why this client may not stay; empty when it may. To be asked once, right after the handshake.

        The name must be one of the DNS names of the client's certificate, letter for letter; its common name
        and wildcards do not count. A connection that is refused is to be aborted without an answer.
        """
        if self._client_name is None:
            return ""
        names = (connection.getpeercert() or {}).get("subjectAltName", ())
        given = [str(entry[1]) for entry in names if entry[0] == "DNS"]
        if self._client_name in given:
            return ""
        metrics.REFUSED_CLIENTS.labels(self.name).inc()
        return f"the client is called {', '.join(given) or 'nothing'}, not {self._client_name}"

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None

    def _refresh(self) -> bool:
        digest = GONE
        try:
            material = files.read(self.directory)
            if material is None:
                if self.loaded:
                    self._refuse(digest, "the files are gone")
                return False
            digest = material.digest()
            if digest == self._served:
                return False
            checked = context.check(material, self._names, client_ca=self._client_ca, now=datetime.now(UTC))
        except CertificateError as error:
            self._refuse(digest if digest != GONE else str(error), str(error))
            return False
        self._current, self._served = checked, digest
        self._refused.clear()
        leaf = load_certificates(material.pair.certificate)[0]
        metrics.measure(self.name, leaf)
        metrics.SWAPS.labels(self.name).inc()
        log.info(
            "certificate taken into service",
            extra={
                "certificate": self.name,
                "serial": f"{leaf.serial_number:x}",
                "expires": leaf.not_valid_after_utc,
            },
        )
        return True

    def _refuse(self, digest: str, reason: str) -> None:
        """Log and count a bad pair the first time: it is looked at again on every poll."""
        if digest in self._refused:
            return
        self._refused[digest] = None
        if len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)
        metrics.BAD_PAIRS.labels(self.name).inc()
        log.error("certificate refused", extra={"certificate": self.name, "reason": reason})
