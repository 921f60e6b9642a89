"""A server that echoes lines over TLS with a CertificateSource, and the pairs and clients to try it with."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from ateplace.certs import files
from ateplace.certs.authority import Use, Wanted, issue, make_authority
from ateplace.certs.pem import Pair, load_certificates
from ateplace.certs.source import CertificateSource
from ateplace.process import metrics

NAME = "hook.ns.svc"


CLIENT = "ateplace-scheduler"


SERVER = Wanted(Use.SERVER, (NAME, "localhost"))


LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def now() -> datetime:
    return datetime.now(UTC)


def authority() -> Pair:
    return make_authority(now(), 10)


def write(directory: Path, pair: Pair, *authorities: Pair) -> None:
    bundle = b"".join(each.certificate for each in authorities)
    files.project(directory, {files.CERTIFICATE: pair.certificate, files.KEY: pair.key, files.AUTHORITIES: bundle})


def run(loop: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main)


def trusting(*authorities: Pair, identity: Pair | None = None, directory: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=b"".join(each.certificate for each in authorities).decode())
    if identity is not None and directory is not None:
        path = directory / "client.pem"
        path.write_bytes(identity.key + identity.certificate)
        context.load_cert_chain(path)
    return context


@dataclass
class Echo:
    source: CertificateSource
    port: int
    refusals: list[str]

    async def call(self, context: ssl.SSLContext, name: str | None = NAME) -> int:
        """One call on a connection of its own: the serial number of the certificate that answered."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=name or "")
        try:
            writer.write(b"ping\n")
            answer = await asyncio.wait_for(reader.readline(), 10)
            assert answer == b"ping\n", "the server closed the connection"
            shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            return x509.load_der_x509_certificate(shown).serial_number
        finally:
            writer.transport.abort()


@asynccontextmanager
async def serving(source: CertificateSource) -> AsyncIterator[Echo]:
    """A server that echoes one line, and asks the source about every client first."""
    echo = Echo(source, 0, [])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reason = source.accepts(writer.get_extra_info("ssl_object"))
        if reason:
            echo.refusals.append(reason)
        else:
            writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=source.context)
    echo.port = server.sockets[0].getsockname()[1]
    try:
        yield echo
    finally:
        server.close()


def count(name: str, certificate: str) -> float:
    return metrics.REGISTRY.get_sample_value(f"ateplace_{name}", {"certificate": certificate}) or 0.0


def serial(pair: Pair) -> int:
    return load_certificates(pair.certificate)[0].serial_number


def encrypted(pair: Pair) -> Pair:
    key = serialization.load_pem_private_key(pair.key, None)
    scheme = serialization.BestAvailableEncryption(b"x")
    return Pair(
        pair.certificate,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, scheme),
    )


BAD: dict[str, tuple[str, Callable[[Pair, Pair], tuple[Pair, Pair]]]] = {
    "expired": (
        "it expired",
        lambda ca, _: (issue(ca, SERVER, now() - timedelta(days=2), 1), ca),
    ),
    "not yet valid": (
        "it is not valid before",
        lambda ca, _: (issue(ca, SERVER, now() + timedelta(hours=2), 1), ca),
    ),
    "wrong SAN": (
        f"it does not name {NAME}",
        lambda ca, _: (issue(ca, Wanted(Use.SERVER, ("other.ns.svc",)), now(), 1), ca),
    ),
    "a client's certificate": (
        "it is not for use as a server",
        lambda ca, _: (issue(ca, Wanted(Use.CLIENT, (NAME,)), now(), 1), ca),
    ),
    "wrong CA": (
        "a trial handshake failed: unable to get local issuer certificate",
        lambda ca, _: (issue(authority(), SERVER, now(), 1), ca),
    ),
    "new certificate with the old key": (
        "the key does not belong to the certificate",
        lambda ca, old: (Pair(issue(ca, SERVER, now(), 1).certificate, old.key), ca),
    ),
    "half a certificate": (
        "the certificate cannot be read",
        lambda ca, old: (Pair(old.certificate[:200], old.key), ca),
    ),
    "an encrypted key": ("the key cannot be read", lambda ca, old: (encrypted(old), ca)),
    "an unreadable ca.crt": (
        "the certificate cannot be read",
        lambda ca, _: (issue(ca, SERVER, now(), 1), Pair(b"junk", b"")),
    ),
}


async def until_it_fails(call: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async with asyncio.timeout(30):
        while True:
            await call()
