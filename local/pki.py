"""The local plane's own certificate authority; it lives as long as the plane."""

import base64
import datetime
import ipaddress
import ssl
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOUR = datetime.timedelta(hours=1)
LIFE = datetime.timedelta(days=365)
USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class Pair:
    """A certificate and its key, as PEM."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate = certificate
        self.key = key
        self.certificate_pem = certificate.public_bytes(serialization.Encoding.PEM)
        self.key_pem = key_pem(key)

    def write(self, stem: Path) -> tuple[str, str]:
        """Write STEM.crt and STEM.key; their paths."""
        crt, key = stem.with_suffix(".crt"), stem.with_suffix(".key")
        crt.write_bytes(self.certificate_pem)
        key.touch(mode=0o600)
        key.write_bytes(self.key_pem)
        return str(crt), str(key)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


def authority(name: str) -> Pair:
    """A self-signed CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, subject, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    signing = {"key_cert_sign": True, "crl_sign": True, "digital_signature": True}
    builder = builder.add_extension(x509.KeyUsage(**(dict.fromkeys(USAGES, False) | signing)), True)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def issue(ca: Pair, user: str, groups: tuple[str, ...] = (), hosts: tuple[str, ...] = ()) -> Pair:
    """A certificate for a user (and groups), or for a server on these hosts."""
    key = ec.generate_private_key(ec.SECP256R1())
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject = x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])
    builder = _builder(subject, ca.certificate.subject, key)
    usage = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    builder = builder.add_extension(x509.ExtendedKeyUsage(usage), False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    builder = builder.add_extension(issuer, False)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), False)
    return Pair(builder.sign(ca.key, hashes.SHA256()), key)


def kubeconfig(url: str, ca: Pair, user: Pair | str) -> str:
    """A kubeconfig for a certificate or a bearer token."""
    if isinstance(user, str):
        credentials = {"token": user}
    else:
        credentials = {
            "client-certificate-data": base64.b64encode(user.certificate_pem).decode(),
            "client-key-data": base64.b64encode(user.key_pem).decode(),
        }
    trust = base64.b64encode(ca.certificate_pem).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": {"server": url, "certificate-authority-data": trust}}],
        "users": [{"name": "user", "user": credentials}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "user"}}],
        "current-context": "local",
    }
    return str(yaml.safe_dump(document))


def client_context(ca: Pair, stem: Path | None = None) -> ssl.SSLContext:
    """Trust this CA alone; with `stem`, show the pair written there."""
    context = ssl.create_default_context(cadata=ca.certificate_pem.decode())
    if stem:
        context.load_cert_chain(stem.with_suffix(".crt"), stem.with_suffix(".key"))
    return context


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - HOUR)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return builder.not_valid_after(now + LIFE).add_extension(identifier, False)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
