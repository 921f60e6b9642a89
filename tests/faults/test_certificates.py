"""Certificates change under load: fifty clients, a new handshake for every call, not one call fails (row 42)."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from ateplace.certs import files
from ateplace.certs.authority import Use, Wanted, issue, make_authority
from ateplace.certs.pem import Pair
from ateplace.certs.source import CertificateSource
from ateplace.process.http_connection import Limits
from ateplace.process.http_server import Server

CLIENTS = 50
NAME = "ateplace-extender.ateplace-system.svc"
CLIENT = "ateplace-scheduler"
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"


async def answer(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


@dataclass
class Seen:
    calls: int = 0
    failures: list[str] = field(default_factory=list)
    certificates: set[bytes] = field(default_factory=set)

    def serials(self) -> set[int]:
        return {x509.load_der_x509_certificate(each).serial_number for each in self.certificates}


async def client(port: int, context: ssl.SSLContext, seen: Seen, enough: asyncio.Event) -> None:
    while not enough.is_set():
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=NAME)
            try:
                seen.certificates.add(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
                writer.write(REQUEST)
                line = await asyncio.wait_for(reader.readline(), 10)
                if line != b"HTTP/1.1 200 OK\r\n":
                    seen.failures.append(repr(line))
            finally:
                writer.transport.abort()
        except OSError as error:
            seen.failures.append(repr(error))
        seen.calls += 1
        await asyncio.sleep(0.05)


def write(directory: Path, pair: Pair, authority: Pair) -> None:
    files.project(
        directory,
        {files.CERTIFICATE: pair.certificate, files.KEY: pair.key, files.AUTHORITIES: authority.certificate},
    )


async def until_shown(seen: Seen, pair: Pair) -> None:
    """Wait until a client was shown this certificate."""
    wanted = x509.load_pem_x509_certificate(pair.certificate).public_bytes(serialization.Encoding.DER)
    try:
        async with asyncio.timeout(30):
            while wanted not in seen.certificates:  # noqa: ASYNC110 - the clients tell nobody
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"a good pair was not shown within 30 s; failed calls: {seen.failures}") from None


async def under_load(tmp_path: Path, seconds: int, bad: Callable[[int, Pair, Pair], Pair] | None) -> Seen:
    """Write a new pair every second (the last one must have been shown), and with `bad` another one before it."""
    directory = tmp_path / "tls"
    now = datetime.now(UTC)
    authority = make_authority(now, 1)
    identity = issue(authority, Wanted(Use.CLIENT, (CLIENT,)), now, 1)
    (tmp_path / "client.pem").write_bytes(identity.key + identity.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.certificate.decode())
    context.load_cert_chain(tmp_path / "client.pem")
    wanted = Wanted(Use.SERVER, (NAME,))
    good = issue(authority, wanted, now, 1)
    write(directory, good, authority)
    source = CertificateSource(directory, client_ca=True, client_name=CLIENT, poll=0.1, names=[NAME], name="load")
    await source.ready()
    following = asyncio.create_task(source.run())
    server = Server(
        answer,
        host="127.0.0.1",
        port=0,
        tls=source.context,
        limits=Limits(body_bytes=1024),
        accepts=source.accepts,
    )
    await server.start()
    seen, enough = Seen(), asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(client(server.port, context, seen, enough))
            await until_shown(seen, good)
            for number in range(seconds):
                if bad is not None:
                    write(directory, bad(number, authority, good), authority)
                    await asyncio.sleep(0.5)
                good = issue(authority, wanted, datetime.now(UTC), 1)
                write(directory, good, authority)
                await asyncio.sleep(1.0 if bad is None else 0.5)
                await until_shown(seen, good)
            enough.set()
    finally:
        await server.stop(5.0)
        following.cancel()
        await asyncio.wait([following])
    return seen


@pytest.mark.timeout(600)
def test_42_a_new_pair_every_second_under_load_costs_no_call(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seen = runner.run(under_load(tmp_path, 30, None))
    print(f"\n{seen.calls} calls, {len(seen.serials())} serials, {len(seen.failures)} failed")
    assert seen.failures == []
    assert len(seen.serials()) == 31
    assert seen.calls > 10 * len(seen.serials()), "each pair was under load, on however busy a machine"


@pytest.mark.timeout(600)
def test_42_bad_pairs_under_load_cost_no_call_and_are_never_shown(tmp_path: Path) -> None:
    shown: list[int] = []

    def bad(number: int, authority: Pair, good: Pair) -> Pair:
        now = datetime.now(UTC)
        wanted = Wanted(Use.SERVER, (NAME,))
        made = (
            Pair(issue(authority, wanted, now, 1).certificate, good.key),
            issue(authority, wanted, now - timedelta(days=3), 1),
            issue(authority, Wanted(Use.SERVER, ("other",)), now, 1),
            issue(make_authority(now, 1), wanted, now, 1),
            Pair(b"", b""),
        )[number % 5]
        if made.certificate:
            shown.append(x509.load_pem_x509_certificate(made.certificate).serial_number)
        return made

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seen = runner.run(under_load(tmp_path, 10, bad))
    print(f"\n{seen.calls} calls, {len(seen.serials())} serials, {len(shown)} bad pairs, {len(seen.failures)} failed")
    assert seen.failures == []
    assert not seen.serials() & set(shown)
    assert len(seen.serials()) == 11
