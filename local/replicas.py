"""ateplace with several pods of each Deployment behind its Services, and rolling updates as a cluster does them."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ateplace.local.balancer import Balancer
from ateplace.local.plane import ControlPlane
from ateplace.local.pods import Installation, Pod


class ReplicatedInstallation(Installation):
    """As `Installation`, with as many pods as the manifests say; `pods` are named `webhook-0`, `webhook-1`, …

    A pod has an address of its own; the Service's is a `Balancer`'s. Ends with its `with` block.
    """

    def __init__(self, plane: ControlPlane, overlay: Path, *, code: Path | None = None, **settings: Any) -> None:
        """`code`: another version's tree, for the pods to run; `settings` as before."""
        self._code = code
        self._numbers = itertools.count()
        self._balancers: dict[str, Balancer] = {}
        # The service network is ours alone on this machine, so the network 64 below it is too.
        self._network = f"127.{int(plane.service_network.split('.')[1]) - 64}.1"
        super().__init__(plane, overlay, **settings)

    def __enter__(self) -> Self:
        for balancer in self._balancers.values():
            balancer.start()
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for balancer in self._balancers.values():
            balancer.close()

    def ready(self) -> bool:
        """As before, and every pod that serves is known to be ready by its Service too."""
        super().ready()
        for role, balancer in self._balancers.items():
            wanted = {pod.address for pod in self.of(role)}
            assert set(balancer.ready()) == wanted, f"{role}: {balancer.ready()}"  # noqa: S101 - for `plane.wait`
        return True

    def of(self, role: str) -> list[Pod]:
        """The pods of one Deployment, the oldest first."""
        return [pod for name, pod in tuple(self.pods.items()) if name.rpartition("-")[0] == role]

    def change(self, code: Path | None) -> None:
        """From now on new pods are as the cluster's Deployments say now, and run this code; `roll` makes them."""
        self._code = code
        for role, deployment in self.deployments.items():
            path = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}".format(**deployment["metadata"])
            self.deployments[role] = self.plane.api.get(path)

    def roll(self, role: str, count: int | None = None) -> None:
        """A rolling update: for each pod one more is started, and when that is ready the old one is told to end.

        `count`: only so many, the oldest.
        """
        old = [(name, pod) for name, pod in tuple(self.pods.items()) if name.rpartition("-")[0] == role][:count]
        with ThreadPoolExecutor() as ending:
            stopped = []
            for name, pod in old:
                self._add(role)
                stopped.append(ending.submit(pod.stop))
                if balancer := self._balancers.get(role):
                    balancer.end(pod.address)
                    self.plane.wait(lambda pod=pod: pod.address not in balancer.ready(), why="the end to be noticed")  # type: ignore[misc]
                    balancer.remove(pod.address)
                del self.pods[name]
            for one in stopped:
                one.result()

    def _add(self, role: str) -> None:
        name, pod = self._make(role)
        self.pods[name] = pod
        pod.start()
        if balancer := self._balancers.get(role):
            self.plane.wait(lambda: pod.address in balancer.ready(), timeout=60, why=f"{name} to be ready")
        elif pod.serves:
            self.plane.wait(lambda: not pod.readiness(), timeout=60, why=f"{name} to be ready")
        else:
            log = self.plane.log(pod.name)
            self.plane.wait(lambda: "leader lease" in log.read_text(), timeout=60, why=f"{name} to stand by")

    def _make(self, role: str) -> tuple[str, Pod]:
        number = next(self._numbers)
        address = f"{self._network}.{number + 1}"
        pod = Pod(
            self.plane, self.deployments[role], self._extra, suffix=f"-{number}", address=address, code=self._code
        )
        if role in self._balancers:
            self._balancers[role].add(address)
        return f"{role}-{number}", pod

    def _make_pods(self) -> dict[str, Pod]:
        services = {item["metadata"]["name"]: item for item in self.objects if item["kind"] == "Service"}
        for role, deployment in self.deployments.items():
            if service := services.get(deployment["metadata"]["name"]):
                path = "/api/v1/namespaces/{namespace}/services/{name}".format(**service["metadata"])
                address = self.plane.api.get(path)["spec"]["clusterIP"]
                self._balancers[role] = Balancer(address, [port["port"] for port in service["spec"]["ports"]])
        return dict(
            self._make(role) for role, item in self.deployments.items() for _ in range(item["spec"]["replicas"])
        )
