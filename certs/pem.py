"""Reading PEM texts that others may have written: whatever is wrong with one becomes a CertificateError."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

from ateplace.errors import CertificateError

FOREIGN_ERRORS: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What `cryptography` raises for bytes that are not what they should be."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate (its chain may follow it) and its private key, both PEM."""

    certificate: bytes
    key: bytes


def load_pair(pair: Pair) -> x509.Certificate:
    """The leaf of a pair, once it is sure that the key belongs to it."""
    leaf = load_certificates(pair.certificate)[0]
    try:
        same = _encoded(load_key(pair.key).public_key()) == _encoded(leaf.public_key())
    except FOREIGN_ERRORS as error:
        raise CertificateError(f"the key cannot be compared with the certificate: {error}") from error
    if not same:
        raise CertificateError("the key does not belong to the certificate")
    return leaf


def load_certificates(pem: bytes) -> list[x509.Certificate]:
    """Every certificate in a PEM text, at least one."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except FOREIGN_ERRORS as error:
        raise CertificateError(f"the certificate cannot be read: {error}") from error


def load_key(pem: bytes) -> PrivateKeyTypes:
    """The private key in a PEM text; an encrypted one counts as unreadable."""
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except FOREIGN_ERRORS as error:
        raise CertificateError(f"the key cannot be read: {error}") from error


def issuer_of(leaf: x509.Certificate, authorities: Iterable[x509.Certificate]) -> x509.Certificate | None:
    """The one of `authorities` that signed this leaf."""
    for authority in authorities:
        try:
            leaf.verify_directly_issued_by(authority)
        except (*FOREIGN_ERRORS, InvalidSignature):
            continue
        return authority
    return None


def fingerprint(certificate: x509.Certificate) -> str:
    """How a certificate is told from every other one."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def bundle(certificates: Sequence[x509.Certificate]) -> bytes:
    """Certificates as one PEM text."""
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


def dns_names(certificate: x509.Certificate) -> list[str]:
    """The DNS names in a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (*FOREIGN_ERRORS, x509.ExtensionNotFound):
        return []
    return names.get_values_for_type(x509.DNSName)


def _encoded(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
