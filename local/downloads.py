"""Fetches official release binaries where they can be had; every byte is checked against a sha256 that is pinned here.

A checksum that comes from the same site as the file proves nothing against that site, so a file without a pin is not
downloaded: it is built from sources that go.sum pins. `ATEPLACE_DOWNLOAD_UNPINNED=1` asks for the site's own checksum
instead.

The base addresses are settings (`ATEPLACE_DOWNLOAD_KUBERNETES`, `ATEPLACE_DOWNLOAD_GITHUB`): a mirror works as well,
and `off` skips this source. `ATEPLACE_DOWNLOAD_PINS` names another file in the format of `pins.txt`.
"""

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx

from ateplace.errors import LocalError
from ateplace.local import cache
from ateplace.local.progress import Say, Ticker
from ateplace.local.versions import ARCH, OS, Binary, chosen

PINS = Path(__file__).with_name("pins.txt")
PATIENCE = 3.0
"""Seconds that a release site may take to answer before we build instead."""


class Silent(LocalError):
    """The site did not answer at all."""


class Release:
    """Where one binary is published: its site, its file, the candidates for its checksum, and whether it is in an
    archive."""

    def __init__(self, binary: Binary) -> None:
        kubernetes = os.environ.get("ATEPLACE_DOWNLOAD_KUBERNETES", "https://dl.k8s.io").rstrip("/")
        github = os.environ.get("ATEPLACE_DOWNLOAD_GITHUB", "https://github.com").rstrip("/")
        version = chosen().of(binary.name)
        self.member = ""
        self.site = github if binary.name in {"etcd", "kwok"} else kubernetes
        if binary.name == "etcd":
            base = f"{github}/etcd-io/etcd/releases/download/{version}"
            stem = f"etcd-{version}-{OS}-{ARCH}"
            self.url = f"{base}/{stem}.tar.gz"
            self.checksums: tuple[str, ...] = (f"{base}/SHA256SUMS",)
            self.member = f"{stem}/etcd"
        elif binary.name == "kwok":
            base = f"{github}/kubernetes-sigs/kwok/releases/download/{version}"
            self.url = f"{base}/kwok-{OS}-{ARCH}"
            self.checksums = (f"{self.url}.sha256", f"{base}/checksums.txt")
        else:
            self.url = f"{kubernetes}/{version}/bin/{OS}/{ARCH}/{binary.name}"
            self.checksums = (f"{self.url}.sha256",)
        self.off = self.url.startswith("off/")
        self.pin = f"{binary.name}-{version}-{OS}-{ARCH}"
        """What the file is called in `pins.txt`."""


def download(binary: Binary, say: Say) -> None:
    """Put one binary into the cache; raise LocalError, saying why, when it cannot be had or is not the right one, and
    Silent when its site is of no use for others either."""
    release = Release(binary)
    if release.off:
        raise Silent(f"{binary.name}: downloads are off")
    try:
        with httpx.Client(timeout=httpx.Timeout(30.0, connect=PATIENCE), follow_redirects=True) as client:
            expected = pinned(release.pin) or _unpinned(client, release)
            with cache.staged(binary.name) as part:
                if release.member:
                    body = io.BytesIO(b"".join(_verified(client, release.url, expected, binary.name, say)))
                    with tarfile.open(fileobj=body) as archive:
                        inside = archive.extractfile(release.member)
                        if inside is None:
                            raise LocalError(f"{release.url} holds no {release.member}")
                        part.write_bytes(inside.read())
                else:
                    _write(part, _verified(client, release.url, expected, binary.name, say))
    except httpx.TransportError as error:
        raise Silent(f"{release.url}: {error or type(error).__name__}") from error
    except (httpx.HTTPError, httpx.InvalidURL, tarfile.TarError, KeyError) as error:
        raise LocalError(f"{release.url}: {error or type(error).__name__}") from error


def pinned(name: str) -> str | None:
    """The sha256 that a release file must have."""
    text = Path(os.environ.get("ATEPLACE_DOWNLOAD_PINS") or PINS).read_text("utf-8")
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return next((words[0].lower() for words in lines if len(words) == 2 and words[1] == name), None)


def _unpinned(client: httpx.Client, release: Release) -> str:
    if os.environ.get("ATEPLACE_DOWNLOAD_UNPINNED") != "1":
        raise LocalError(
            f"{release.pin} is not downloaded: its sha256 is not known here "
            "(ATEPLACE_DOWNLOAD_UNPINNED=1 trusts the checksum of the site that it comes from)"
        )
    return _published(client, release)


def _published(client: httpx.Client, release: Release) -> str:
    name = release.url.rsplit("/", 1)[1]
    for address in release.checksums:
        answer = client.get(address, timeout=PATIENCE)
        if answer.status_code != 200:
            continue
        for line in answer.text.splitlines():
            words = line.split()
            if words and len(words[0]) == 64 and (len(words) == 1 or words[-1].lstrip("*./") == name):
                return words[0].lower()
    raise LocalError(f"{release.url}: no published sha256")


def _verified(client: httpx.Client, url: str, expected: str, name: str, say: Say) -> Iterator[bytes]:
    """The body's chunks; raises at the end, before anything is put in place, when the digest is another."""
    digest, ticker, size = hashlib.sha256(), Ticker(say, every=3.0), 0
    with client.stream("GET", url) as answer:
        answer.raise_for_status()
        say(f"downloading {name}")
        for chunk in answer.iter_bytes():
            digest.update(chunk)
            size += len(chunk)
            ticker(f"{name}: {size >> 20} MiB")
            yield chunk
    if digest.hexdigest() != expected:
        raise LocalError(f"{url}: its sha256 is not the expected one; not used")


def _write(path: Path, chunks: Iterator[bytes]) -> None:
    with path.open("wb") as handle:
        for chunk in chunks:
            handle.write(chunk)
