"""containerd 2, built from its Go module: image volumes need it, and so does kubelet's `EventedPLEG`.

Debian 12 has containerd 1.6, with which kubelet runs up to version 1.37; by its sources, the next one asks for a
runtime that can say its cgroup driver. Debian's runc serves both.
"""

from pathlib import Path
from typing import Final

from ateplace.local import cache, golang
from ateplace.local.progress import Say, say
from ateplace.local.versions import ARCH, OS, Binary

VERSION: Final = "v2.4.2"
"""The same as in `gomod/go.mod`."""
MODULE: Final = Path(__file__).parent / "gomod"
TAGS: Final = "no_btrfs no_devmapper no_zfs no_aufs"
"""Snapshotters that a node does not use; some of them would need C libraries."""
PROGRAMS: Final = tuple(
    Binary(name, f"github.com/containerd/containerd/v2/cmd/{name}")
    for name in ("containerd", "containerd-shim-runc-v2", "ctr")
)


def directory(say: Say = say) -> Path:
    """Where containerd, its shim and `ctr` are, after building what is missing; LocalError says why that failed."""
    place = cache.root() / "containerd" / f"{VERSION}_{OS}-{ARCH}"
    if not _complete(place):
        with cache.locked(say):
            go = golang.find_go(say)
            for program in PROGRAMS:
                say(f"building {program.name} {VERSION} from source (all of it takes about two minutes on two cores)")
                with cache.staged(program.name, place) as part:
                    command = [str(go), "build", "-C", str(MODULE), "-ldflags", "-s -w", "-tags", TAGS]
                    golang.compile_into(part, command, program, say)
    return place


def _complete(place: Path) -> bool:
    return all((place / program.name).exists() for program in PROGRAMS)
