"""A directory with tls.crt, tls.key and ca.crt, as a kubelet mounts it from a Secret.

A kubelet writes a new version of all files into a directory beside the old one and then turns the link
`..data` over to it, so the three files are only sure to belong together when they are read through one
resolution of that link. Plain files have no such promise: a pair read halfway through its replacement does
not match, and is refused until the other half has been written.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ateplace.certs.pem import Pair
from ateplace.errors import CertificateError

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITIES: Final = "ca.crt"
LINK: Final = "..data"

LARGEST: Final = 1024 * 1024
"""Bytes of one file: a Secret cannot hold more."""
ATTEMPTS: Final = 5
"""Tries to read one version whole while the link is being turned over."""


@dataclass(frozen=True, slots=True)
class Material:
    """What a directory held at one moment."""

    pair: Pair
    authorities: bytes
    """Empty when there is no ca.crt."""

    def digest(self) -> str:
        parts = (self.pair.certificate, self.pair.key, self.authorities)
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def read(directory: Path) -> Material | None:
    """One consistent version; None when there is neither certificate nor key. Raises CertificateError."""
    for _ in range(ATTEMPTS):
        link = directory / LINK
        base = link.resolve() if link.is_symlink() else directory
        try:
            certificate, key, authorities = (_read(base / name) for name in (CERTIFICATE, KEY, AUTHORITIES))
        except OSError as error:
            raise CertificateError(f"{directory} cannot be read: {error.strerror}") from error
        if link.is_symlink() and link.resolve() != base:
            continue
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            raise CertificateError(f"{KEY if key is None else CERTIFICATE} is missing")
        return Material(Pair(certificate, key), authorities or b"")
    raise CertificateError(f"{directory} changes faster than it can be read")


def project(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files the way a kubelet does: readers see all of the old version or all of the new one.

    For processes that run outside a cluster. The version before the last is removed; the last one stays for
    readers that resolved the link a moment ago.
    """
    directory.mkdir(parents=True, exist_ok=True)
    link = directory / LINK
    before = link.resolve() if link.is_symlink() else None
    number = int(before.name.removeprefix("..version-")) + 1 if before else 1
    version = directory / f"..version-{number}"
    version.mkdir(mode=0o700)
    for name, content in files.items():
        descriptor = os.open(version / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    turned = directory / "..data_tmp"
    turned.unlink(missing_ok=True)
    turned.symlink_to(version.name)
    turned.rename(link)
    for name in files:
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"{LINK}/{name}")
    for old in directory.glob("..version-*"):
        if old not in (version, before):
            shutil.rmtree(old)


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except FileNotFoundError:
        return None
    if len(content) > LARGEST:
        raise CertificateError(f"{path.name} is larger than {LARGEST} bytes")
    return content
