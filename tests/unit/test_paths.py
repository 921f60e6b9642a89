"""Names of objects in paths: whatever a name says, the request goes to the resource that was meant."""

import asyncio
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ateplace.errors import NotFound
from ateplace.kube import paths
from ateplace.kube.objects import Pod
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving

HOSTILE = ["..", ".", "", "a/b", "../../../../api/v1/pods?watch=true", "%2e%2e", "a%2Fb", "x" * 254]


@pytest.mark.parametrize("name", HOSTILE)
def test_what_can_be_no_objects_name_is_not_found(name: str) -> None:
    with pytest.raises(NotFound):
        paths.PODS.within(name)
    with pytest.raises(NotFound):
        paths.REPLICA_SETS.named(name, "ns")


@given(st.text(max_size=300), st.text(max_size=300))
def test_a_name_is_one_segment_or_refused(namespace: str, name: str) -> None:
    try:
        path = paths.PODS.named(name, namespace or "ns")
    except NotFound:
        return
    assert paths.SAFE.fullmatch(path)
    assert [unquote(part) for part in path.split("/")] == [
        "",
        "api",
        "v1",
        "namespaces",
        namespace or "ns",
        "pods",
        name,
    ]


def test_paths_are_those_of_the_api() -> None:
    assert paths.NODES.named("node-1") == "/api/v1/nodes/node-1"
    assert paths.POOLS.everywhere == "/apis/ate.dev/v1alpha1/workerpools"
    assert paths.POOLS.named("web", "demo") == "/apis/ate.dev/v1alpha1/namespaces/demo/workerpools/web"
    assert paths.pod_proxy("ns", "p", 8080, "readyz") == "/api/v1/namespaces/ns/pods/http:p:8080/proxy/readyz"


@pytest.mark.parametrize(
    "path", ["/api/v1/../secrets", "/api/v1/pods?watch=1", "/api//v1", "/api/v1/pods#x", "api", ""]
)
def test_the_client_sends_no_other_path(path: str, tmp_path: Path) -> None:
    async def ask() -> None:
        async with (
            serving(answer) as server,
            connected(kubeconfig(tmp_path, server.url, token="t")) as kube,
        ):
            with pytest.raises(ValueError, match="not a path of ours"):
                await kube.get(path, Pod)
            assert not server.requests

    async def answer(_: Request, answer: Answer) -> None:
        await answer.reply(200, {})

    asyncio.run(ask())
