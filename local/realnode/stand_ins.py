"""Images for what runs on a real node, made of this machine's static busybox: atelet, ateom, busybox and pause."""

import functools
import shutil
import subprocess
from pathlib import Path
from typing import Literal

from ateplace import settings
from ateplace.errors import LocalError
from ateplace.local.realnode import oci
from ateplace.local.realnode.oci import Entry, Image

ATEOM = "registry.example/ateom:1"
ATELETS = ("registry.example/atelet:1", "registry.example/atelet:v1")
"""As Agent Substrate's stand-ins name them, in either shape."""
PLUGIN = "registry.example/snapshot-plugin:v1"
"""Runs beside atelet in the new shape, which starts once this one answers."""

PT_INTERP = 3

ATELET_SCRIPT = """#!/bin/sh
# Accepts connections on port 8085 and answers /readyz and /healthz on 9090, $DELAY seconds after its start.
trap 'exit 0' TERM
echo "atelet starts"
sleep "${DELAY:-0}" & wait $!
httpd -f -p 9090 -h /www &
nc -ll -p 8085 -e true &
echo "atelet serves"
wait
"""
PLUGIN_SCRIPT = """#!/bin/sh
trap 'exit 0' TERM
httpd -f -p 9091 -h /www &
wait
"""
ATEOM_SCRIPT = """#!/bin/sh
# Runs until it is told to end, then takes its time. Answers /readyz on 8080.
trap 'echo "ateom is told to end"; sleep SECONDS; exit 0' TERM
httpd -p 8080 -h /www
echo "ateom runs: $*"
while :; do sleep 3600 & wait $!; done
"""


def busybox() -> Path | None:
    """The path of a static busybox; None when there is none, or only one that needs libraries."""
    found = shutil.which("busybox")
    return Path(found) if found and is_static(Path(found).read_bytes()) else None


def is_static(program: bytes) -> bool:
    """Whether a 64-bit ELF file asks for no dynamic linker: no segment of its table is of the kind PT_INTERP."""
    if program[:5] != b"\x7fELF\x02":
        return False
    order: Literal["little", "big"] = "little" if program[5] == 1 else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(program[at : at + size], order)

    table, size, count = number(32, 8), number(54, 2), number(56, 2)
    return all(number(table + size * each, 4) != PT_INTERP for each in range(count))


@functools.cache
def images() -> dict[str, Image]:
    """Every image that ateoms need, by the name that manifests and settings have for it."""
    box = root()
    atelet = serving(ATELET_SCRIPT, "atelet")
    return {
        **dict.fromkeys(ATELETS, atelet),
        PLUGIN: serving(PLUGIN_SCRIPT, "plugin"),
        ATEOM: ateom(),
        settings.BUSYBOX: oci.image(box),
        settings.PAUSE: oci.image(box, entrypoint=["/bin/sleep", "infinity"]),
    }


def ateom(end: int = 0) -> Image:
    """An ateom that takes `end` seconds to end."""
    return serving(ATEOM_SCRIPT.replace("SECONDS", str(end)), "ateom")


def serving(script: str, name: str) -> Image:
    """An image that runs a script, with the files that a probe asks its httpd for."""
    files = root() | {name: Entry(script.encode()), "www": Entry()}
    files |= {f"www/{path}": Entry(b"ok\n", mode=0o644) for path in ("readyz", "healthz")}
    return oci.image(files, entrypoint=[f"/{name}"])


def root() -> dict[str, Entry]:
    """The files of a busybox image."""
    program = busybox()
    if program is None:
        raise LocalError("no static busybox here: install the package busybox-static")
    files = {name: Entry() for name in ("bin", "dev", "etc", "proc", "run", "sys")} | {"tmp": Entry(mode=0o1777)}
    files["bin/busybox"] = Entry(program.read_bytes())
    applets = subprocess.run([str(program), "--list"], capture_output=True, text=True, check=True).stdout.split()
    return files | {f"bin/{applet}": Entry(link="busybox") for applet in applets if applet != "busybox"}
