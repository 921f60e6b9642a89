"""Our webhook against a minimal Go one on controller-runtime that makes the same patch (`make bench-webhook`).

Both serve TLS on loopback with the same certificate and answer the same 3.8 KB review. Fortio drives them one after
the other over kept-alive connections, in alternating order, several rounds; the figures are medians. The last line
is JSON; the exit code is 1 when a target is missed.
"""

import argparse
import base64
import contextlib
import copy
import hashlib
import http.client
import json
import os
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonpatch

from ateplace.certs import authority
from ateplace.local import cache, golang
from ateplace.settings import BUSYBOX
from ateplace.webhook.wait_container import SCRIPT

MODULE = Path(__file__).parent / "webhook_go"
POOL, UID = "agents/research", "0b0ebb4c-6ff4-4a52-a9e1-a3b1f1b2c3d4"
MANAGED = (
    *('k:{"name":"ateom"}', "args", "env", "image", "imagePullPolicy", "name", "resources", "securityContext"),
    *("terminationMessagePath", "terminationMessagePolicy", "volumeMounts", "dnsPolicy", "enableServiceLinks"),
    *("restartPolicy", "schedulerName", "serviceAccount", "serviceAccountName", "terminationGracePeriodSeconds"),
    *("volumes", 'k:{"name":"run-ateom"}', "hostPath", "path", "type", "priorityClassName", "tolerations"),
)
CONNECTIONS = (1, 16, 64)
TARGET_AT, TARGET_RPS, TARGET_P99 = 16, 1.8, 0.5


@dataclass(frozen=True)
class Run:
    """One run of the load generator."""

    rps: float
    p50_ms: float
    p99_ms: float
    server_cpu: float
    """Seconds of CPU that the server used for a second of load; the machine has `os.cpu_count()`."""
    load_cpu: float


def build() -> Path:
    """The directory of the two Go binaries, built when their sources have changed."""
    sources = sorted(path for path in MODULE.iterdir() if path.suffix in {".go", ".mod", ".sum"})
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    target = cache.root() / "bench" / key
    if not (target / ".complete").exists():
        print("building the reference webhook and the load generator (minutes, once)", file=sys.stderr)
        target.mkdir(parents=True, exist_ok=True)
        go = golang.find_go(lambda text: print(text, file=sys.stderr))
        command = [str(go), "build", "-trimpath", "-ldflags", "-s -w", "-o", f"{target}/", ".", "fortio.org/fortio"]
        subprocess.run(command, cwd=MODULE, env=golang.environment(), check=True)
        (target / ".complete").touch()
    return target


