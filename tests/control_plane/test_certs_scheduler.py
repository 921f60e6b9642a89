"""A change of authority under a real kube-scheduler that makes a mutual handshake for every pod."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ateplace import names
from ateplace.certs import files, rotation
from ateplace.certs.controller import Keeper
from ateplace.certs.rotation import Phase
from ateplace.certs.store import Secret, Store
from ateplace.kube import Kube
from ateplace.kube.objects import Pod
from ateplace.local import ControlPlane
from ateplace.process.http_connection import Limits
from ateplace.process.http_server import Server
from ateplace.settings import Certs, Cluster, Settings
from tests.certifying import extender_name, extender_source, steady, until

SETTLE = 1.5
CALLS = 5
"""Between any two steps of the change."""
LEAVES = (names.EXTENDER_CERTIFICATE, names.SCHEDULER_CERTIFICATE)


class Process:
    """kube-scheduler as a process: what it trusts is what the file said when it started."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self._plane = plane
        self._name = name
        self.mark = ""
        self.restarts = 0

    async def look(self) -> rotation.Scheduler:
        return rotation.Scheduler(self.mark, running=True, restartable=True)

    async def restart(self, mark: str) -> None:
        if self.mark:
            await asyncio.to_thread(self._plane.restart_scheduler, self._name)
            self.restarts += 1
        self.mark = mark


class Filter:
    """An extender to which every node is fine, and which wants a new handshake for the next call."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        asked = json.loads((await receive())["body"])
        self.calls += 1
        answer = json.dumps({"NodeNames": asked["NodeNames"], "FailedNodes": {}, "Error": ""}).encode()
        headers = [(b"content-length", str(len(answer)).encode()), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def configuration(scheduler: str, port: int, name: str, directory: Path) -> dict[str, Any]:
    tls = {key: str(directory / file) for key, file in (("caFile", "ca.crt"), ("certFile", "tls.crt"))}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": scheduler}],
        "extenders": [
            {
                "urlPrefix": f"https://127.0.0.1:{port}",
                "filterVerb": "filter",
                "enableHTTPS": True,
                "nodeCacheCapable": True,
                "httpTimeout": "30s",
                "tlsConfig": {**tls, "keyFile": str(directory / "tls.key"), "serverName": name},
            }
        ],
    }


def test_kube_scheduler_never_fails_to_call_us(
    plane: ControlPlane, namespace: str, nodes: Callable[..., list[str]], tmp_path: Path
) -> None:
    nodes(1, pods=1000)
    settings = Settings(
        cluster=Cluster(kubeconfig=str(plane.kubeconfig), namespace=namespace), certs=Certs(settle=SETTLE)
    )
    try:
        asyncio.run(change(plane, namespace, settings, tmp_path))
    finally:
        plane.stop_scheduler(namespace)


async def change(plane: ControlPlane, namespace: str, settings: Settings, root: Path) -> None:
    kube = await Kube.connect(settings.cluster)
    process, application = Process(plane, namespace), Filter()
    store, keeper = Store(kube, namespace), Keeper(kube, settings, scheduler=process)
    source = extender_source(root, settings)
    server = Server(
        application,
        host="127.0.0.1",
        port=0,
        tls=source.context,
        limits=Limits(body_bytes=1 << 20),
        accepts=source.accepts,
    )
    pods = f"/api/v1/namespaces/{namespace}/pods"
    created = port = 0
    versions: dict[str, str] = {}

    def complaints() -> list[str]:
        """What it says of calls of ours; that it cannot reach the API server while it is told to end is its own."""
        log = plane.log(f"scheduler-{namespace}").read_text()
        return [line for line in log.splitlines() if f"https://127.0.0.1:{port}" in line]

    async def make_pods() -> None:
        nonlocal created
        while True:
            await kube.create(pods, pod_for(namespace), object)
            created += 1
            await asyncio.sleep(0.1)

    async def the_scheduler_calls() -> None:
        for secret in LEAVES:
            found = await store.read(secret)
            assert found is not None
            current = found.metadata.resource_version
            await until(lambda secret=secret, current=current: versions.get(secret) == current)  # type: ignore[misc]
        before = application.calls
        await until(lambda: application.calls >= before + CALLS)

    async def bring_files() -> None:
        while True:
            for secret in LEAVES:
                found = await store.read(secret)
                if found is not None and versions.get(secret) != found.metadata.resource_version:
                    await asyncio.to_thread(project, root / secret, found)
                    versions[secret] = found.metadata.resource_version
            await asyncio.sleep(0.3)

    await keeper.bring_into_step()
    work = [asyncio.create_task(each) for each in (bring_files(), source.run())]
    try:
        await source.ready()
        await server.start()
        port = server.port
        config = configuration(namespace, port, extender_name(settings), root / names.SCHEDULER_CERTIFICATE)
        plane.add_scheduler(namespace, config)
        work.append(asyncio.create_task(make_pods()))
        await until(lambda: application.calls > 10)
        await keeper.change_authority("for a test")
        phases = await steady(keeper, the_scheduler_calls)
        work.pop().cancel()
        async with asyncio.timeout(30):
            waiting = True
            while waiting:
                await asyncio.sleep(0.1)
                waiting = bool([pod async for pod in kube.list(pods, Pod) if not pod.spec.node_name])
        failed = complaints()
        # And the same log does tell when a call fails.
        await server.stop(2.0)
        await kube.create(pods, pod_for(namespace), object)
        await until(lambda: bool(complaints()))
    finally:
        for task in work:
            task.cancel()
        await asyncio.wait(work)
        await server.stop(2.0)
        await kube.close()
    print(f"\n{created} pods, {application.calls} handshakes, {process.restarts} restarts, {len(failed)} failed calls")
    assert failed == []
    assert process.restarts == 2
    assert application.calls >= created
    assert {Phase.RESTARTING, Phase.DROPPING} < set(phases), "both halves of the change, each with calls in it"


def pod_for(scheduler: str) -> dict[str, Any]:
    container = {"name": "c", "image": "registry.example/c:1"}
    return {"metadata": {"generateName": "p-"}, "spec": {"schedulerName": scheduler, "containers": [container]}}


def project(directory: Path, secret: Secret) -> None:
    content = {name: secret.text(name) for name in (files.CERTIFICATE, files.KEY, files.AUTHORITIES)}
    files.project(directory, content)
