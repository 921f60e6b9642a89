"""Certificates that others make (cert-manager, a company's authority): RSA keys, intermediates, no ca.crt."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from ateplace.certs import files
from ateplace.certs.source import CertificateSource

NAME = "ateplace-webhook.ateplace-system.svc"


@dataclass
class Party:
    certificate: x509.Certificate
    key: rsa.RSAPrivateKey

    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def make(name: str, issuer: Party | None, *, authority: bool) -> Party:
    """A certificate with what is usual elsewhere: RSA, and no extended key usage."""
    key = rsa.generate_private_key(65537, 2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if not authority:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    return Party(builder.sign(issuer.key if issuer else key, hashes.SHA256()), key)


ROOT = make("root", None, authority=True)
BETWEEN = make("between", ROOT, authority=True)
LEAF = make(NAME, BETWEEN, authority=False)


@pytest.mark.parametrize(
    ("chain", "authorities", "taken"),
    [
        ([LEAF, BETWEEN], [ROOT], True),
        ([LEAF], [BETWEEN], True),
        ([LEAF], [BETWEEN, ROOT], True),
        ([LEAF, BETWEEN], [], True),
        ([LEAF], [ROOT], False),
        ([BETWEEN, LEAF], [ROOT], False),
    ],
    ids=[
        "the chain and its root",
        "only the intermediate is trusted",
        "both are trusted",
        "no ca.crt",
        "the intermediate is missing",
        "in the wrong order",
    ],
)
def test_a_chain_is_taken_when_a_client_can_follow_it(
    tmp_path: Path, chain: list[Party], authorities: list[Party], taken: bool
) -> None:
    key = LEAF.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    content = {
        files.CERTIFICATE: b"".join(each.pem() for each in chain),
        files.KEY: key,
        files.AUTHORITIES: b"".join(each.pem() for each in authorities),
    }
    for name, text in content.items():
        (tmp_path / name).write_bytes(text)
    source = CertificateSource(tmp_path, client_ca=False, names=[NAME], name="foreign")
    assert asyncio.run(source.refresh()) is taken
