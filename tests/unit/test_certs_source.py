"""A source over real TLS: it serves the newest good pair, and nothing bad ever replaces it."""

import asyncio
import contextlib
import errno
import queue
import ssl
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ateplace.certs import context, files
from ateplace.certs.authority import Use, Wanted, issue, make_authority
from ateplace.certs.pem import Pair, load_certificates
from ateplace.certs.source import CertificateSource
from ateplace.process import metrics
from ateplace.process.http_server import Limits, Server
from tests.unit.certs_echo import (
    BAD,
    CLIENT,
    LOOPS,
    NAME,
    SERVER,
    Echo,
    authority,
    count,
    now,
    run,
    serial,
    serving,
    trusting,
    until_it_fails,
    write,
)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("with_name", [True, False], ids=["SNI", "no SNI"])
def test_a_new_pair_is_served_to_every_new_connection(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], version: ssl.TLSVersion, with_name: bool
) -> None:
    async def main() -> None:
        ca = authority()
        source = CertificateSource(tmp_path, client_ca=False, names=[NAME])
        context = trusting(ca)
        context.minimum_version = context.maximum_version = version
        context.check_hostname = with_name
        async with serving(source) as echo:
            for _ in range(3):
                pair = issue(ca, SERVER, now(), 1)
                write(tmp_path, pair, ca)
                assert await source.refresh()
                assert not await source.refresh()
                assert await echo.call(context, NAME if with_name else None) == serial(pair)

    run(loop, main())


def test_the_source_waits_until_there_is_a_pair(tmp_path: Path) -> None:
    async def main() -> None:
        ca = authority()
        source = CertificateSource(tmp_path / "later", client_ca=False, poll=0.01, name="late")
        waiting = asyncio.create_task(source.ready())
        async with serving(source) as echo:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await echo.call(trusting(ca))
            assert not waiting.done()
            pair = issue(ca, SERVER, now(), 1)
            write(tmp_path / "later", pair, ca)
            await asyncio.wait_for(waiting, 5)
            assert await echo.call(trusting(ca)) == serial(pair)
        assert count("certificate_bad_pairs_total", "late") == 0
        expiry = load_certificates(pair.certificate)[0].not_valid_after_utc.timestamp()
        assert count("certificate_expiry_timestamp_seconds", "late") == expiry
        assert count("certificate_life_seconds", "late") == 86400, "without the hour for clocks that are behind"

    asyncio.run(main())


@pytest.mark.parametrize("case", BAD)
def test_a_bad_pair_never_replaces_a_good_one(tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture) -> None:
    reason, make = BAD[case]

    async def main() -> None:
        ca = authority()
        good = issue(ca, SERVER, now(), 1)
        write(tmp_path, good, ca)
        source = CertificateSource(tmp_path, client_ca=False, names=[NAME], name=case)
        await source.ready()
        write(tmp_path, *make(ca, good))
        async with serving(source) as echo:
            for _ in range(3):
                assert not await source.refresh()
                assert await echo.call(trusting(ca)) == serial(good)
            better = issue(ca, SERVER, now(), 1)
            write(tmp_path, better, ca)
            assert await source.refresh()
            assert await echo.call(trusting(ca)) == serial(better)
        assert count("certificate_bad_pairs_total", case) == 1
        assert count("certificate_swaps_total", case) == 2

    asyncio.run(main())
    logged = [record for record in caplog.records if record.message == "certificate refused"]
    assert [str(record.__dict__["reason"]).startswith(reason) for record in logged] == [True]


