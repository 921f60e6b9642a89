"""A large cluster for `bench.map`: answers the map's five watches as an API server does, from objects made up here.

A real API server with 5,000 nodes would take the machine's time for itself; what is measured is the map.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from ateplace import names

Object = dict[str, Any]
ZONES = ("zone-a", "zone-b", "zone-c")
TOUCHED = "2026-11-18T00:00:00.000000+00:00"
CAPACITY = {"cpu": "32", "memory": "128Gi", "pods": "110", "ephemeral-storage": "100Gi"}
READY = [{"type": "Ready", "status": "True"}]


class Cluster:
    """`node`, `pod`, `pool` and `atelet` make or change an object and tell every watch."""

    def __init__(self) -> None:
        self._versions = itertools.count(1)
        self._objects: dict[str, dict[str, Object]] = {"nodes": {}, "pods": {}, "workerpools": {}}
        self._watches: set[tuple[str, Callable[[Object], bool], asyncio.Queue[Object]]] = set()

    def _put(self, kind: str, body: Object) -> None:
        body["metadata"]["resourceVersion"] = str(next(self._versions))
        key = f"{body['metadata'].get('namespace', '')}/{body['metadata']['name']}"
        event = {"type": "MODIFIED" if key in self._objects[kind] else "ADDED", "object": body}
        self._objects[kind][key] = body
        for other, wanted, queue in self._watches:
            if other == kind and wanted(body):
                queue.put_nowait(event)

    def pool(self, name: str, replicas: int) -> None:
        meta = {"name": name, "namespace": "bench", "uid": f"uid-{name}"}
        self._put("workerpools", {"metadata": meta, "spec": {"replicas": replicas, "ateomImage": "x"}})

    def node(self, name: str, zone: str, *pools: str) -> None:
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "topology.kubernetes.io/zone": zone}
        if pools:
            labels[names.NODE_LABEL] = "true"
        claims = {names.claim_key(f"uid-{pool}"): TOUCHED for pool in pools}
        meta = {"name": name, "uid": f"uid-{name}", "labels": labels, "annotations": claims}
        status = {"allocatable": CAPACITY, "capacity": CAPACITY, "conditions": READY}
        self._put("nodes", {"metadata": meta, "spec": {}, "status": status})

    def pod(self, pool: str, number: int, node: str = "", *, ready: bool = False) -> None:
        name = f"{pool}-deployment-7c9f8d6b5-{number:05d}"
        labels = {names.POOL_LABEL: pool, names.POOL_UID_LABEL: f"uid-{pool}", "pod-template-hash": "7c9f8d6b5"}
        env = [{"name": f"SETTING_{index}", "value": "x" * 40} for index in range(12)]
        resources = {"requests": {"cpu": "500m", "memory": "512Mi"}}
        container = {"name": "ateom", "image": "registry.example/ateom:1", "env": env, "resources": resources}
        spec = {"nodeName": node, "schedulerName": names.SCHEDULER, "containers": [container]}
        status = {"phase": "Running" if ready else "Pending", "conditions": READY if ready else []}
        meta = {"name": name, "namespace": "bench", "uid": f"uid-{name}", "labels": labels}
        self._put("pods", {"metadata": meta, "spec": spec, "status": status})

    def atelet(self, node: str) -> None:
        own: Object = {"name": f"atelet-{node}", "namespace": names.ATELET_NAMESPACE, "uid": f"uid-atelet-{node}"}
        self._put(
            "pods",
            {
                "metadata": own | {"labels": {"app": "atelet"}},
                "spec": {"nodeName": node},
                "status": {"conditions": READY},
            },
        )

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        kind = request.path.rpartition("/")[2]
        if kind == "version":
            return web.json_response({"gitVersion": "v1.36.3"})
        if kind not in self._objects or not request.query.get("watch"):
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        key, _, value = request.query.get("labelSelector", "").partition("=")

        def wanted(body: Object) -> bool:
            labels = body["metadata"].get("labels") or {}
            return not key or (key in labels and value in {"", labels[key]})

        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        queue: asyncio.Queue[Object] = asyncio.Queue()
        watch = (kind, wanted, queue)
        listed = [body for body in self._objects[kind].values() if wanted(body)]
        version = str(next(self._versions))
        self._watches.add(watch)
        try:
            for body in listed:
                await answer.write(json.dumps({"type": "ADDED", "object": body}).encode() + b"\n")
            end = {"resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"}}
            await answer.write(json.dumps({"type": "BOOKMARK", "object": {"metadata": end}}).encode() + b"\n")
            while True:
                event = await queue.get()
                await answer.write(json.dumps(event).encode() + b"\n")
        finally:
            self._watches.discard(watch)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Its address, for the length of a block."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()
