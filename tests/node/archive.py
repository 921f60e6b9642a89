"""Reads an image's archive: its configuration, and the files that its layers amount to."""

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"


class Archive:
    """An OCI archive with one image."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as tar:
            self._blobs = {each.name.removeprefix("./"): each for each in tar.getmembers()}
            manifest = self._json(tar, json.loads(self._read(tar, "index.json"))["manifests"][0]["digest"])
            self.config: dict[str, Any] = self._json(tar, manifest["config"]["digest"])
            self.size = sum(layer["size"] for layer in manifest["layers"])
            """Bytes to pull."""
            self._layers = [self._layer(tar, layer["digest"]) for layer in manifest["layers"]]
        self.files: Mapping[str, tarfile.TarInfo] = self._merge()
        """By path, without a leading slash."""

    @property
    def digests(self) -> list[str]:
        """Of the layers, unpacked."""
        found: list[str] = self.config["rootfs"]["diff_ids"]
        return found

    def read(self, path: str) -> bytes:
        """A file's content; where a link leads."""
        member = self.files[path]
        if member.issym() or not (found := self._from[path].extractfile(member)):
            return member.linkname.encode()
        return found.read()

    def _merge(self) -> dict[str, tarfile.TarInfo]:
        found: dict[str, tarfile.TarInfo] = {}
        self._from: dict[str, tarfile.TarFile] = {}
        """The layer of each path."""
        for layer in self._layers:
            members = {each.name.removeprefix("./").rstrip("/"): each for each in layer.getmembers()}
            for name in members:
                place, _, last = name.rpartition("/")
                if last.startswith(WHITEOUT):
                    gone = place if last == OPAQUE else f"{place}/{last.removeprefix(WHITEOUT)}"
                    inside = gone + "/"
                    for path in [path for path in found if path == gone or path.startswith(inside)]:
                        del found[path]
            kept = {name: each for name, each in members.items() if WHITEOUT not in name}
            found |= kept
            self._from |= dict.fromkeys(kept, layer)
        return found

    def _read(self, tar: tarfile.TarFile, name: str) -> bytes:
        found = tar.extractfile(self._blobs[name])
        return found.read() if found else b""

    def _json(self, tar: tarfile.TarFile, digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._read(tar, f"blobs/{digest.replace(':', '/')}"))
        return found

    def _layer(self, tar: tarfile.TarFile, digest: str) -> tarfile.TarFile:
        data = self._read(tar, f"blobs/{digest.replace(':', '/')}")
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return tarfile.open(fileobj=io.BytesIO(data))
