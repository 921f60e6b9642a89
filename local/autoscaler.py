"""`python -m ateplace.local.autoscaler KUBECONFIG`: a small stand-in for cluster-autoscaler, for equal nodes.

What it decides is in `local.scaling`. A pod gets a node after it has waited for `--delay` seconds, and a node goes
after it was not needed for `--idle` seconds, both by our own clock, from when we first saw it so. A node that goes is
tainted, its pods are evicted, and then the Node is deleted.
"""

import argparse
import contextlib
import math
import sys
import time
from pathlib import Path
from typing import Final

import httpx

from ateplace.cluster.resources import amounts
from ateplace.local.api import Api, ApiError
from ateplace.local.kubeconfig import connect
from ateplace.local.scaling import GROUP_LABEL, TAINT, Load, Machine, Since, grow, load, machine, shrink, waiting
from ateplace.local.substrate import VERSION, VERSION_LABEL

POLL_SECONDS: Final = 0.25


class Autoscaler:
    """`step` looks once and acts."""

    def __init__(
        self, api: Api, *, cpu: str, memory: str, pods: int, delay: float, idle: float, most: int, prefix: str
    ) -> None:
        self._api = api
        self._room = {"cpu": cpu, "memory": memory, "pods": str(pods), "ephemeral-storage": "100Gi"}
        self._template = Machine("", amounts(self._room), {GROUP_LABEL: prefix, VERSION_LABEL: VERSION}, group=True)
        self._delay, self._idle, self._most = delay, idle, most
        self._prefix = prefix
        self._waiting, self._unneeded = Since(), Since()
        self._made = 0

    def step(self, now: float) -> None:
        machines = [machine(item) for item in self._api.list("/api/v1/nodes")]
        loads = [one for item in self._api.list("/api/v1/pods") if (one := load(item)) is not None]
        group = [one for one in machines if one.group]
        candidates = {one.uid: one for one in waiting(loads)}
        ripe = self._waiting.ripe(candidates, now, self._delay)
        count = min(
            grow(machines, loads, [one for uid, one in candidates.items() if uid in ripe], self._template),
            self._most - len(group),
        )
        for _ in range(count):
            self._add()
        idle = self._unneeded.ripe(shrink(machines, loads), now, self._idle)
        if idle and not count:
            self._leave(min(idle))
        for place in group:
            if place.leaving:
                self._remove(place.name, [one for one in loads if one.node == place.name and not one.daemon])

    def _add(self) -> None:
        self._made += 1
        name = f"{self._prefix}-{self._made:04d}"
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **self._template.labels}
        status = {
            "capacity": self._room,
            "allocatable": self._room,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        }
        self._api.post("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status})
        _say(f"{name} added")

    def _leave(self, name: str) -> None:
        taint = {"key": TAINT, "effect": "NoSchedule"}
        self._api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [taint]}}, "strategic")
        _say(f"{name} is not needed")

    def _remove(self, name: str, left: list[Load]) -> None:
        for one in left:
            namespace, _, pod = one.name.partition("/")
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod, "namespace": namespace},
            }
            with contextlib.suppress(ApiError):  # gone already, or a budget says: not now
                self._api.post(f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)
        if not left:
            self._api.delete(f"/api/v1/nodes/{name}")
            _say(f"{name} removed")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Look and act until we are stopped; a restart of the API server is waited out."""
    parser = argparse.ArgumentParser(
        prog="python -m ateplace.local.autoscaler", description="Adds nodes when pods wait."
    )
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--cpu", default="8")
    parser.add_argument("--memory", default="32Gi")
    parser.add_argument("--pods", type=int, default=110)
    parser.add_argument("--delay", type=float, default=30.0, help="seconds until a waiting pod gets a node")
    parser.add_argument("--idle", type=float, default=math.inf, help="seconds until a node that is not needed goes")
    parser.add_argument("--most", type=int, default=10, help="most nodes of the group")
    parser.add_argument("--prefix", default="auto")
    options = vars(parser.parse_args())
    scaler = Autoscaler(connect(options.pop("kubeconfig")), **options)
    while True:
        try:
            scaler.step(time.monotonic())
        except (ApiError, httpx.HTTPError) as error:
            _say(f"trying again: {error}")
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
