"""What the parts of a real node are told, as documents (pure)."""

from pathlib import Path
from typing import Any, NamedTuple

from ateplace import settings
from ateplace.local.api import Object

NODES = "198.18.0.0/16"
SERVICES = "198.19.0.0/16"
"""RFC 2544 sets both aside for benchmarks: they lead nowhere. Node N has 198.18.N.0/24 for itself and its pods."""
HIDDEN = ("/run", "/var/lib", "/var/log")
"""Where a node writes: directories of its own, in memory, lie over the machine's."""
LAST = 249
"""The highest number of a node."""
CONTAINERD = "/run/containerd/containerd.sock"
CRI = 'plugins."io.containerd.grpc.v1.cri"'


class Address(NamedTuple):
    """Where one node and its pods are."""

    node: str
    pods: str
    """A network."""

    @classmethod
    def of(cls, number: int) -> "Address":
        """From 0 to `LAST`."""
        return cls(f"198.18.{number}.254", f"198.18.{number}.0/24")


def network(address: Address) -> Object:
    """CNI: a link of its own for every pod. On a bridge, hostPorts would need the kernel module br_netfilter."""
    first = address.pods.removesuffix("0/24")
    pods = {"subnet": address.pods, "rangeEnd": f"{first}250"}
    addresses = {"type": "host-local", "ranges": [[pods]], "routes": [{"dst": "0.0.0.0/0"}]}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "node", "plugins": [{"type": "ptp", "ipam": addresses}, ports]}


def containerd(runc: str, cni_plugins: Path, cni_configuration: Path, registries: Path) -> str:
    """For containerd 1.6 and later; version 2 reads it too.

    `registries`: a directory for each host that images are pulled from, with a hosts.toml; there may be none.
    `restrict_oom_score_adj`: without CAP_SYS_RESOURCE runc could start no container with a lower score than its own.
    """
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "{CONTAINERD}"
[{CRI}]
sandbox_image = "{settings.PAUSE.partition("@")[0]}"
restrict_oom_score_adj = true
[{CRI}.cni]
bin_dir = "{cni_plugins}"
conf_dir = "{cni_configuration}"
[{CRI}.registry]
config_path = "{registries}"
[{CRI}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{CRI}.containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"""


def kubelet(address: Address, client_ca: Path, resolv_conf: Path, *, services: bool, **more: Any) -> Object:
    """A KubeletConfiguration; `services`: pods use the node's name server."""
    names = {"clusterDNS": [address.node], "clusterDomain": "cluster.local"} if services else {}
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address.node,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(client_ca)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
        "evictionHard": {"memory.available": "50Mi"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "2s",
        "resolvConf": str(resolv_conf),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        **names,
        **more,
    }


def kube_proxy(name: str, address: Address, kubeconfig: Path) -> Object:
    """A KubeProxyConfiguration that leaves the machine's connection tracking as it is."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "bindAddress": address.node,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": NODES,
        "conntrack": {"maxPerCore": 0, "min": 0},
        "hostnameOverride": name,
        "iptables": {"minSyncPeriod": "0.1s"},
    }


def container(*argv: str) -> Object:
    """A container for runc alone, with one of each thing that kubelet's have: namespaces, mounts, limits, seccomp."""
    kinds = ("pid", "network", "ipc", "uts", "mount")
    return {
        "ociVersion": "1.0.2",
        "process": {"user": {"uid": 65532, "gid": 65532}, "args": list(argv), "cwd": "/", "noNewPrivileges": True},
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "attempt",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        ],
        "linux": {
            "cgroupsPath": "/attempt",
            "namespaces": [{"type": kind} for kind in kinds],
            "resources": {
                "devices": [{"allow": False, "access": "rwm"}],
                "memory": {"limit": 64 << 20},
                "cpu": {"shares": 100, "quota": 50000, "period": 100000},
                "pids": {"limit": 100},
            },
            "seccomp": {
                "defaultAction": "SCMP_ACT_ALLOW",
                "syscalls": [{"names": ["swapon"], "action": "SCMP_ACT_ERRNO"}],
            },
        },
    }
