"""Certificates are made right, and judged right."""

import base64
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given, settings
from hypothesis import strategies as st

from ateplace.certs.authority import (
    BACKDATE,
    Use,
    Wanted,
    authority_flaw,
    flaw,
    issue,
    make_authority,
    needs_renewal,
    renewal_time,
)
from ateplace.certs.pem import Pair, dns_names, fingerprint, issuer_of, load_certificates, load_pair
from ateplace.errors import CertificateError

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
SERVER = Wanted(Use.SERVER, ("hook.ns.svc", "hook.ns.svc.cluster.local", "localhost"), ("127.0.0.1", "::1"))
CLIENT = Wanted(Use.CLIENT, ("scheduler",))

AUTHORITY = make_authority(NOW, 3650)
OTHER = make_authority(NOW, 3650)
ROOT = load_pair(AUTHORITY)
LEAF = issue(AUTHORITY, SERVER, NOW, 30)
CLIENT_LEAF = issue(AUTHORITY, CLIENT, NOW, 30)


def test_an_authority_may_sign_leaves_and_nothing_else() -> None:
    extensions = ROOT.extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    assert (usage.critical, usage.value.key_cert_sign, usage.value.digital_signature) == (True, True, False)
    assert ROOT.not_valid_before_utc == NOW - BACKDATE
    assert ROOT.not_valid_after_utc == NOW + 3650 * DAY
    assert ROOT.subject != load_pair(OTHER).subject


@pytest.mark.parametrize(
    ("pair", "wanted", "purpose"),
    [
        (LEAF, SERVER, ExtendedKeyUsageOID.SERVER_AUTH),
        (CLIENT_LEAF, CLIENT, ExtendedKeyUsageOID.CLIENT_AUTH),
    ],
    ids=["server", "client"],
)
def test_a_leaf_says_what_it_is_for(pair: Pair, wanted: Wanted, purpose: x509.ObjectIdentifier) -> None:
    leaf = load_pair(pair)
    key = leaf.public_key()
    extensions = leaf.extensions
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    alternative = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    signer = extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [purpose]
    assert (usage.digital_signature, usage.key_cert_sign) == (True, False)
    assert dns_names(leaf) == list(wanted.dns)
    assert tuple(map(str, alternative.get_values_for_type(x509.IPAddress))) == wanted.addresses
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert signer.key_identifier == ROOT.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert (leaf.not_valid_before_utc, leaf.not_valid_after_utc) == (NOW - BACKDATE, NOW + 30 * DAY)


def test_leaves_pass_the_strict_verifier_of_cryptography() -> None:
    policy = PolicyBuilder().store(Store([ROOT])).time(NOW)
    policy.build_server_verifier(x509.DNSName("hook.ns.svc")).verify(load_pair(LEAF), [])
    policy.build_client_verifier().verify(load_pair(CLIENT_LEAF), [])


def test_serials_are_random_and_positive() -> None:
    serials = {load_pair(issue(AUTHORITY, CLIENT, NOW, 30)).serial_number for _ in range(50)}
    assert len(serials) == 50
    assert all(0 < serial < 2**159 for serial in serials)


def test_a_leaf_never_outlives_its_authority() -> None:
    short = make_authority(NOW, 1)
    assert load_pair(issue(short, SERVER, NOW, 30)).not_valid_after_utc == NOW + DAY


FLAWS = [
    ("there is no certificate", None, SERVER, NOW),
    ("the certificate cannot be read", Pair(b"junk", LEAF.key), SERVER, NOW),
    ("the key cannot be read", Pair(LEAF.certificate, b""), SERVER, NOW),
    ("the key does not belong to the certificate", Pair(LEAF.certificate, CLIENT_LEAF.key), SERVER, NOW),
    ("it expired at 2026-12-16T12:00:00Z", LEAF, SERVER, NOW + 30 * DAY),
    ("it is not valid before 2026-11-16T11:00:00Z", LEAF, SERVER, NOW - 2 * BACKDATE),
    ("it does not name other.ns.svc", LEAF, Wanted(Use.SERVER, ("other.ns.svc",)), NOW),
    ("it is not for use as a client", LEAF, Wanted(Use.CLIENT, ("localhost",)), NOW),
    ("it names no DNS name", AUTHORITY, SERVER, NOW),
]


@pytest.mark.parametrize(("reason", "pair", "wanted", "now"), FLAWS, ids=[row[0] for row in FLAWS])
def test_a_flaw_is_found_and_named(reason: str, pair: Pair | None, wanted: Wanted, now: datetime) -> None:
    found = flaw(pair, wanted, now)
    assert found is not None and found.startswith(reason)
    assert needs_renewal(pair, wanted, [ROOT], now) == found


