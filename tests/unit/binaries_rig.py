"""A machine without binaries: a cache of its own, a stand-in for the go command, and release sites on loopback."""

import contextlib
import hashlib
import http.server
import io
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

from ateplace.local import versions
from ateplace.local.versions import BINARIES, DEFAULT, SUPPORTED

NAMES = sorted(binary.name for binary in BINARIES)
KUBERNETES, ETCD, KWOK, _ = SUPPORTED[DEFAULT]
CLOSED = "http://127.0.0.1:9"
SLOW_GO = """#!/bin/sh
# Stands in for go: answers its version, and "builds" a file slowly.
if [ "$1" = env ]; then echo go1.99.0; exit; fi
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
echo "$out" >> "$GO_CALLS"
echo some/package >&2
printf half > "$out"
sleep "${GO_SECONDS:-0}"
printf whole > "$out"
"""


class Machine:
    """A machine as the binaries module sees it: a cache, a PATH and an environment of its own."""

    def __init__(self, directory: Path) -> None:
        self.cache = directory / "cache"
        self.calls = directory / "calls"
        self.path = directory / "bin"
        self.path.mkdir()
        self.environment = {
            "HOME": str(directory),
            "PATH": f"{self.path}:/usr/bin:/bin",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "ATEPLACE_CACHE": str(self.cache),
            "ATEPLACE_DOWNLOAD_KUBERNETES": CLOSED,
            "ATEPLACE_DOWNLOAD_GITHUB": CLOSED,
            "PIP_NO_INDEX": "1",
            "GO_CALLS": str(self.calls),
        }

    def give_go(self, seconds: float = 0) -> None:
        (self.path / "go").write_text(SLOW_GO)
        (self.path / "go").chmod(0o755)
        self.environment["GO_SECONDS"] = str(seconds)

    def start(self) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "ateplace.local"]
        return subprocess.Popen(command, env=self.environment, stderr=subprocess.PIPE, text=True)

    def run(self) -> tuple[int, str]:
        process = self.start()
        _, said = process.communicate(timeout=60)
        return process.returncode, said

    def cached(self, minor: str = DEFAULT) -> dict[str, str]:
        directory = self.binaries(minor)
        return {path.name: path.read_text() for path in directory.glob("[!.]*")} if directory.exists() else {}

    def hidden(self) -> list[str]:
        return [path.name for path in self.binaries().glob(".*")]

    def binaries(self, minor: str = DEFAULT) -> Path:
        return self.cache / "control-plane" / SUPPORTED[minor].key


@contextlib.contextmanager
def mirror(files: dict[str, bytes]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = files.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:  # a test that fails must not wait for this thread
            server.shutdown()
            thread.join()


def published() -> dict[str, bytes]:
    """The release sites' files, tiny ones."""
    files: dict[str, bytes] = {}
    platform = f"{versions.OS}/{versions.ARCH}"
    for name in NAMES:
        if name.startswith("kube"):
            path = f"/{KUBERNETES}/bin/{platform}/{name}"
            files[path] = b"official " + name.encode()
            files[path + ".sha256"] = hashlib.sha256(files[path]).hexdigest().encode()
    kwok = f"/kubernetes-sigs/kwok/releases/download/{KWOK}/kwok-{platform.replace('/', '-')}"
    files[kwok] = b"official kwok"
    files[kwok + ".sha256"] = hashlib.sha256(b"official kwok").hexdigest().encode()
    stem = f"etcd-{ETCD}-{platform.replace('/', '-')}"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo(f"{stem}/etcd")
        entry.size = len(b"official etcd")
        archive.addfile(entry, io.BytesIO(b"official etcd"))
    base = f"/etcd-io/etcd/releases/download/{ETCD}"
    files[f"{base}/{stem}.tar.gz"] = packed.getvalue()
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    files[f"{base}/SHA256SUMS"] = f"{'0' * 64}  other.tar.gz\n{digest}  {stem}.tar.gz\n".encode()
    return files


def use(machine: Machine, url: str) -> None:
    machine.environment |= {"ATEPLACE_DOWNLOAD_KUBERNETES": url, "ATEPLACE_DOWNLOAD_GITHUB": url}


def pin(machine: Machine, files: dict[str, bytes]) -> None:
    """Pins for all of these files."""
    lines = []
    for path, body in files.items():
        name = path.rpartition("/")[2].removesuffix(".tar.gz")
        if not name.endswith(".sha256") and name != "SHA256SUMS":
            version = "" if name.startswith("etcd") else f"-{KWOK}" if name.startswith("kwok") else f"-{KUBERNETES}"
            program = name.partition("-linux")[0] if name.startswith("kwok") else name
            called = name if not version else f"{program}{version}-{versions.OS}-{versions.ARCH}"
            lines.append(f"{hashlib.sha256(body).hexdigest()}  {called}\n")
    pins = machine.path.parent / "pins.txt"
    pins.write_text("# pins\n" + "".join(lines))
    machine.environment["ATEPLACE_DOWNLOAD_PINS"] = str(pins)