def review() -> dict[str, Any]:
    """A review as an API server sends it for a pod of a pool's Deployment, 3.8 KB with its managed fields."""
    namespace, pool = POOL.split("/")
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{pool}-deployment-6c8f9d7b54", "uid": UID}
    mount = {
        "name": "kube-api-access-x7k2p",
        "readOnly": True,
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    }
    container = {
        "name": "ateom",
        "image": "registry.example/agent-substrate/ateom-gvisor:v0.3.1",
        "args": ["--pod-uid=$(POD_UID)"],
        "env": [{"name": "POD_UID", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}}],
        "resources": {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": "2", "memory": "4Gi"}},
        "volumeMounts": [{"name": "run-ateom", "mountPath": "/run/ateom"}, mount],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"privileged": True, "runAsUser": 0, "runAsGroup": 0},
    }
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    root = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    field = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    projected = {"sources": [token, root, {"downwardAPI": {"items": [field]}}], "defaultMode": 420}
    tolerations = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("not-ready", "unreachable")
    ]
    managed = {
        "manager": "kube-controller-manager",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-06-01T12:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {f"f:{name}": {} for name in MANAGED},
        },
    }
    pod: dict[str, Any] = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "generateName": f"{pool}-deployment-6c8f9d7b54-",
            "namespace": namespace,
            "labels": {"app": "ateom", "ate.dev/worker-pool": pool, "pod-template-hash": "6c8f9d7b54"},
            "annotations": {
                "ate.dev/ateom-version": "v0.3.1",
                "kubectl.kubernetes.io/restartedAt": "2026-06-01T12:00:00Z",
                "prometheus.io/scrape": "true",
                "prometheus.io/port": "9090",
                "prometheus.io/path": "/metrics",
            },
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            "managedFields": [managed],
        },
        "spec": {
            "volumes": [
                {"name": "run-ateom", "hostPath": {"path": "/var/lib/ateom-gvisor", "type": "DirectoryOrCreate"}},
                {"name": "kube-api-access-x7k2p", "projected": projected},
            ],
            "containers": [container],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "securityContext": {"runAsUser": 0, "runAsGroup": 0},
            "schedulerName": "default-scheduler",
            "nodeSelector": {"kubernetes.io/os": "linux", "ate.dev/sandboxClass": "gvisor"},
            "tolerations": tolerations,
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {},
    }
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    pods = {"group": "", "version": "v1", "resource": "pods"}
    groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"]
    user = {"username": "system:serviceaccount:kube-system:replicaset-controller", "uid": UID, "groups": groups}
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": kind,
        "resource": pods,
        "requestKind": kind,
        "requestResource": pods,
        "namespace": namespace,
        "operation": "CREATE",
        "userInfo": user,
        "object": pod,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def certificates(folder: Path) -> ssl.SSLContext:
    """Write tls.crt, tls.key and ca.crt; the context that trusts them."""
    now = datetime.now(UTC)
    ca = authority.make_authority(now, days=1)
    wanted = authority.Wanted(authority.Use.SERVER, dns=("localhost",), addresses=("127.0.0.1",))
    pair = authority.issue(ca, wanted, now, days=1)
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    (folder / "ca.crt").write_bytes(ca.certificate)
    return ssl.create_default_context(cafile=folder / "ca.crt")


