"""Whether a real node can run on this machine."""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ateplace.local import cache
from ateplace.local.realnode import cgroups, config, stand_ins
from ateplace.local.realnode.config import HIDDEN

PROGRAMS = ("containerd", "ctr", "containerd-shim-runc-v2", "runc", "ip", "iptables", "mount", "umount", "unshare")
PACKAGES = "containerd runc containernetworking-plugins iptables iproute2 busybox-static"
CNI_DIRECTORIES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("host-local", "loopback", "portmap", "ptp")
PATIENCE = 180.0
"""Seconds for the attempt at a container."""

ATTEMPT = """
cd "$1"
: </dev/kmsg
mount -t tmpfs none mounted
mkdir mounted/lower mounted/upper mounted/work mounted/merged
cp -R bundle mounted/lower
mount -t overlay -o lowerdir=mounted/lower,upperdir=mounted/upper,workdir=mounted/work none mounted/merged
ip link add one type veth peer name two
iptables -t nat -A OUTPUT -m addrtype --dst-type LOCAL -m comment --comment a -p tcp -j DNAT --to-destination 127.0.0.1
iptables -t nat -A POSTROUTING -m statistic --mode random --probability 0.5 -j MASQUERADE
iptables -A FORWARD -m conntrack --ctstate INVALID -j DROP
runc run --bundle mounted/merged/bundle attempt </dev/null
"""
"""What kubelet, kube-proxy, CNI and containerd ask of the kernel, tried where a node would run: a container with
limits, on an overlay."""


def unfit() -> str:
    """Why no real node can run here, in a sentence that says what to do; empty when one can."""
    if sys.platform != "linux":
        return "a real node needs Linux"
    if os.geteuid() != 0:
        return "a real node needs root, for namespaces, mounts and cgroups: run this as root"
    if missing := list(_missing()):
        return f"a real node needs {', '.join(missing)}: apt-get install --no-install-recommends {PACKAGES}"
    if refused := _refused():
        return f"a real node needs what this machine's kernel or sandbox does not give: {refused}"
    return ""


def _missing() -> Iterable[str]:
    yield from (name for name in PROGRAMS if program(name) is None)
    yield from (f"CNI's {name}" for name in CNI_PLUGINS if not any((each / name).exists() for each in CNI_DIRECTORIES))
    if stand_ins.busybox() is None:
        yield "a static busybox"


def _refused() -> str:
    for path in (Path(tempfile.gettempdir()), Path(sys.prefix), cache.root(), Path(__file__)):
        if over := [place for place in HIDDEN if path.resolve().is_relative_to(place)]:
            return f"{path} is below {over[0]}, which a node has one of its own of (see TMPDIR and ATEPLACE_CACHE)"
    mounted = cgroups.hierarchies()
    controllers = {name for each in mounted for name in each.options.split(",")}
    if all(each.place != cgroups.ROOT for each in mounted) and {"cpu", "cpuset", "memory"} - controllers:
        return "neither cgroup version 2 nor all of version 1 is mounted in /sys/fs/cgroup"
    return _attempt()


@functools.cache
def _attempt() -> str:
    """What goes wrong when a node's namespaces, mounts and cgroups are made and a container runs in them."""
    with tempfile.TemporaryDirectory() as place:
        bundle = Path(place, "bundle")
        (bundle / "rootfs").mkdir(parents=True)
        Path(place, "mounted").mkdir()
        shutil.copy(stand_ins.busybox() or "", bundle / "rootfs" / "busybox")
        (bundle / "config.json").write_text(json.dumps(config.container("/busybox", "true")))
        address = config.Address.of(config.LAST)
        plan = Path(place, "plan.json")
        content = {
            "name": "attempt",
            "directory": place,
            "address": address.node,
            "networks": [address.pods],
            "api_port": 6443,
            "services": "",
            "attempt": ["sh", "-ec", ATTEMPT, "sh", place],
        }
        plan.write_text(json.dumps(content))
        argv = [sys.executable, "-m", "ateplace.local.realnode.machine", str(plan)]
        environment = os.environ | {"PATH": search_path()}
        try:
            done = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return f"an attempt at it did not end within {PATIENCE:g} s"
    said = done.stderr.strip() or f"exit code {done.returncode}"
    return "; ".join(said.splitlines()[-2:]) if done.returncode else ""


def search_path() -> str:
    """PATH, with the directories where a user's lacks what root runs."""
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


def program(name: str, path: str = "") -> str | None:
    """The path of a program that a node runs; `path` is another than `search_path`."""
    return shutil.which(name, path=path or search_path())


def cni_plugins() -> Path:
    """The directory that has them."""
    return next(each for each in CNI_DIRECTORIES if (each / "ptp").exists())
