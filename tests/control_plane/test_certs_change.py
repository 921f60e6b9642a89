"""A change of authority while everybody calls: the API server our webhook, a scheduler the extender.

Everything is real but three things: the kubelets' part (Secrets to files, half a second late), the two servers'
applications, and the scheduler, which here is a client that reads its CA file when its pod starts and its own pair on
every call, as kube-scheduler does.
"""

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from ateplace import names
from ateplace.certs import files
from ateplace.certs.catalogue import service_names
from ateplace.certs.controller import Keeper
from ateplace.certs.pem import fingerprint, load_certificates
from ateplace.certs.rotation import Phase
from ateplace.certs.source import CertificateSource
from ateplace.certs.store import Secret, Store
from ateplace.errors import ServerError
from ateplace.kube import Kube, paths
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import ApiError
from ateplace.local.pods import Installation
from ateplace.process.http_connection import Limits
from ateplace.process.http_server import Server
from ateplace.settings import Certs, Cluster, Settings
from tests.certifying import extender_name, extender_source, steady, until
from tests.deploying import SECOND_SCHEDULER

SETTLE = 1.5
CALLS = 10
"""Of the webhook and of the extender each, between any two steps of the change."""
LATE = 0.5
PORT = 8443
LEAVES = (names.WEBHOOK_CERTIFICATE, names.EXTENDER_CERTIFICATE, names.SCHEDULER_CERTIFICATE)


async def allow(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that allows every review."""
    body = (await receive())["body"]
    uid = json.loads(body)["request"]["uid"] if scope["path"] == "/mutate" else ""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": uid, "allowed": True},
    }
    answer = json.dumps(review).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


async def kubelet(store: Store, secret: str, directory: Path, delivered: dict[str, str]) -> None:
    """Bring a Secret to a directory, a little late each time; `delivered` tells which version is there."""
    while True:
        found = await store.read(secret)
        if found is not None and found.metadata.resource_version != delivered.get(secret):
            await asyncio.sleep(LATE)
            content = {name: found.text(name) for name in (files.CERTIFICATE, files.KEY, files.AUTHORITIES)}
            await asyncio.to_thread(files.project, directory, content)
            delivered[secret] = found.metadata.resource_version
        await asyncio.sleep(0.1)


class SchedulerPod:
    """Calls the extender, on a new connection each time."""

    def __init__(self, directory: Path, name: str, port: Callable[[], int]) -> None:
        self._directory = directory
        self._name = name
        self._port = port
        self.authorities = ""
        self.calls = 0
        self.failures: list[str] = []
        self.serials: set[str] = set()

    def restart(self) -> None:
        self.authorities = (self._directory / files.AUTHORITIES).read_text()

    async def call(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.authorities)
        base = (self._directory / files.LINK).resolve()
        context.load_cert_chain(base / files.CERTIFICATE, base / files.KEY)
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self._port(), ssl=context, server_hostname=self._name
            )
            try:
                self.serials.add(writer.get_extra_info("ssl_object").getpeercert()["serialNumber"])
                writer.write(b"POST /filter HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
                answer = await asyncio.wait_for(reader.readline(), 30)
            finally:
                writer.transport.abort()
        except OSError as error:
            self.failures.append(str(error))
        else:
            if b" 200 " not in answer:
                self.failures.append(repr(answer))
        self.calls += 1

    async def run(self, enough: asyncio.Event) -> None:
        while not enough.is_set():
            await self.call()
            await asyncio.sleep(0.02)


@asynccontextmanager
async def background(*work: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def service() -> dict[str, Any]:
    """The webhook's. Its address is on loopback (`ControlPlane`), where our own server listens."""
    return {"metadata": {"name": names.WEBHOOK_SERVICE}, "spec": {"ports": [{"port": PORT}]}}


def configuration(namespace: str) -> dict[str, Any]:
    target = {"name": names.WEBHOOK_SERVICE, "namespace": namespace, "path": "/mutate", "port": PORT}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    return {
        "metadata": {"name": names.WEBHOOK_CONFIGURATION},
        "webhooks": [
            {
                "name": "change.ateplace.ate.dev",
                "clientConfig": {"service": target},
                "rules": [rule],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "failurePolicy": "Fail",
                "timeoutSeconds": 30,
            }
        ],
    }


def deployment() -> dict[str, Any]:
    labels = {"app": names.SCHEDULER}
    container = {"name": "kube-scheduler", "image": "registry.k8s.io/kube-scheduler:v1.36.3"}
    return {
        "metadata": {"name": names.SCHEDULER},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
            },
        },
    }


def test_a_change_of_authority_costs_no_call(
    plane: ControlPlane, namespace: str, nodes: Callable[..., list[str]], tmp_path: Path
) -> None:
    nodes(1)
    settings = Settings(
        cluster=Cluster(kubeconfig=str(plane.kubeconfig), namespace=namespace, request_timeout=60),
        certs=Certs(settle=SETTLE),
    )
    asyncio.run(change(plane, namespace, settings, tmp_path))