class Server:
    """A webhook process on a free port of loopback."""

    def __init__(self, argv: list[str], folder: Path, trust: ssl.SSLContext) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.trust = trust
        given = ["--port", str(self.port), "--certs", str(folder), "--pool", POOL, "--uid", UID]
        self.process = subprocess.Popen([*argv, *given], stdout=subprocess.DEVNULL, stderr=sys.stderr)

    def wait(self) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.05)
        raise SystemExit(f"{self.process.args!r} does not serve")

    def ask(self, body: bytes) -> Any:
        connection = http.client.HTTPSConnection("localhost", self.port, context=self.trust, timeout=10)
        connection.request("POST", "/mutate", body, {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0


@contextlib.contextmanager
def servers(binaries: Path, folder: Path, trust: ssl.SSLContext) -> Iterator[dict[str, Server]]:
    """Both, serving."""
    ours = [sys.executable, "-m", "bench.webhook_server"]
    theirs = [str(binaries / "webhook"), "--image", BUSYBOX, "--script", SCRIPT]
    running = {"ateplace": Server(ours, folder, trust), "go": Server(theirs, folder, trust)}
    try:
        for server in running.values():
            server.wait()
        yield running
    finally:
        for server in running.values():
            server.process.terminate()
            server.process.wait(10)


def load(fortio: Path, server: Server, folder: Path, connections: int, seconds: float) -> Run:
    """Drive one server as fast as it goes."""
    report = folder / "report.json"
    command = [str(fortio), "load", "-quiet", "-loglevel", "error", "-qps", "0", "-c", str(connections)]
    command += ["-t", f"{seconds}s", "-r", "0.00001", "-p", "50,99", "-payload-file", str(folder / "review.json")]
    command += ["-H", "Content-Type: application/json", "-cacert", str(folder / "ca.crt"), "-json", str(report)]
    before, load_before = server.cpu(), children_cpu()
    start = time.monotonic()
    process = subprocess.Popen(
        [*command, f"https://localhost:{server.port}/mutate"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, said = process.communicate(timeout=seconds + 60)
    took = time.monotonic() - start
    if process.returncode:
        raise SystemExit(f"the load generator failed: {said.decode()}")
    found = json.loads(report.read_text())
    if set(found["RetCodes"]) != {"200"}:
        raise SystemExit(f"not every call was answered: {found['RetCodes']}")
    cpu, load_cpu = (server.cpu() - before) / took, (children_cpu() - load_before) / took
    percentiles = {each["Percentile"]: each["Value"] * 1000 for each in found["DurationHistogram"]["Percentiles"]}
    return Run(found["ActualQPS"], percentiles[50], percentiles[99], cpu, load_cpu)


def children_cpu() -> float:
    """Seconds of CPU of every child that has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def check_same(running: dict[str, Server], asked: dict[str, Any]) -> None:
    """Both must make the same pod of the same review, or the comparison says nothing."""
    body = json.dumps(asked, separators=(",", ":")).encode()
    results = []
    for server in running.values():
        response = server.ask(body)["response"]
        ops = json.loads(base64.b64decode(response["patch"]))
        results.append(jsonpatch.JsonPatch(ops).apply(copy.deepcopy(asked["request"]["object"])))
    if results[0] != results[1]:
        raise SystemExit(f"the two do not make the same pod:\n{results[0]}\n{results[1]}")


def median(runs: list[Run]) -> dict[str, float]:
    """The figures of several runs as one."""
    return {
        name: round(statistics.median(getattr(run, name) for run in runs), 3)
        for name in ("rps", "p50_ms", "p99_ms", "server_cpu", "load_cpu")
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one run")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each server at each number of connections")
    parser.add_argument("--connections", type=int, nargs="*", default=CONNECTIONS)
    options = parser.parse_args()
    binaries = build()
    asked = review()
    body = json.dumps(asked, separators=(",", ":")).encode()
    result: dict[str, Any] = {"bench": "webhook", "review_bytes": len(body), "connections": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "review.json").write_bytes(body)
        trust = certificates(folder)
        with servers(binaries, folder, trust) as running:
            check_same(running, asked)
            for connections in options.connections:
                runs: dict[str, list[Run]] = {"ateplace": [], "go": []}
                for turn in range(options.rounds):
                    for which in ("ateplace", "go") if turn % 2 else ("go", "ateplace"):
                        run = load(binaries / "fortio", running[which], folder, connections, options.seconds)
                        runs[which].append(run)
                        print(
                            f"{connections:3} connections  {which:9} {run.rps:7.0f}/s  p50 {run.p50_ms:7.3f} ms  "
                            f"p99 {run.p99_ms:7.3f} ms  CPUs: server {run.server_cpu:.2f}, load {run.load_cpu:.2f}"
                        )
                result["connections"][str(connections)] = {which: median(each) for which, each in runs.items()}
            result["rss_mib"] = {which: round(server.rss_mib(), 1) for which, server in running.items()}
    missed = judge(result)
    print(json.dumps({**result, "missed": missed, "ok": not missed}))
    return 1 if missed else 0


def judge(result: dict[str, Any]) -> list[str]:
    """Targets that were missed."""
    at = result["connections"].get(str(TARGET_AT))
    if at is None:
        return []
    ours, theirs = at["ateplace"], at["go"]
    result["rps_ratio"] = round(ours["rps"] / theirs["rps"], 2)
    result["p99_ratio"] = round(ours["p99_ms"] / theirs["p99_ms"], 2)
    missed = []
    if result["rps_ratio"] < TARGET_RPS:
        missed.append(f"requests/s at {TARGET_AT} connections: {result['rps_ratio']} of Go's, not {TARGET_RPS}")
    if result["p99_ratio"] > TARGET_P99:
        missed.append(f"p99 at {TARGET_AT} connections: {result['p99_ratio']} of Go's, not {TARGET_P99}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
