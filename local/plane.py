"""A real control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, with KWOK as the kubelets."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import yaml
from cryptography.hazmat.primitives.asymmetric import ec

from ateplace.errors import LocalError
from ateplace.local import binaries, commands, kubelets, pki
from ateplace.local.api import Api, ApiError, Object
from ateplace.local.keeper import Keeper
from ateplace.local.ports import Reservations
from ateplace.local.progress import Say

T = TypeVar("T")
ADMIN = ("system:masters",)
STOCK = "default-scheduler"


class ControlPlane:
    """A cluster on loopback for the length of a `with` block; whatever ends the block, or us, leaves nothing behind.

    Several planes run side by side. `nodes` are there and Ready when the block starts; `start_delay` is the time
    from bound to Ready of every pod; `scheduler` False leaves the stock scheduler out. With `real_nodes` the API server
    can reach nodes of `local.realnode`. Services are on a loopback network, so processes can play them; `services` is
    another /16, for pods of real nodes. `lease_seconds` is how long a pretended node's Lease lasts: it is renewed four
    times as often, and 5,000 nodes that do so every ten seconds take nearly a core by themselves.
    """

    def __init__(
        self,
        nodes: int = 0,
        *,
        start_delay: float = 0.0,
        scheduler: bool = True,
        audit: bool = False,
        real_nodes: bool = False,
        services: str = "",
        lease_seconds: int = 40,
        say: Say = lambda _: None,
    ) -> None:
        self._wanted_nodes = nodes
        self._start_delay = start_delay
        self._stock_scheduler = scheduler
        self._say = say
        self._exits = contextlib.ExitStack()
        self._audit = audit
        self._pids: dict[str, int] = {}
        self.node_labels: dict[str, str] = {}
        """What every node that is made from now on carries, as a cloud's node group would have it."""
        self._real_nodes = real_nodes
        self._services = services
        self.lease_seconds = lease_seconds

    def __enter__(self) -> "ControlPlane":
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._exits = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._exits.close()

    # -- life ----------------------------------------------------------------------------------------------------

    def _start(self, stack: contextlib.ExitStack) -> None:
        self.binaries = binaries.resolve()
        self.keeper = stack.enter_context(Keeper("ateplace-plane-"))
        self.directory = self.keeper.directory
        self._reservations = Reservations()
        stack.callback(self._reservations.release)
        self.service_network = self._services or self._reservations.service_network()
        self.etcd_port, self.port = self._reservations.port(), self._reservations.port()
        self.url = f"https://127.0.0.1:{self.port}"
        (self.directory / "logs").mkdir()
        self._write_certificates()
        self._kubeconfigs: dict[str, Path] = {}
        self.kubeconfig = self.kubeconfig_for(user="admin", groups=ADMIN)
        admin = pki.client_context(self.ca, self.directory / "pki" / "admin")
        self.api = Api(self.url, admin)
        stack.callback(self.api.close)
        self.egress = self.directory / "egress.sock" if self._real_nodes else None
        if self.egress:
            self._spawn("tunnel", commands.tunnel(self))
        self._spawn("etcd", commands.etcd(self))
        self.start_apiserver()
        self._say(f"API server ready at {self.url}")
        self._spawn("kube-controller-manager", commands.controller_manager(self))
        if self._stock_scheduler:
            self.add_scheduler(STOCK)
        (self.directory / "stages.yaml").write_text(kubelets.stages(self._start_delay))
        self._spawn("kwok", commands.kwok(self))
        if self._wanted_nodes:
            self.add_nodes(self._wanted_nodes)

    def _write_certificates(self) -> None:
        directory = self.directory / "pki"
        directory.mkdir(mode=0o700)
        self.ca = pki.authority("ateplace-local")
        first_service_address = self.service_network.replace("0.0/16", "0.1")
        hosts = ("127.0.0.1", "localhost", "kubernetes.default.svc", first_service_address)
        self.ca.write(directory / "ca")
        pki.issue(self.ca, "kube-apiserver", hosts=hosts).write(directory / "apiserver")
        pki.issue(self.ca, "admin", ADMIN).write(directory / "admin")
        key = ec.generate_private_key(ec.SECP256R1())
        (directory / "tokens.key").write_bytes(pki.key_pem(key))
        (directory / "tokens.pub").write_bytes(pki.public_pem(key))

    def _spawn(self, name: str, argv: list[str], env: Mapping[str, str] | None = None) -> int:
        pid = self._pids[name] = self.keeper.spawn(name, argv, self.log(name), os.environ | dict(env or {}))
        return pid

    def pid(self, name: str) -> int:
        """The PID of a process that was started under this name."""
        return self._pids[name]

    def log(self, name: str) -> Path:
        """The file with everything that a process has said."""
        return self.directory / "logs" / f"{name}.log"

    def run(self, name: str, argv: list[str], env: Mapping[str, str] | None = None) -> int:
        """Start a process of your own; it ends with the plane at the latest. Its PID."""
        return self._spawn(name, argv, env)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM, timeout: float = 30.0) -> int:
        """End one process and wait for it; its exit code."""
        self.keeper.signal(name, number)
        code = self.keeper.wait(name, timeout)
        if code is None:
            raise LocalError(f"{name} did not end within {timeout:.0f} s of signal {number.name}")
        return code

    # -- faults --------------------------------------------------------------------------------------------------

    def start_apiserver(self) -> None:
        """Start it and wait until it is ready."""
        argv = commands.apiserver(self, port=self.port, etcd_port=self.etcd_port, audit=self._audit)
        self._spawn("kube-apiserver", argv)
        self.wait(self.api.ready, timeout=60, why="the API server to be ready", every=0.05)

    def add_apiserver(self, etcd_port: int) -> str:
        """Another API server, which reaches the same etcd at this port; its address, once it is ready."""
        port = self._reservations.port()
        argv = commands.apiserver(self, port=port, etcd_port=etcd_port, audit=False)
        self._spawn(f"kube-apiserver-{port}", argv)
        url = f"https://127.0.0.1:{port}"
        with contextlib.closing(Api(url, pki.client_context(self.ca, self.directory / "pki" / "admin"))) as api:
            self.wait(api.ready, timeout=60, why="another API server to be ready", every=0.1)
        return url

    def stop_apiserver(self) -> None:
        """SIGTERM, as in an orderly restart."""
        self.stop("kube-apiserver", timeout=90)

    def kill_apiserver(self) -> None:
        """SIGKILL."""
        self.stop("kube-apiserver", signal.SIGKILL)

    def compact_etcd(self) -> None:
        """Forget every revision but the newest, so that a watch which was away must list again."""
        commands.compact(self.etcd_port)

    def back_up_etcd(self) -> Path:
        """A copy of what etcd has now. The API server is away meanwhile, as etcd is."""
        copy = self.directory / "etcd-backup"
        self._without_etcd(lambda: shutil.copytree(self.directory / "etcd", copy, dirs_exist_ok=True))
        return copy

    def restore_etcd(self, backup: Path) -> None:
        """The whole state goes back to the backup's. Controllers and kubelets start anew, as administrators are told to
        let them; schedulers are the caller's."""

        def put_back() -> None:
            shutil.rmtree(self.directory / "etcd")
            shutil.copytree(backup, self.directory / "etcd")

        for name in ("kube-controller-manager", "kwok"):
            self.stop(name, signal.SIGKILL)
        self._without_etcd(put_back)
        self._spawn("kube-controller-manager", commands.controller_manager(self))
        self._spawn("kwok", commands.kwok(self))

    def _without_etcd(self, do: Callable[[], object]) -> None:
        self.kill_apiserver()
        self.stop("etcd")
        do()
        self._spawn("etcd", commands.etcd(self))
        self.start_apiserver()

    def add_scheduler(
        self,
        name: str,
        config: Mapping[str, Any] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        kubeconfig: Path | None = None,
        profiled: int = 0,
    ) -> None:
        """Run another kube-scheduler; `config` is a KubeSchedulerConfiguration, its kubeconfig is filled in.
        `profiled`: the port on which it shows its profiles to whoever asks."""
        argv = commands.scheduler(self, name, config or {}, kubeconfig, profiled)
        self._schedulers = {**getattr(self, "_schedulers", {}), name: (argv, env)}
        self._spawn(f"scheduler-{name}", argv, env)

    def stop_scheduler(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        self.stop(f"scheduler-{name}", number)

    def restart_scheduler(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it and start it again with what it was started with."""
        self.stop_scheduler(name, number)
        argv, env = self._schedulers[name]
        self._spawn(f"scheduler-{name}", argv, env)

    # -- help for tests ------------------------------------------------------------------------------------------

    def kubeconfig_for(
        self, *, user: str = "", groups: Iterable[str] = (), service_account: str = "", hours: float = 12
    ) -> Path:
        """A kubeconfig for a user in groups (certificate), or for a ServiceAccount `namespace/name` (token)."""
        key = f"{user}|{','.join(groups)}|{service_account}".replace("/", "_").replace(":", "_")
        path = self.directory / f"kubeconfig{'' if user == 'admin' else '-' + key}"
        if service_account:
            namespace, name = service_account.split("/")
            request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
            token = self.api.post(
                f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
                {**request, "spec": {"expirationSeconds": int(hours * 3600)}},
            )
            credentials: pki.Pair | str = token["status"]["token"]
        else:
            credentials = pki.issue(self.ca, user, tuple(groups))
        path.touch(mode=0o600)
        path.write_text(pki.kubeconfig(self.url, self.ca, credentials))
        return path

    def kubectl(self, *args: str, input: str | None = None, timeout: float = 60) -> str:  # noqa: A002 - as subprocess
        """What kubectl prints; raises LocalError with what it complained of."""
        argv = [str(self.binaries["kubectl"]), "--kubeconfig", str(self.kubeconfig), *args]
        done = subprocess.run(argv, input=input, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            raise LocalError(f"kubectl {' '.join(args)}: {(done.stderr + done.stdout).strip()}")
        return done.stdout

    def apply(self, what: str | Path | Iterable[Object]) -> str:
        """`kubectl apply --server-side` of a manifest's text, its path, or objects."""
        if isinstance(what, Path):
            text = what.read_text("utf-8")
        elif isinstance(what, str):
            text = what
        else:
            text = yaml.safe_dump_all(what)
        return self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)

    def define(self, manifest: Path) -> None:
        """Apply CustomResourceDefinitions, and wait until they are served."""
        self.apply(manifest)
        for document in yaml.safe_load_all(manifest.read_text("utf-8")):
            if document and document["kind"] == "CustomResourceDefinition":
                name = document["metadata"]["name"]
                self.wait(partial(self._established, name), timeout=60, why=f"{name} to be served")
                self.wait(partial(self._served, document["spec"]), timeout=60, why=f"{name} to be listed and answered")

    def _established(self, name: str) -> bool:
        found = self.api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        conditions = found.get("status", {}).get("conditions") or ()
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    def _served(self, spec: Object) -> bool:
        """Whether discovery lists the resource and its collection answers, in every version: both follow a little
        later than the condition."""
        plural = spec["names"]["plural"]
        for version in (each["name"] for each in spec["versions"] if each["served"]):
            group = f"/apis/{spec['group']}/{version}"
            try:
                listed = self.api.get(group)["resources"]
                self.api.get(f"{group}/{plural}", limit="1")
            except ApiError as error:
                raise AssertionError(str(error)) from error
            if all(each["name"] != plural for each in listed):
                return False
        return True

    def add_nodes(
        self,
        count: int,
        prefix: str = "node",
        *,
        cpu: str = "8",
        memory: str = "32Gi",
        pods: int = 110,
        labels: Mapping[str, str] | None = None,
        taints: Iterable[Object] = (),
        resources: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Create nodes and wait until each is Ready and schedulable; their names."""
        names = [f"{prefix}-{number:04d}" for number in range(count)]
        room = {
            "cpu": cpu,
            "memory": memory,
            "pods": str(pods),
            "ephemeral-storage": "100Gi",
            **(resources or {}),
        }

        def create(name: str) -> None:
            own = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **self.node_labels, **(labels or {})}
            meta = {"name": name, "labels": own}
            status = {
                "capacity": room,
                "allocatable": room,
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            }
            self.api.post("/api/v1/nodes", {"metadata": meta, "spec": {"taints": list(taints)}, "status": status})

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(create, names))
        unready: set[str] = set(names)

        def ready() -> bool:
            for node in self.api.list("/api/v1/nodes", resourceVersion="0"):
                keys = {taint["key"] for taint in node["spec"].get("taints", ())}
                if not keys & {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}:
                    unready.discard(node["metadata"]["name"])
            return not unready

        self.wait(ready, timeout=60 + count / 10, why=f"{count} nodes to be Ready", every=0.1 + count / 2000)
        return names

    def remove_nodes(self, names: Iterable[str]) -> None:
        """Delete nodes; those that are gone already are no error."""
        for name in names:
            with contextlib.suppress(ApiError):
                self.api.delete(f"/api/v1/nodes/{name}")

    def hold(self, namespace: str, daemonset: str, how: str | None) -> None:
        """Make a DaemonSet's pods `unready` or `crashloop` from now on (None: well again), old ones included."""
        note = {"metadata": {"annotations": {kubelets.HOLD: how}}}
        self.api.patch(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{daemonset}", {"spec": {"template": note}})
        for pod in self.api.list(f"/api/v1/namespaces/{namespace}/pods"):
            owners = pod["metadata"].get("ownerReferences", ())
            if any(owner["kind"] == "DaemonSet" and owner["name"] == daemonset for owner in owners):
                self.hold_pod(namespace, pod["metadata"]["name"], how)

    def hold_pod(self, namespace: str, name: str, how: str | None) -> None:
        """The same for one pod; also `terminating`."""
        with contextlib.suppress(ApiError):
            self.api.patch(
                f"/api/v1/namespaces/{namespace}/pods/{name}",
                {"metadata": {"annotations": {kubelets.HOLD: how}}},
            )

    def wait(self, check: Callable[[], T], timeout: float = 30.0, why: str = "", every: float = 0.05) -> T:
        """Ask until the answer is truthy and return it; an AssertionError raised by `check` counts as "not yet".

        At the deadline: AssertionError with `why`, the last answer, and the last words of processes that have died.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                answer = check()
                said: object = answer
                if answer:
                    return answer
            except AssertionError as error:
                said = error
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout:.0f} s for {why or 'a condition'}; last: {said!r}{self._dead()}")
            time.sleep(every)

    def _dead(self) -> str:
        lines: list[str] = []
        for log in sorted((self.directory / "logs").glob("*.log")):
            with contextlib.suppress(RuntimeError):
                code = self.keeper.exit_code(log.stem)
                if code is not None:
                    last = log.read_text("utf-8", "replace").splitlines()[-5:]
                    lines += [f"\n{log.stem} ended with {code}:", *(f"\n  {line[:300]}" for line in last)]
        return "".join(lines)
