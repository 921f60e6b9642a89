"""The webhook as a process: when it is ready, how it leaves, what it forgets to say; and the policy beside it."""

import asyncio
import contextlib
import json
import signal
import ssl
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from ateplace import names
from ateplace.local import ApiError, ControlPlane, substrate, webhooks
from ateplace.local.api import Object
from ateplace.local.webhooks import Webhook


@pytest.fixture(scope="module", autouse=True)
def access(plane: ControlPlane) -> None:
    substrate.install(plane, controller=False)
    webhooks.install_access(plane)


def test_it_is_ready_once_it_has_pools_classes_and_a_certificate(plane: ControlPlane) -> None:
    webhook = Webhook(plane)
    webhook.launch()
    try:
        expected = "webhook: waiting for a certificate\n"
        plane.wait(lambda: webhook.readyz().text == expected, why="everything but a certificate")
        assert webhook.readyz().status_code == 503
        assert httpx.get(f"http://127.0.0.1:{webhook.health_port}/healthz", timeout=30, trust_env=False).text == "ok\n"
        webhook.write_certificate()
        plane.wait(webhook.ready, why="the webhook to be ready")
    finally:
        assert webhook.stop() == 0


def test_it_can_be_stopped_while_it_waits_for_a_certificate(plane: ControlPlane) -> None:
    webhook = Webhook(plane)
    webhook.launch()
    start = time.monotonic()
    assert webhook.stop() == 0
    assert time.monotonic() - start < 10


def test_an_account_without_rights_is_not_ready_and_says_why(plane: ControlPlane, namespace: str) -> None:
    kubeconfig = plane.kubeconfig_for(service_account=f"{namespace}/default")
    webhook = Webhook(plane, **{"cluster.kubeconfig": kubeconfig})
    webhook.write_certificate()
    webhook.launch()
    try:
        plane.wait(lambda: "the list of WorkerPools has not arrived yet" in webhook.readyz().text, why="a reason")
    finally:
        webhook.stop()


