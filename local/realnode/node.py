"""One real node, for the length of a `with` block."""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from ateplace.errors import LocalError
from ateplace.local import binaries
from ateplace.local.api import ApiError, Object
from ateplace.local.commands import REAL
from ateplace.local.plane import ControlPlane
from ateplace.local.realnode import config, containerd, fit, oci, stand_ins
from ateplace.local.realnode.namespaces import Network
from ateplace.local.versions import NODE_BINARIES

FOLLOW_EVERY = 0.3
"""Seconds between looks at Services, for the name server."""


class RealNode:
    """A node with a kubelet, beside KWOK's; `ready` says when it takes pods.

    The plane must have been made with `real_nodes=True`. `images` come on top of the stand-ins, as `oci.Image` or as an
    archive's path. Where the plane's Services are `config.SERVICES`, the node has kube-proxy and a name server, so its
    pods find Services and the API server, and are found. Nodes have no link to each other.
    """

    def __init__(
        self,
        plane: ControlPlane,
        name: str = "real-0",
        *,
        images: Mapping[str, oci.Image | Path] | None = None,
        containerd_2: bool = False,
        **kubelet: Any,
    ) -> None:
        """`containerd_2`: not the machine's containerd; the first time, building it takes minutes. `kubelet`: more of a
        KubeletConfiguration."""
        if reason := fit.unfit():
            raise LocalError(reason)
        self.plane, self.name = plane, name
        self.directory = plane.directory / "nodes" / name
        self.directory.mkdir(parents=True)
        self._address = config.Address.of(len(list(self.directory.parent.iterdir())))
        self.address = self._address.node
        self.registries = self.directory / "registries"
        """Where containerd looks for `HOST/hosts.toml` when it pulls; the node reaches no other host than itself."""
        self._images: dict[str, oci.Image | Path] = {**stand_ins.images(), **(images or {})}
        self._kubelet = kubelet
        self._path = f"{containerd.directory()}:{fit.search_path()}" if containerd_2 else fit.search_path()
        self._services = plane.service_network == config.SERVICES
        self._stopped = threading.Event()

    def __enter__(self) -> "RealNode":
        plan = {
            "name": self.name,
            "directory": str(self.directory),
            "logs": str(self.plane.directory / "logs"),
            "address": self.address,
            "networks": [self._address.pods, *([config.SERVICES] if self._services else [])],
            "api_port": self.plane.port,
            "services": str(self.directory / "services.json") if self._services else "",
            "prepare": list(self._imports()),
            "commands": self._commands(),
        }
        if self._services:
            self._offer_api()
            threading.Thread(target=self._follow_services, daemon=True).start()
        argv = [sys.executable, "-m", "ateplace.local.realnode.machine", str(self._write("plan.json", plan))]
        self.plane.run(self._process, argv, {"PATH": self._path})
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        (self.directory / "network.json").unlink(missing_ok=True)
        with contextlib.suppress(RuntimeError):  # the plane is gone, and the node with it
            self.plane.stop(self._process, timeout=60)
        with contextlib.suppress(httpx.HTTPError, ApiError):
            self.plane.api.delete(f"/api/v1/nodes/{self.name}")

    # -- what tests and scenes ask of it -------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether it takes pods; an AssertionError with the reason otherwise."""
        if self.plane.keeper.exit_code(self._process) is not None:
            raise LocalError(f"{self.name} ended: {self.plane.log(self._process).read_text()[-1000:]}")
        try:
            node = self.plane.api.get(f"/api/v1/nodes/{self.name}")
        except ApiError as error:
            raise AssertionError(str(error)) from error
        taints = [taint["key"] for taint in node["spec"].get("taints", ())]
        assert not taints, taints  # noqa: S101 - `plane.wait` shows it
        conditions = {each["type"]: each for each in node["status"]["conditions"]}
        assert conditions["Ready"]["status"] == "True", conditions["Ready"]["message"]  # noqa: S101 - as above
        return True

    @property
    def init(self) -> int:
        """The PID, as the machine counts, of the node's process 1."""
        return int(self._described["pid"])

    def network(self) -> Network:
        """The node's network namespace, to connect from inside it."""
        return Network(self.init, self._described["inode"])

    @property
    def _described(self) -> Object:
        described: Object = json.loads((self.directory / "network.json").read_text())
        return described

    def processes(self, name: str) -> list[int]:
        """The PIDs, as the machine counts, of the node's processes with this name."""
        found, look = [], [self.init]
        while look:
            pid = look.pop()
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    look += [int(child) for child in (task / "children").read_text().split()]
                if Path(f"/proc/{pid}/comm").read_text().strip() == name[:15]:
                    found.append(pid)
        return found

    def kill(self, part: str) -> None:
        """SIGKILL for kubelet, containerd or kube-proxy; it is started again after two seconds."""
        (pid,) = self.processes(part)
        os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def without(self, part: str) -> Iterator[None]:
        """A part is killed, and stays away for the length of a block."""
        mark = self.directory / f"{part}.down"
        mark.touch()
        try:
            self.kill(part)
            yield
        finally:
            mark.unlink()

    # -- how it is made ------------------------------------------------------------------------------------------

    @property
    def _process(self) -> str:
        return f"node-{self.name}"

    def _commands(self) -> dict[str, list[str]]:
        """The node's parts; the first is started before images are imported, the others after that."""
        found = binaries.resolve(wanted=NODE_BINARIES)
        plugins, cni = fit.cni_plugins(), self.directory / "cni"
        cni.mkdir()
        self._write("cni/node.conflist", config.network(self._address))
        toml = self.directory / "containerd.toml"
        toml.write_text(config.containerd(self._program("runc"), plugins, cni, self.registries))
        resolv_conf = self.directory / "resolv.conf"
        resolv_conf.touch()
        client_ca = self.plane.directory / "pki" / "ca.crt"
        kubelet = config.kubelet(self._address, client_ca, resolv_conf, services=self._services, **self._kubelet)
        identity = self.plane.kubeconfig_for(user=f"system:node:{self.name}", groups=("system:nodes",))
        labels = {REAL: "true", **self.plane.node_labels}
        commands = {
            "containerd": [self._program("containerd"), "--config", str(toml)],
            "kubelet": [
                str(found["kubelet"]),
                f"--config={self._write('kubelet.json', kubelet)}",
                f"--kubeconfig={identity}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
                f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}",
            ],
        }
        if self._services:
            proxy = config.kube_proxy(self.name, self._address, self.plane.kubeconfig_for(user="system:kube-proxy"))
            commands["kube-proxy"] = [str(found["kube-proxy"]), f"--config={self._write('kube-proxy.json', proxy)}"]
        return commands

    def _imports(self) -> Iterator[list[str]]:
        """Commands that give containerd its images."""
        ctr = [self._program("ctr"), "--address", config.CONTAINERD, "--namespace", "k8s.io", "images"]
        made = {name.partition("@")[0]: each for name, each in self._images.items() if isinstance(each, oci.Image)}
        archive = self.directory / "images.tar"
        oci.archive(archive, made)
        for path in (archive, *(each for each in self._images.values() if isinstance(each, Path))):
            yield [*ctr, "import", str(path)]
        for name in self._images:
            tagged, _, digest = name.partition("@")
            if digest:  # kubelet asks for NAME@DIGEST; containerd compares nothing with an image that has this name
                yield [*ctr, "tag", "--force", tagged, f"{tagged.rpartition(':')[0]}@{digest}"]

    def _offer_api(self) -> None:
        """The Service `kubernetes` leads to the node's own listener, behind which the API server is."""
        labels = {"kubernetes.io/service-name": "kubernetes"}
        self.plane.api.post(
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            {
                "metadata": {"name": f"kubernetes-{self.name}", "labels": labels},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [self.address], "conditions": {"ready": True}, "nodeName": self.name}],
                "ports": [{"name": "https", "port": self.plane.port}],
            },
        )

    def _follow_services(self) -> None:
        """Keep the name server's file as the Services are."""
        written: dict[str, str] = {}
        while not self._stopped.wait(FOLLOW_EVERY):
            with contextlib.suppress(httpx.HTTPError, ApiError, OSError, RuntimeError):  # the plane may be stopping
                known = {
                    "{name}.{namespace}.svc.cluster.local".format(**each["metadata"]): each["spec"]["clusterIP"]
                    for each in self.plane.api.list("/api/v1/services")
                }
                if known != written:
                    self._write("services.part", known).replace(self.directory / "services.json")
                    written = known

    def _write(self, name: str, content: Object) -> Path:
        path = self.directory / name
        path.write_text(json.dumps(content))
        return path

    def _program(self, name: str) -> str:
        found = fit.program(name, self._path)
        if found is None:
            raise LocalError(f"there is no {name} here")
        return found