@pytest.mark.parametrize("gone", ["all", files.KEY, files.CERTIFICATE])
def test_files_that_go_away_take_nothing_with_them(tmp_path: Path, gone: str) -> None:
    async def main() -> None:
        ca = authority()
        pair = issue(ca, SERVER, now(), 1)
        contents = {files.CERTIFICATE: pair.certificate, files.KEY: pair.key, files.AUTHORITIES: ca.certificate}
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
        source = CertificateSource(tmp_path, client_ca=False, name=f"gone {gone}")
        await source.ready()
        for name in contents if gone == "all" else [gone]:
            (tmp_path / name).unlink()
        async with serving(source) as echo:
            for _ in range(2):
                assert not await source.refresh()
                assert await echo.call(trusting(ca)) == serial(pair)
        assert count("certificate_bad_pairs_total", f"gone {gone}") == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), PermissionError(), RuntimeError("odd")]
)
def test_what_goes_wrong_in_a_look_ends_nothing(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    async def main() -> None:
        ca = authority()
        source = CertificateSource(tmp_path, client_ca=False)
        served = 0
        async with serving(source) as echo:
            for _ in range(2):
                pair = issue(ca, SERVER, now(), 1)
                write(tmp_path, pair, ca)
                with monkeypatch.context() as broken:
                    broken.setattr(context, "check", fail)
                    assert not await source.refresh()
                    assert not await source.refresh()
                if served:
                    assert await echo.call(trusting(ca)) == served
                assert await source.refresh()
                served = serial(pair)
                assert await echo.call(trusting(ca)) == served

    asyncio.run(main())
    logged = [record.__dict__["reason"] for record in caplog.records if record.message == "certificate refused"]
    assert logged == [f"it cannot be looked at: {type(error).__name__}: {error}"] * 2


def test_an_expired_certificate_keeps_serving_and_its_clients_refuse_it(tmp_path: Path) -> None:
    async def main() -> None:
        ca = authority()
        source = CertificateSource(tmp_path, client_ca=False)
        seconds = 5
        while not source.loaded:  # at the first attempt, unless the machine takes so long to look at it
            assert seconds < 30
            write(tmp_path, issue(ca, SERVER, now(), seconds / 86400), ca)
            await source.refresh()
            seconds *= 2
        async with serving(source) as echo:
            with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
                await until_it_fails(lambda: echo.call(trusting(ca)))
            indifferent = trusting(ca)
            indifferent.check_hostname, indifferent.verify_mode = False, ssl.CERT_NONE
            await echo.call(indifferent)

    asyncio.run(main())


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_only_the_pinned_client_of_our_authority_gets_in(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def main() -> None:
        ca, other = authority(), authority()
        write(tmp_path / "tls", issue(ca, SERVER, now(), 1), ca)
        source = CertificateSource(tmp_path / "tls", client_ca=True, client_name=CLIENT)
        await source.ready()

        def client(signer: Pair, use: Use, name: str, made: datetime) -> ssl.SSLContext:
            return trusting(ca, identity=issue(signer, Wanted(use, (name,)), made, 1), directory=tmp_path)

        refused = (ssl.SSLError, ConnectionError, AssertionError)
        async with serving(source) as echo:
            await echo.call(client(ca, Use.CLIENT, CLIENT, now()))
            with pytest.raises(refused):
                await echo.call(trusting(ca))
            for signer, use, name, made in (
                (other, Use.CLIENT, CLIENT, now()),
                (ca, Use.SERVER, CLIENT, now()),
                (ca, Use.CLIENT, CLIENT, now() - timedelta(days=3)),
            ):
                with pytest.raises(refused):
                    await echo.call(client(signer, use, name, made))
            assert echo.refusals == []
            for name in ("other", f"{CLIENT}.example", f"*.{CLIENT}"):
                with pytest.raises(refused):
                    await echo.call(client(ca, Use.CLIENT, name, now()))
            assert echo.refusals == [
                f"the client is called {name}, not {CLIENT}" for name in ("other", f"{CLIENT}.example", f"*.{CLIENT}")
            ]

    run(loop, main())


def test_the_authority_of_clients_is_swapped_with_the_pair(tmp_path: Path) -> None:
    async def main() -> None:
        old, new = authority(), authority()
        source = CertificateSource(tmp_path / "tls", client_ca=True, client_name=CLIENT)
        wanted = Wanted(Use.CLIENT, (CLIENT,))
        by_old = trusting(old, new, identity=issue(old, wanted, now(), 1), directory=tmp_path)
        by_new = trusting(old, new, identity=issue(new, wanted, now(), 1), directory=tmp_path)
        leaf = issue(old, SERVER, now(), 1)
        refused = (ssl.SSLError, ConnectionError, AssertionError)
        async with serving(source) as echo:
            write(tmp_path / "tls", leaf, old)
            await source.refresh()
            await echo.call(by_old)
            with pytest.raises(refused):
                await echo.call(by_new)
            write(tmp_path / "tls", leaf, old, new)
            await source.refresh()
            await echo.call(by_old)
            await echo.call(by_new)
            write(tmp_path / "tls", issue(new, SERVER, now(), 1), new)
            await source.refresh()
            await echo.call(by_new)
            with pytest.raises(refused):
                await echo.call(by_old)

    asyncio.run(main())


def test_clients_need_an_authority(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, issue(authority(), SERVER, now(), 1))
    source = CertificateSource(tmp_path, client_ca=True)
    assert not asyncio.run(source.refresh())
    assert caplog.records[0].__dict__["reason"] == "ca.crt is missing, which says whose clients to accept"
    with pytest.raises(ValueError, match="vouches"):
        CertificateSource(tmp_path, client_ca=False, client_name="x")


def test_a_directory_is_read_whole_while_it_is_turned_over(tmp_path: Path) -> None:
    async def main() -> None:
        ca = authority()
        pairs = [issue(ca, SERVER, now(), 1) for _ in range(4)]
        matching = {pair.certificate: pair.key for pair in pairs}
        write(tmp_path, pairs[0], ca)
        turns: queue.Queue[None] = queue.Queue(files.ATTEMPTS - 2)  # with the one under way fewer than a reader bears

        def turn() -> None:
            for index in range(300):
                turns.get()
                write(tmp_path, pairs[index % 4], ca)

        turning = asyncio.create_task(asyncio.to_thread(turn))
        reads = 0
        while not turning.done():
            material = files.read(tmp_path)
            assert material is not None and matching[material.pair.certificate] == material.pair.key
            reads += 1
            with contextlib.suppress(queue.Full):
                while True:
                    turns.put_nowait(None)
            await asyncio.sleep(0)
        await turning
        assert reads > 10

    asyncio.run(main())


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_whose_certificate_has_expired_is_counted_as_a_refused_handshake(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], version: ssl.TLSVersion
) -> None:
    """The one sign of it: the alert AteplaceSchedulerCannotConnect lives on this."""
    ca = make_authority(now() - timedelta(days=5), 10)
    write(tmp_path / "server", issue(ca, SERVER, now(), 1), ca)
    expired = issue(ca, Wanted(Use.CLIENT, (CLIENT,)), now() - timedelta(days=2), 1)
    context = trusting(ca, identity=expired, directory=tmp_path)
    context.minimum_version = context.maximum_version = version

    async def main() -> None:
        source = CertificateSource(tmp_path / "server", client_ca=True, client_name=CLIENT, names=[NAME])
        await source.ready()
        limits = Limits(body_bytes=1000)
        server = Server(None, host="127.0.0.1", port=0, tls=source.context, limits=limits, accepts=source.accepts)
        await server.start()
        try:
            with pytest.raises((OSError, AssertionError)):  # reset, or closed: the client is not told why
                await Echo(source, server.port, []).call(context)
        finally:
            await server.stop(1)
        labels = {"port": str(server.port), "limit": "handshake"}
        assert metrics.REGISTRY.get_sample_value("ateplace_http_refused_total", labels) == 1

    run(loop, main())
