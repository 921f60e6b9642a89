"""How each process of a local control plane is started, and etcd is compacted."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import yaml

if TYPE_CHECKING:
    from ateplace.local.plane import ControlPlane

REAL = "local.ateplace/real"
"""Label of nodes with a kubelet of their own, which KWOK leaves alone."""

AUDIT_POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""


def etcd(plane: "ControlPlane") -> list[str]:
    peers = f"http://127.0.0.1:{plane._reservations.port()}"
    clients = f"http://127.0.0.1:{plane.etcd_port}"
    return [
        str(plane.binaries["etcd"]),
        f"--data-dir={plane.directory / 'etcd'}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--socket-reuse-port",
        "--unsafe-no-fsync",
        "--log-level=error",
    ]


def apiserver(plane: "ControlPlane", *, port: int, etcd_port: int, audit: bool) -> list[str]:
    secrets = plane.directory / "pki"
    argv = [
        str(plane.binaries["kube-apiserver"]),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        "--permit-port-sharing",
        f"--tls-cert-file={secrets / 'apiserver.crt'}",
        f"--tls-private-key-file={secrets / 'apiserver.key'}",
        f"--client-ca-file={secrets / 'ca.crt'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={secrets / 'tokens.pub'}",
        f"--service-account-signing-key-file={secrets / 'tokens.key'}",
        f"--service-cluster-ip-range={plane.service_network}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--endpoint-reconciler-type=none",
        "--allow-privileged",
        "--shutdown-watch-termination-grace-period=1s",
    ]
    if plane.egress:
        argv += [
            f"--egress-selector-config-file={_egress_selector(plane)}",
            f"--kubelet-client-certificate={secrets / 'admin.crt'}",
            f"--kubelet-client-key={secrets / 'admin.key'}",
            "--kubelet-preferred-address-types=InternalIP",
        ]
    if audit:
        policy = plane.directory / "audit-policy.yaml"
        policy.write_text(AUDIT_POLICY)
        argv += [f"--audit-policy-file={policy}", f"--audit-log-path={plane.log('audit')}"]
    return argv


def _egress_selector(plane: "ControlPlane") -> Path:
    """Into the cluster by way of the tunnel: the machine has no route to real nodes."""
    transport = {"uds": {"udsName": str(plane.egress)}}
    cluster = {"name": "cluster", "connection": {"proxyProtocol": "HTTPConnect", "transport": transport}}
    document = {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [cluster],
    }
    path = plane.directory / "egress.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def tunnel(plane: "ControlPlane") -> list[str]:
    return [sys.executable, "-m", "ateplace.local.realnode.tunnel", str(plane.egress), str(plane.directory / "nodes")]


def controller_manager(plane: "ControlPlane") -> list[str]:
    secrets = plane.directory / "pki"
    return [
        str(plane.binaries["kube-controller-manager"]),
        f"--kubeconfig={plane.kubeconfig}",
        f"--service-account-private-key-file={secrets / 'tokens.key'}",
        f"--root-ca-file={secrets / 'ca.crt'}",
        f"--cluster-signing-cert-file={secrets / 'ca.crt'}",
        f"--cluster-signing-key-file={secrets / 'ca.key'}",
        "--leader-elect=false",
        "--use-service-account-credentials=false",
        "--secure-port=0",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={plane.lease_seconds + 10}s",
    ]


def scheduler(
    plane: "ControlPlane", name: str, config: Mapping[str, Any], kubeconfig: Path | None, profiled: int
) -> list[str]:
    document: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        **config,
    }
    identity = kubeconfig or plane.kubeconfig_for(user="system:kube-scheduler")
    document["clientConnection"] = {**document.get("clientConnection", {}), "kubeconfig": str(identity)}
    path = plane.directory / f"scheduler-{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    argv = [str(plane.binaries["kube-scheduler"]), f"--config={path}", f"--secure-port={profiled}"]
    if profiled:
        secrets = plane.directory / "pki"
        argv += [f"--tls-cert-file={secrets / 'apiserver.crt'}", f"--tls-private-key-file={secrets / 'apiserver.key'}"]
        argv += ["--bind-address=127.0.0.1", "--authorization-always-allow-paths=/debug/pprof/*"]
    return argv


def kwok(plane: "ControlPlane") -> list[str]:
    return [
        str(plane.binaries["kwok"]),
        f"--kubeconfig={plane.kubeconfig}",
        f"--config={plane.directory / 'stages.yaml'}",
        f"--manage-nodes-with-label-selector=!{REAL}",
        f"--node-lease-duration-seconds={plane.lease_seconds}",
        "--node-ip=127.0.0.1",
    ]


def compact(etcd_port: int) -> None:
    """Through etcd's JSON gateway: the newest revision, then forget all before it."""
    with httpx.Client(base_url=f"http://127.0.0.1:{etcd_port}", trust_env=False) as client:
        found = client.post("/v3/kv/range", json={"key": "AA=="}).raise_for_status().json()
        revision = found["header"]["revision"]
        client.post("/v3/kv/compaction", json={"revision": revision, "physical": True}).raise_for_status()
