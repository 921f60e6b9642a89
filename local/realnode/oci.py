"""Container images made of bytes: archives that containerd imports, without a registry or a builder.

The same files give the same bytes, and so the same digests.
"""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ateplace.local.versions import ARCH

OCI = "application/vnd.oci.image"


class Entry(NamedTuple):
    """A file with content, a symbolic link, or a directory when it has neither."""

    content: bytes | None = None
    link: str = ""
    mode: int = 0o755


class Image(NamedTuple):
    """A manifest's descriptor, and the blobs by digest."""

    descriptor: dict[str, object]
    blobs: dict[str, bytes]


def image(files: Mapping[str, Entry], *, entrypoint: Iterable[str] = (), path: str = "/bin") -> Image:
    """An image of one layer."""
    layer = _tar(files)
    packed = gzip.compress(layer, 1, mtime=0)
    config = _json(
        architecture=ARCH,
        os="linux",
        config={"Env": [f"PATH={path}"], "Entrypoint": list(entrypoint)},
        rootfs={"type": "layers", "diff_ids": [_digest(layer)]},
    )
    manifest = _json(
        schemaVersion=2,
        mediaType=f"{OCI}.manifest.v1+json",
        config=_descriptor("config.v1+json", config),
        layers=[_descriptor("layer.v1.tar+gzip", packed)],
    )
    blobs = {_digest(blob): blob for blob in (packed, config, manifest)}
    return Image(_descriptor("manifest.v1+json", manifest), blobs)


def archive(target: Path, images: Mapping[str, Image]) -> None:
    """Write images under their full names, `docker.io/library/busybox:1.37`, into one file."""
    named = [{**each.descriptor, "annotations": {"io.containerd.image.name": name}} for name, each in images.items()]
    files = {
        "oci-layout": _json(imageLayoutVersion="1.0.0"),
        "index.json": _json(schemaVersion=2, mediaType=f"{OCI}.index.v1+json", manifests=named),
    }
    for each in images.values():
        files |= {f"blobs/{digest.replace(':', '/')}": blob for digest, blob in each.blobs.items()}
    target.write_bytes(_tar({name: Entry(content, mode=0o644) for name, content in files.items()}))


def _tar(files: Mapping[str, Entry]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, entry in sorted(files.items()):
            header = tarfile.TarInfo(name)
            header.mode = entry.mode
            if entry.content is not None:
                header.size = len(entry.content)
            elif entry.link:
                header.type, header.linkname = tarfile.SYMTYPE, entry.link
            else:
                header.type = tarfile.DIRTYPE
            tar.addfile(header, io.BytesIO(entry.content or b""))
    return raw.getvalue()


def _descriptor(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": f"{OCI}.{kind}", "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(**fields: object) -> bytes:
    return json.dumps(fields, sort_keys=True).encode()
