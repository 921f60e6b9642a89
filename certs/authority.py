"""Making certificates, and judging them. No I/O, no clock: the time is an argument.

    authority ──issue(wanted)──> Pair ──flaw() / needs_renewal()──> reason | ""

A certificate's life is counted from the moment it was made, an hour (BACKDATE) after its `notBefore`: the
hour is for clocks that are behind, and must not make a short-lived certificate look old on its first day.
Renewal falls due at two thirds of that life, less a jitter that is derived from the serial number: replicas
agree on it, restarts do not move it, and certificates made in the same second still fall due apart.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ateplace.certs.pem import FOREIGN_ERRORS, Pair, dns_names, issuer_of, load_key, load_pair
from ateplace.errors import CertificateError

BACKDATE: Final = timedelta(hours=1)
RENEW_AT: Final = 2 / 3
JITTER: Final = 0.05
"""Largest part of a life by which renewal comes before two thirds of it."""
FOREIGN_KEY: Final = "its key is not an elliptic-curve key"
"""What no authority of ours has; one put in place by hand may."""


class Use(StrEnum):
    """What a leaf certificate is for."""

    SERVER = "server"
    CLIENT = "client"


PURPOSE: Final = {Use.SERVER: ExtendedKeyUsageOID.SERVER_AUTH, Use.CLIENT: ExtendedKeyUsageOID.CLIENT_AUTH}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a leaf certificate must say."""

    use: Use
    dns: tuple[str, ...]
    addresses: tuple[str, ...] = ()


def make_authority(now: datetime, days: float) -> Pair:
    """A new self-signed authority. Its name is unique: two of them in one bundle are never confused."""
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _name(f"ateplace-ca-{identifier.digest.hex()[:12]}")
    builder = _builder(name, name, key, now, now + timedelta(days=days), signed_by=identifier)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _sign(builder.add_extension(_key_usage(authority=True), critical=True), key, key)


def issue(authority: Pair, wanted: Wanted, now: datetime, days: float) -> Pair:
    """A new leaf with a new key, signed by `authority`, which it never outlives."""
    issuer = load_pair(authority)
    signer = load_key(authority.key)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"the authority cannot sign: {FOREIGN_KEY}")
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in wanted.dns]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in wanted.addresses]
    until = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    builder = (
        _builder(_name(wanted.dns[0]), issuer.subject, key, now, until, signed_by=identifier)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([PURPOSE[wanted.use]]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return _sign(builder, key, signer)


def flaw(pair: Pair | None, wanted: Wanted, now: datetime) -> str:
    """Why this pair cannot serve its purpose now; empty when it can. Who signed it is not looked at."""
    if pair is None:
        return "there is no certificate"
    try:
        leaf = load_pair(pair)
    except CertificateError as error:
        return str(error)
    return _out_of_time(leaf, now) or _unfit(leaf, wanted)


def needs_renewal(pair: Pair | None, wanted: Wanted, authorities: Iterable[x509.Certificate], now: datetime) -> str:
    """Why a new leaf must be made; empty when this one is good, known by its signer, and young enough."""
    reason = flaw(pair, wanted, now)
    if reason or pair is None:
        return reason
    leaf = load_pair(pair)
    if issuer_of(leaf, authorities) is None:
        return "it is signed by an unknown authority"
    return due(leaf, now)


def authority_flaw(pair: Pair | None, now: datetime) -> str:
    """Why this cannot be used as an authority now; empty when it can."""
    if pair is None:
        return "there is no authority"
    try:
        certificate = load_pair(pair)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except CertificateError as error:
        return str(error)
    except (*FOREIGN_ERRORS, x509.ExtensionNotFound) as error:
        return f"it is not an authority's certificate: {error}"
    if not constraints.ca:
        return "it is not an authority's certificate"
    if not isinstance(certificate.public_key(), ec.EllipticCurvePublicKey):
        return FOREIGN_KEY
    return _out_of_time(certificate, now)


def due(certificate: x509.Certificate, now: datetime) -> str:
    """Whether renewal has fallen due by age, as a reason."""
    moment = renewal_time(certificate)
    return f"renewal was due at {moment:%Y-%m-%dT%H:%M:%SZ}" if now >= moment else ""


def renewal_time(certificate: x509.Certificate) -> datetime:
    """When renewal falls due: see the module's docstring."""
    lives = life(certificate)
    made = certificate.not_valid_after_utc - lives
    return made + lives * (RENEW_AT - JITTER * (certificate.serial_number % 1000) / 1000)


def life(certificate: x509.Certificate) -> timedelta:
    """How long it is good from the moment it was made."""
    whole = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return whole - BACKDATE if whole > BACKDATE else whole


def _out_of_time(certificate: x509.Certificate, now: datetime) -> str:
    if now >= certificate.not_valid_after_utc:
        return f"it expired at {certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
    if now < certificate.not_valid_before_utc:
        return f"it is not valid before {certificate.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}"
    return ""


def _unfit(leaf: x509.Certificate, wanted: Wanted) -> str:
    names = {name.lower() for name in dns_names(leaf)}
    if not names:
        return "it names no DNS name"
    for name in wanted.dns:
        if name.lower() not in names and f"*.{name.lower().partition('.')[2]}" not in names:
            return f"it does not name {name}"
    try:
        purposes = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return ""
    except FOREIGN_ERRORS as error:
        return f"its extensions cannot be read: {error}"
    return "" if PURPOSE[wanted.use] in purposes else f"it is not for use as a {wanted.use.value}"


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    until: datetime,
    *,
    signed_by: x509.SubjectKeyIdentifier,
) -> x509.CertificateBuilder:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signed_by)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - BACKDATE)
        .not_valid_after(until.astimezone(UTC))
        .add_extension(identifier, critical=False)
        .add_extension(signer, critical=False)
    )


def _sign(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> Pair:
    encoding, shape = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return Pair(
        builder.sign(signer, hashes.SHA256()).public_bytes(encoding),
        key.private_bytes(encoding, shape, serialization.NoEncryption()),
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])