async def change(plane: ControlPlane, namespace: str, settings: Settings, root: Path) -> None:
    kube = await Kube.connect(settings.cluster)
    store = Store(kube, namespace)
    keeper = Keeper(kube, settings)
    name, _ = service_names(names.WEBHOOK_SERVICE, namespace)
    webhook = CertificateSource(root / names.WEBHOOK_CERTIFICATE, client_ca=False, names=[name], poll=0.1)
    extender = extender_source(root, settings)
    limits = Limits(body_bytes=1 << 20)
    address = plane.api.post(f"/api/v1/namespaces/{namespace}/services", service())["spec"]["clusterIP"]
    hook = Server(allow, host=address, port=PORT, tls=webhook.context, limits=limits)
    verbs = Server(allow, host="127.0.0.1", port=0, tls=extender.context, limits=limits, accepts=extender.accepts)
    pod = SchedulerPod(root / names.SCHEDULER_CERTIFICATE, extender_name(settings), lambda: verbs.port)
    refusals: list[str] = []
    reviews = 0
    enough = asyncio.Event()
    delivered: dict[str, str] = {}

    async def api_server_calls() -> None:
        nonlocal reviews
        while True:
            try:
                body = {"metadata": {"generateName": "call-"}}
                path = f"/api/v1/namespaces/{namespace}/configmaps"
                await kube.create(path, body, object, query={"dryRun": "All"})
            except ServerError as error:
                refusals.append(str(error))
            reviews += 1
            await asyncio.sleep(0.02)

    async def everybody_calls() -> None:
        current = {secret: await version(store, secret) for secret in LEAVES}
        await until(lambda: delivered == current)
        calls, asked = pod.calls, reviews
        await until(lambda: pod.calls >= calls + CALLS and reviews >= asked + CALLS)

    async def pods_are_replaced() -> None:
        """Restart our scheduler whenever its pod is another one and runs."""
        last = ""
        while True:
            query = {"labelSelector": f"app={names.SCHEDULER}", "fieldSelector": "status.phase=Running"}
            async for found in kube.list(f"/api/v1/namespaces/{namespace}/pods", Secret, query=query):
                if found.metadata.uid != last and found.metadata.deletion_timestamp is None:
                    last = found.metadata.uid
                    pod.restart()
            await asyncio.sleep(0.1)

    try:
        await keeper.bring_into_step()
        kubelets = (kubelet(store, secret, root / secret, delivered) for secret in LEAVES)
        async with background(*kubelets, webhook.run(), extender.run()):
            await webhook.ready()
            await extender.ready()
            await hook.start()
            await verbs.start()
            await kube.create(paths.MUTATING_WEBHOOKS.everywhere, configuration(namespace), object)
            await kube.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment(), object)
            await steady(keeper)
            async with background(pods_are_replaced()):
                await until(lambda: bool(pod.authorities))
                async with background(api_server_calls()), asyncio.TaskGroup() as group:
                    group.create_task(pod.run(enough))
                    (old,) = await authorities(store)
                    await keeper.change_authority("for a test")
                    phases = await steady(keeper, everybody_calls)
                    (new,) = await authorities(store)
                    await until(lambda: pod.authorities.count("BEGIN") == 1 and len(load(pod)) == 1)
                    assert load(pod) == {new} != {old}
                    await everybody_calls()
                    enough.set()
        print(f"\n{pod.calls} calls of the extender, {reviews} of the webhook, {pod.failures + refusals} failed")
        assert pod.failures == []
        assert refusals == []
        assert len(pod.serials) == 2
        assert {Phase.RESTARTING, Phase.DROPPING} < set(phases), "both halves of the change, each with calls in it"
    finally:
        with suppress(ApiError):  # where it was never created the reason for that is the one to show
            plane.api.delete(f"{paths.MUTATING_WEBHOOKS.everywhere}/{names.WEBHOOK_CONFIGURATION}")
        await hook.stop(1.0)
        await verbs.stop(1.0)
        await kube.close()


def test_an_installation_places_ateoms_after_a_change_of_authority() -> None:
    """The processes of `local` follow their Secrets, and the scheduler's its Deployment, as pods do."""
    with ControlPlane(nodes=2) as own:
        substrate.install(own)
        installed = Installation(own, SECOND_SCHEDULER, certs__settle=1, certs__poll=0.2, serve__drain=0)
        installed.start()
        own.api.post("/api/v1/namespaces", {"metadata": {"name": "agents"}})

        def placed() -> int:
            pods = own.api.list("/api/v1/namespaces/agents/pods", labelSelector=names.POOL_LABEL)
            return sum(bool(pod["spec"].get("nodeName")) for pod in pods)

        substrate.pool(own, "agents", "web", 1)
        own.wait(lambda: placed() == 1, timeout=60, why="an ateom under the first authority")
        for number in (2, 3):
            rotate(own)
            substrate.scale(own, "agents", "web", number)
            own.wait(lambda number=number: placed() == number, timeout=60, why="an ateom under the next")  # type: ignore[misc]


def rotate(plane: ControlPlane) -> None:
    flags = (f"--set=cluster.kubeconfig={plane.kubeconfig}", "--set=certs.settle=1")
    argv = [sys.executable, "-m", "ateplace.cli", "certs", "rotate-ca", "--wait", *flags]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr


def load(pod: SchedulerPod) -> set[str]:
    return {fingerprint(each) for each in load_certificates(pod.authorities.encode())}


async def version(store: Store, secret: str) -> str:
    found = await store.read(secret)
    assert found is not None
    return found.metadata.resource_version


async def authorities(store: Store) -> set[str]:
    found = await store.read(names.EXTENDER_CERTIFICATE)
    assert found is not None
    return {fingerprint(each) for each in found.certificates(files.AUTHORITIES)}
