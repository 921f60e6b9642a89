"""Giving everything back while others go on writing."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ateplace import names
from ateplace.cli.uninstall import Removal, gated
from ateplace.kube.objects import Pod
from ateplace.settings import Settings
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving


def test_a_pool_that_somebody_else_has_just_written_is_read_again_and_let_go(tmp_path: Path) -> None:
    versions = iter(range(2, 10))
    written: list[Any] = []

    def pool(version: int) -> dict[str, Any]:
        finalizers = [names.FINALIZER, "others.example/keep"]
        return {
            "metadata": {
                "name": "a",
                "namespace": "ns",
                "uid": "A",
                "resourceVersion": str(version),
                "finalizers": finalizers,
            }
        }

    async def handle(request: Request, answer: Answer) -> None:
        if request.method == "GET" and request.path.endswith("workerpools"):
            await answer.reply(200, {"metadata": {}, "items": [pool(1)]})
        elif request.method == "GET":
            await answer.reply(200, pool(next(versions)))
        elif (meta := request.json["metadata"])["resourceVersion"] != "3":
            await answer.refuse(409, "Conflict", "the object has been modified")
        else:
            written.append(meta["finalizers"])
            await answer.reply(200, pool(4))

    async def main() -> list[str]:
        said: list[str] = []
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            await Removal(kube, Settings(), said.append, dry_run=False)._pools()
        return said

    assert asyncio.run(main()) == ["take our finalizer off WorkerPools: 1"]
    assert written == [["others.example/keep"]]


@pytest.mark.parametrize(("bound", "deleted"), [(True, []), (False, ["2"])])
def test_a_pod_that_was_written_since_it_was_found_waiting_is_looked_at_again(
    tmp_path: Path, bound: bool, deleted: list[str]
) -> None:
    """A scheduler that is not ours to stop may have bound it: then its ateom is at work."""
    ended: list[str] = []

    def pod(version: str, node: str) -> dict[str, Any]:
        owners = [{"kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}]
        meta = {"name": "p", "namespace": "ns", "uid": "P", "resourceVersion": version, "ownerReferences": owners}
        return {"metadata": meta, "spec": {"nodeName": node, "schedulerName": names.SCHEDULER}}

    async def handle(request: Request, answer: Answer) -> None:
        if request.method == "GET" and request.path == "/api/v1/pods":
            await answer.reply(200, {"metadata": {}, "items": [pod("1", "")]})
        elif request.method == "GET":
            await answer.reply(200, pod("2", "n1" if bound else ""))
        elif (asked := request.json.get("preconditions", {})) == {"uid": "P", "resourceVersion": "1"}:
            await answer.refuse(409, "Conflict", "the object has been modified")
        else:
            ended.append(asked.get("resourceVersion"))
            await answer.reply(200, {})

    async def main() -> list[str]:
        said: list[str] = []
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            await Removal(kube, Settings(), said.append, dry_run=False)._waiting()
        return said

    said = asyncio.run(main())
    assert ended == deleted
    assert len(said) == len(deleted)


def test_a_node_that_was_made_anew_meanwhile_does_not_stop_it(tmp_path: Path) -> None:
    node = {"metadata": {"name": "n1", "uid": "old", "labels": {names.NODE_LABEL: "true"}}}

    async def handle(request: Request, answer: Answer) -> None:
        if request.method == "GET":
            await answer.reply(200, {"metadata": {}, "items": [node]})
        else:
            await answer.refuse(409, "Conflict", "Precondition failed: UID in precondition: old")

    async def main() -> None:
        async with serving(handle) as server, connected(kubeconfig(tmp_path, server.url)) as kube:
            await Removal(kube, Settings(), lambda _: None, dry_run=False)._nodes()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("container", "resource", "expected"),
    [
        (names.INIT_CONTAINER, "ateplace.ate.dev/gate", True),
        (names.INIT_CONTAINER, "cpu", False),
        ("somebody-elses", "vendor.example/gpu", False),
    ],
)
def test_a_pod_whose_init_container_wants_what_no_node_has_waits_for_us(
    container: str, resource: str, expected: bool
) -> None:
    init = {"name": container, "resources": {"requests": {resource: "1"}}}
    assert gated(msgspec.convert({"metadata": {}, "spec": {"initContainers": [init]}}, Pod)) is expected