def test_a_young_leaf_of_a_known_authority_needs_no_renewal() -> None:
    assert needs_renewal(LEAF, SERVER, [load_pair(OTHER), ROOT], NOW) == ""


def test_a_leaf_of_another_authority_needs_renewal() -> None:
    assert needs_renewal(LEAF, SERVER, [load_pair(OTHER)], NOW) == "it is signed by an unknown authority"


def test_a_wildcard_covers_one_label() -> None:
    pair = issue(AUTHORITY, Wanted(Use.SERVER, ("*.ns.svc",)), NOW, 30)
    assert flaw(pair, Wanted(Use.SERVER, ("hook.ns.svc",)), NOW) == ""
    assert flaw(pair, Wanted(Use.SERVER, ("a.hook.ns.svc",)), NOW) == "it does not name a.hook.ns.svc"


def test_renewal_is_due_shortly_before_two_thirds_of_a_life_and_not_for_all_at_once() -> None:
    leaves = [issue(AUTHORITY, CLIENT, NOW, 30) for _ in range(40)]
    moments = [renewal_time(load_pair(pair)) for pair in leaves]
    assert all(NOW + 18.5 * DAY <= moment <= NOW + 20 * DAY for moment in moments)
    assert len(set(moments)) > 20
    for pair, moment in zip(leaves, moments, strict=True):
        assert needs_renewal(pair, CLIENT, [ROOT], moment - timedelta(seconds=1)) == ""
        assert needs_renewal(pair, CLIENT, [ROOT], moment) == f"renewal was due at {moment:%Y-%m-%dT%H:%M:%SZ}"


def test_the_backdated_hour_does_not_age_a_certificate_of_minutes() -> None:
    pair = issue(AUTHORITY, CLIENT, NOW, 1 / 24 / 60)
    assert needs_renewal(pair, CLIENT, [ROOT], NOW + timedelta(seconds=30)) == ""
    assert needs_renewal(pair, CLIENT, [ROOT], NOW + timedelta(seconds=41)) is not None


def test_the_authority_is_judged_too() -> None:
    assert authority_flaw(AUTHORITY, NOW) == ""
    assert authority_flaw(None, NOW) == "there is no authority"
    assert authority_flaw(LEAF, NOW) == "it is not an authority's certificate"
    assert authority_flaw(Pair(AUTHORITY.certificate, OTHER.key), NOW)
    assert authority_flaw(AUTHORITY, NOW + 3651 * DAY) == "it expired at 2036-11-13T12:00:00Z"


def test_an_authority_whose_key_we_cannot_sign_with_is_none() -> None:
    key = rsa.generate_private_key(65537, 2048)
    builder = (
        x509.CertificateBuilder()
        .subject_name(ROOT.subject)
        .issuer_name(ROOT.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    encoding, shape = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    pair = Pair(
        builder.sign(key, hashes.SHA256()).public_bytes(encoding),
        key.private_bytes(encoding, shape, serialization.NoEncryption()),
    )
    assert authority_flaw(pair, NOW) == "its key is not an elliptic-curve key"
    with pytest.raises(CertificateError, match="not an elliptic-curve key"):
        issue(pair, SERVER, NOW, 1)


def test_the_issuer_is_found_by_signature_and_authorities_are_told_apart() -> None:
    assert issuer_of(load_pair(LEAF), [load_pair(OTHER), ROOT]) is ROOT
    assert issuer_of(load_pair(LEAF), []) is None
    assert fingerprint(ROOT) != fingerprint(load_pair(OTHER))


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@settings(max_examples=300, deadline=None)
@given(position=st.integers(0, len(LEAF.certificate) - 1), junk=st.binary(max_size=8), key=st.booleans())
def test_a_damaged_pair_is_a_reason_and_never_an_exception(position: int, junk: bytes, key: bool) -> None:
    def damaged(pem: bytes) -> bytes:
        return pem[:position] + junk + pem[position + len(junk) :]

    pair = Pair(LEAF.certificate, damaged(LEAF.key)) if key else Pair(damaged(LEAF.certificate), LEAF.key)
    found = needs_renewal(pair, SERVER, [ROOT], NOW)
    assert isinstance(found, str)


def test_a_certificate_of_a_version_that_nobody_knows_is_a_reason_too() -> None:
    der = load_pair(LEAF).public_bytes(serialization.Encoding.DER)
    body = base64.encodebytes(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x09", 1))
    pem = b"-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n"
    assert needs_renewal(Pair(pem, LEAF.key), SERVER, [ROOT], NOW) is not None


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"])
def test_texts_without_a_certificate_are_refused(text: bytes) -> None:
    with pytest.raises(CertificateError):
        load_certificates(text)
