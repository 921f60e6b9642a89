"""Whether a real node can run on this machine."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from local import cache
from local.realnode import cgroups, stand_ins
from local.realnode.config import HIDDEN

PROGRAMS = ("containerd", "ctr", "containerd-shim-runc-v2", "runc", "ip", "iptables", "mount", "umount", "unshare")
PACKAGES = "containerd runc containernetworking-plugins iptables iproute2 busybox-static"
CNI_DIRECTORIES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("host-local", "loopback", "portmap", "ptp")

ATTEMPT = """
mount -t tmpfs none "$1"
mkdir "$1/lower" "$1/upper" "$1/work" "$1/merged"
mount -t overlay -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work" none "$1/merged"
ip link add one type veth peer name two
iptables -t nat -A OUTPUT -p tcp -m comment --comment try -j DNAT --to-destination 127.0.0.1:1
"""
"""What a node asks of the kernel, tried in namespaces that end with it."""


class Unfit(NamedTuple):
    """Why no node can run here."""

    reason: str
    """A sentence that says what to do."""
    installable: bool
    """Whether packages are all that is missing."""


def unfit() -> Unfit | None:
    """None when a real node can run here."""
    if sys.platform != "linux":
        return Unfit("a real node needs Linux", False)
    if os.geteuid() != 0:
        return Unfit("a real node needs root, for namespaces, mounts and cgroups: run this as root", False)
    if missing := list(_missing()):
        advice = f"apt-get install --no-install-recommends {PACKAGES}"
        return Unfit(f"a real node needs {', '.join(missing)}: {advice}", True)
    if refused := _refused():
        return Unfit(f"a real node needs what this machine's kernel or sandbox does not give: {refused}", False)
    return None


def _missing() -> Iterable[str]:
    yield from (name for name in PROGRAMS if program(name) is None)
    yield from (f"CNI's {name}" for name in CNI_PLUGINS if not any((each / name).exists() for each in CNI_DIRECTORIES))
    if stand_ins.busybox() is None:
        yield "a static busybox"


def _refused() -> str:
    for path in (Path(tempfile.gettempdir()), Path(sys.prefix), cache.root(), Path(__file__)):
        if over := [place for place in HIDDEN if path.resolve().is_relative_to(place)]:
            return f"{path} is below {over[0]}, which a node has one of its own of (see TMPDIR and ATEPLACE_CACHE)"
    with tempfile.TemporaryDirectory() as place:
        namespaces = ["--mount", "--pid", "--fork", "--net", "--uts", "--ipc", "--cgroup"]
        argv = ["unshare", *namespaces, "sh", "-ec", ATTEMPT, "sh", place]
        done = subprocess.run(argv, capture_output=True, text=True, env=os.environ | {"PATH": search_path()})
    if done.returncode:
        return done.stderr.strip()
    mounted = cgroups.hierarchies()
    controllers = {name for each in mounted for name in each.options.split(",")}
    if all(each.place != cgroups.ROOT for each in mounted) and {"cpu", "cpuset", "memory"} - controllers:
        return "neither cgroup version 2 nor all of version 1 is mounted in /sys/fs/cgroup"
    readonly = [str(each.parent) for each in mounted if not os.access(each.parent, os.W_OK)]
    return f"{', '.join(readonly)} cannot be written" if readonly else ""


def search_path() -> str:
    """PATH, with the directories where a user's lacks what root runs."""
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


def program(name: str) -> str | None:
    """The path of a program that a node runs."""
    return shutil.which(name, path=search_path())


def cni_plugins() -> Path:
    """The directory that has them."""
    return next(each for each in CNI_DIRECTORIES if (each / "ptp").exists())
