"""From a pair to a context that is known to work, or a CertificateError that says why not.

The last check is a real handshake in memory between a server with the new context and a client that trusts
ca.crt and asks for our name: whatever OpenSSL dislikes about chain, key or names, it says here and not to the
API server.
"""

import os
import ssl
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import IO, Final

from ateplace.certs.authority import Use, Wanted, flaw
from ateplace.certs.files import Material
from ateplace.certs.pem import Pair, bundle, load_certificates
from ateplace.errors import CertificateError

ROUNDS: Final = 10
"""Turns of a handshake in memory; it takes three."""


def check(material: Material, names: Sequence[str], *, client_ca: bool, now: datetime) -> ssl.SSLContext:
    """A fresh server context for this material, after every check that can be made. Blocks for milliseconds.

    Without ca.crt (a public authority's certificate) the chain is not verified; with `client_ca` it must be
    there.
    """
    reason = flaw(material.pair, Wanted(Use.SERVER, tuple(names)), now)
    if reason:
        raise CertificateError(reason)
    if client_ca and not material.authorities.strip():
        raise CertificateError("ca.crt is missing, which says whose clients to accept")
    try:
        context = _server(material, client_ca=client_ca)
        if material.authorities.strip():
            for name in names or (None,):
                _shake_hands(_server(material, client_ca=False), _client(material.authorities, name), name)
    except (ssl.SSLError, ValueError) as error:
        raise CertificateError(f"a trial handshake failed: {_said(error)}") from error
    return context


def outer(*, client_ca: bool) -> ssl.SSLContext:
    """An empty server context, with what a connection takes from the context it starts with.

    A connection's verify mode, versions and tickets come from there and stay when `sni_callback` gives it
    another context; the certificate and the trusted authorities come from that other one. There are no
    tickets: a resumed session would skip the check of a client's certificate, and our clients (Go) keep none.
    With client certificates TLS 1.3 is the least, because OpenSSL's TLS 1.2 server also resumes sessions by
    number.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if client_ca else ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_REQUIRED if client_ca else ssl.CERT_NONE
    return context


def _server(material: Material, *, client_ca: bool) -> ssl.SSLContext:
    context = outer(client_ca=client_ca)
    _load(context, material.pair)
    if client_ca:
        _trust(context, material.authorities)
    return context


def _client(authorities: bytes, name: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = name is not None
    _trust(context, authorities)
    return context


def _trust(context: ssl.SSLContext, authorities: bytes) -> None:
    # Go trusts an intermediate in its pool as it does a root; so do we, or a check here would be the stricter
    # one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=bundle(load_certificates(authorities)).decode())


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    # The module `ssl` reads pairs from files only. The bytes that were checked are the ones to load, so not
    # the mounted files, which may have changed since. The copy is in memory where that is possible: a
    # container's root file system is read-only, and a key has no business on a disk.
    content = pair.key.rstrip() + b"\n" + pair.certificate
    with _in_memory() if hasattr(os, "memfd_create") else tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        path = file.name if isinstance(file.name, str) else f"/proc/self/fd/{file.fileno()}"
        context.load_cert_chain(path, password=lambda: "")


def _in_memory() -> IO[bytes]:
    return os.fdopen(os.memfd_create("pair"), "wb")


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(ROUNDS):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    if any(end.version() is None for end in ends):
        raise CertificateError("a trial handshake did not come to an end")


def _said(error: Exception) -> str:
    return getattr(error, "verify_message", "") or getattr(error, "reason", "") or str(error)