def review(namespace: str) -> bytes:
    pod = {"metadata": {"labels": {names.POOL_LABEL: "pool"}}, "spec": {"containers": []}}
    request = {
        "uid": "u",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": namespace,
        "object": pod,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(body).encode()


class Client:
    """Keeps one connection, as a Go client does, to whichever webhook the Service would send it to."""

    def __init__(self, backends: list[Webhook], trust: dict[str, ssl.SSLContext], body: bytes) -> None:
        self.backends = backends
        self.trust = trust
        head = (
            f"POST /mutate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        self.request = f"{head}\r\n\r\n".encode() + body
        self.calls = 0
        self.failed: list[str] = []
        self.done = asyncio.Event()

    async def run(self) -> None:
        while not self.done.is_set():
            backend = self.backends[0]
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", backend.port, ssl=self.trust[backend.name], server_hostname="localhost"
                )
                try:
                    await self._call(reader, writer)
                finally:
                    # Without a farewell, so that nothing of the connection is left when the loop ends.
                    writer.transport.abort()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
            except (OSError, asyncio.IncompleteReadError, AssertionError) as error:
                self.failed.append(f"{backend.name}: {error!r}")

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until we are done, or the server asks for another connection."""
        while not self.done.is_set():
            writer.write(self.request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            answer = await reader.readexactly(length)
            assert b'"allowed":true' in answer, answer
            self.calls += 1
            if b"connection: close" in head:
                return


async def calls(clients: list[Client], count: int) -> None:
    """Wait until every client has made this many more."""
    wanted = [client.calls + count for client in clients]
    while any(client.calls < goal for client, goal in zip(clients, wanted, strict=True)):  # noqa: ASYNC110 - counters
        await asyncio.sleep(0.01)


def test_a_rolling_restart_fails_no_call(plane: ControlPlane, namespace: str) -> None:
    substrate.pool(plane, namespace, "pool")
    old, new = Webhook(plane, **{"serve.drain": 5}).start(), Webhook(plane).start()
    trust = {each.name: ssl.create_default_context(cadata=each.ca.decode()) for each in (old, new)}

    async def roll() -> list[Client]:
        backends = [old]
        clients = [Client(backends, trust, review(namespace)) for _ in range(20)]
        tasks = [asyncio.create_task(client.run()) for client in clients]
        async with asyncio.timeout(60):
            await calls(clients, 5)
            old.signal(signal.SIGTERM)
            await asyncio.sleep(0.3)  # until the Service has noticed; shorter than the drain
            backends[:] = [new]
            code = await asyncio.to_thread(plane.keeper.wait, old.name, 30)
            assert code == 0
            await calls(clients, 5)
            for client in clients:
                client.done.set()
            await asyncio.gather(*tasks)
        return clients

    try:
        clients = asyncio.run(roll())
    finally:
        new.stop()
    assert [failure for client in clients for failure in client.failed] == []
    assert sum(client.calls for client in clients) > 200


def test_nothing_of_a_pod_is_logged(plane: ControlPlane, namespace: str) -> None:
    secret = "never-log-this-value"
    with webhooks.webhook(plane, log__level="debug") as webhook:
        webhooks.select(plane, namespace, webhook)
        substrate.pool(plane, namespace, "pool")
        body: Object = {
            "metadata": {"generateName": "p-", "labels": {names.POOL_LABEL: "pool"}, "annotations": {"a": secret}},
            "spec": {"containers": [{"name": "c", "image": "i", "env": [{"name": "PASSWORD", "value": secret}]}]},
        }
        plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body, dryRun="All")
        assert webhook.reviews()["patched"] >= 1
        assert secret not in webhook.log()


@pytest.fixture(scope="module")
def policy(plane: ControlPlane) -> Iterator[None]:
    plane.apply(webhooks.BASE / "pool-uid-policy.yaml")
    yield
    plane.kubectl("delete", "-f", str(webhooks.BASE / "pool-uid-policy.yaml"))


def refused(plane: ControlPlane, path: str, patch: Object) -> bool:
    """Whether the change (a trial) meets our policy."""
    try:
        plane.api.patch(path, patch, dryRun="All")
    except ApiError as error:
        if error.status == 422 and "ValidatingAdmissionPolicy 'ateplace-pool-uid'" in error.body:
            return True
        raise
    return False


def test_the_uid_label_cannot_be_changed_after_creation(plane: ControlPlane, namespace: str, policy: None) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    gate = {"schedulingGates": [{"name": "test/held"}], "containers": [{"name": "c", "image": "i"}]}
    plane.api.post(pods, {"metadata": {"name": "with", "labels": {names.POOL_UID_LABEL: "a"}}, "spec": gate})
    plane.api.post(pods, {"metadata": {"name": "without"}, "spec": gate})
    changed: Object = {"metadata": {"labels": {names.POOL_UID_LABEL: "b"}}}
    removed: Object = {"metadata": {"labels": {names.POOL_UID_LABEL: None}}}
    plane.wait(lambda: refused(plane, f"{pods}/with", changed), why="the policy to work")
    for change in (changed, removed, {"metadata": {"labels": None}}):
        assert refused(plane, f"{pods}/with", change)
        assert refused(plane, f"{pods}/with/status", change)
    assert refused(plane, f"{pods}/without", changed)
    for path in (f"{pods}/with", f"{pods}/without"):
        other: Object = {"metadata": {"labels": {"other": "label"}}}
        assert not refused(plane, path, other)
        assert not refused(plane, path, {"spec": {"schedulingGates": []}})
        assert not refused(plane, f"{path}/status", {"status": {"phase": "Running"}})


def test_a_pod_with_a_uid_does_not_become_an_ateom_or_a_placeholder(
    plane: ControlPlane, namespace: str, policy: None
) -> None:
    """The webhook sees pods that name a pool as they are created, and no other."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    gate = {"schedulingGates": [{"name": "test/held"}], "containers": [{"name": "c", "image": "i"}]}
    uid = {names.POOL_UID_LABEL: "a"}
    for name, labels in {
        "bare": uid,
        "ateom": {**uid, names.POOL_LABEL: "pool"},
        "placeholder": {**uid, names.PLACEHOLDER_LABEL: "pool"},
        "stranger": {"app": "web"},
        "unlabelled": {},
    }.items():
        plane.api.post(pods, {"metadata": {"name": name, "labels": labels}, "spec": gate})

    def label(key: str, value: str | None) -> Object:
        return {"metadata": {"labels": {key: value}}}

    plane.wait(lambda: refused(plane, f"{pods}/bare", label(names.POOL_UID_LABEL, "b")), why="the policy to work")
    pool, placeholder = names.POOL_LABEL, names.PLACEHOLDER_LABEL
    expected = {
        ("bare", pool, "y"): True,
        ("bare", placeholder, "y"): True,
        ("ateom", pool, "y"): True,
        ("ateom", pool, "pool"): False,
        ("ateom", pool, None): False,
        ("ateom", placeholder, "y"): True,
        ("placeholder", placeholder, "y"): True,
        ("placeholder", placeholder, None): True,
        ("placeholder", pool, "y"): True,
        ("placeholder", "other", "label"): False,
        ("stranger", pool, "y"): False,
        ("stranger", placeholder, "y"): False,
        ("unlabelled", pool, "y"): False,
    }
    for way in ("", "/status"):
        said = {case: refused(plane, f"{pods}/{case[0]}{way}", label(*case[1:])) for case in expected}
        assert said == expected, way


def test_a_binding_brings_none_of_our_labels(
    plane: ControlPlane, namespace: str, policy: None, nodes: Callable[..., list[str]]
) -> None:
    """The API server copies a Binding's labels onto its pod, over those that are there."""
    pods, (node,) = f"/api/v1/namespaces/{namespace}/pods", nodes(1)
    spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "registry.example/c:1"}]}
    labels = {names.POOL_LABEL: "a", names.POOL_UID_LABEL: "a", names.PLACEHOLDER_LABEL: "a"}
    for name in ("plain", "labelled"):
        plane.api.post(pods, {"metadata": {"name": name, "labels": {names.POOL_UID_LABEL: "a"}}, "spec": spec})

    def bind(name: str, labels: dict[str, str], *, legacy: bool = False, dry: bool = True) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        metadata = {"name": name, "labels": labels} if labels else {"name": name}
        path = f"/api/v1/namespaces/{namespace}/bindings" if legacy else f"{pods}/{name}/binding"
        plane.api.post(path, {"metadata": metadata, "target": target}, **({"dryRun": "All"} if dry else {}))

    def denied(labels: dict[str, str], *, legacy: bool = False) -> bool:
        try:
            bind("labelled", labels, legacy=legacy)
        except ApiError as error:
            if error.status == 422 and "ValidatingAdmissionPolicy 'ateplace-bindings'" in error.body:
                return True
            raise
        return False

    plane.wait(lambda: denied({names.POOL_UID_LABEL: "b"}), why="the policy to work")
    for key in labels:
        for legacy in (False, True):
            assert denied({key: "b"}, legacy=legacy), (key, legacy)
    assert denied({"example.com/a": "b", **labels})
    bind("plain", {}, dry=False)
    bind("labelled", {"example.com/a": "b"}, legacy=True, dry=False)
    for name in ("plain", "labelled"):
        found = plane.api.get(f"{pods}/{name}")
        assert (found["spec"]["nodeName"], found["metadata"]["labels"][names.POOL_UID_LABEL]) == (node, "a")
