"""The API client on a real API server."""

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ateplace import errors
from ateplace.kube import Kube, access, client, credentials
from ateplace.kube.objects import Node, Pod
from ateplace.local import ControlPlane
from ateplace.settings import Cluster

pytestmark = pytest.mark.versions

Nodes = Callable[..., list[str]]


@contextlib.asynccontextmanager
async def connected(kubeconfig: Path | str) -> AsyncIterator[Kube]:
    kube = await Kube.connect(Cluster(kubeconfig=str(kubeconfig)))
    try:
        yield kube
    finally:
        await kube.close()


def use(kubeconfig: Path | str, what: Callable[[Kube], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with connected(kubeconfig) as kube:
            return await what(kube)

    return asyncio.run(main())


def labelled(**metadata: object) -> dict[str, object]:
    return {"metadata": {"labels": {"test": "x"}, **metadata}}


def test_a_patch_of_the_right_object_is_carried_out(plane: ControlPlane, nodes: Nodes) -> None:
    async def main(kube: Kube) -> Node:
        for _ in range(20):  # the node's own controllers write, too
            meta = (await kube.get(path, Node)).metadata
            with contextlib.suppress(errors.Conflict):
                return await kube.patch(path, labelled(uid=meta.uid, resourceVersion=meta.resource_version), Node)
        pytest.fail("always a conflict")

    path = f"/api/v1/nodes/{nodes(1)[0]}"
    assert use(plane.kubeconfig, main).metadata.label("test") == "x"


@pytest.mark.parametrize("wrong", [{"uid": str(uuid.uuid4())}, {"resourceVersion": "1"}])
def test_a_patch_of_another_object_or_version_is_a_conflict_and_changes_nothing(
    plane: ControlPlane, nodes: Nodes, wrong: dict[str, str]
) -> None:
    path = f"/api/v1/nodes/{nodes(1)[0]}"
    with pytest.raises(errors.Conflict):
        use(plane.kubeconfig, lambda kube: kube.patch(path, labelled(**wrong), Node))
    assert "test" not in plane.api.get(path)["metadata"]["labels"]


def test_a_patch_of_a_node_that_is_gone_makes_no_new_one(plane: ControlPlane, nodes: Nodes) -> None:
    async def main(kube: Kube) -> None:
        await kube.delete(path)
        with pytest.raises(errors.NotFound) as caught:
            await kube.patch(path, labelled(), Node)
        assert caught.value.reason == "NotFound"

    path = f"/api/v1/nodes/{nodes(1)[0]}"
    use(plane.kubeconfig, main)
    assert not plane.api.exists(path)


def test_verbs_meet_the_conditions_that_they_were_given(plane: ControlPlane, namespace: str) -> None:
    collection = f"/api/v1/namespaces/{namespace}/configmaps"
    body = {"metadata": {"name": "c"}, "data": {"a": "1"}}

    async def main(kube: Kube) -> None:
        made: Any = await kube.create(collection, body, object)
        with pytest.raises(errors.Conflict) as caught:
            await kube.create(collection, body, object)
        assert caught.value.reason == "AlreadyExists"
        changed: Any = await kube.replace(f"{collection}/c", {**made, "data": {"a": "2"}}, object)
        assert changed["data"] == {"a": "2"}
        with pytest.raises(errors.Conflict):
            await kube.replace(f"{collection}/c", {**made, "data": {"a": "3"}}, object)
        with pytest.raises(errors.Conflict):
            await kube.delete(f"{collection}/c", uid=str(uuid.uuid4()))
        with pytest.raises(errors.Conflict):
            await kube.delete(f"{collection}/c", resource_version=made["metadata"]["resourceVersion"])
        await kube.patch(f"{collection}/c", [{"op": "remove", "path": "/data/a"}], object, kind="json")
        with pytest.raises(errors.Invalid):
            await kube.patch(f"{collection}/c", [{"op": "remove", "path": "/data/a"}], object, kind="json")
        await kube.delete(f"{collection}/c", uid=made["metadata"]["uid"], propagation="Background")
        with pytest.raises(errors.NotFound):
            await kube.get(f"{collection}/c", object)

    use(plane.kubeconfig, main)


def test_what_is_not_allowed_is_forbidden_and_says_for_whom(plane: ControlPlane) -> None:
    with pytest.raises(errors.Forbidden, match='User "nobody" cannot get resource "nodes"'):
        use(plane.kubeconfig_for(user="nobody"), lambda kube: kube.get("/api/v1/nodes/n", Node))


def test_a_list_comes_whole_in_small_pages(
    plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAGE_ITEMS", 3)
    path = f"/api/v1/namespaces/{namespace}/pods"
    spec = {"containers": [{"name": "c", "image": "i"}]}

    async def main(kube: Kube) -> list[str]:
        for number in range(10):
            meta = {"name": f"p{number}", "labels": {"odd": str(number % 2)}}
            await kube.create(path, {"metadata": meta, "spec": spec}, Pod)
        return [pod.metadata.name async for pod in kube.list(path, Pod, query={"labelSelector": "odd=1"})]

    assert use(plane.kubeconfig, main) == ["p1", "p3", "p5", "p7", "p9"]


async def who(kube: Kube) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    review: Any = await kube.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", body, object)
    return str(review["status"]["userInfo"]["username"])


class Mounted:
    """A ServiceAccount's files and variables, as the kubelet gives them to a pod."""

    def __init__(self, plane: ControlPlane, namespace: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._plane = plane
        self._namespace = namespace
        self.token = directory / "token"
        (directory / "ca.crt").write_bytes((plane.directory / "pki" / "ca.crt").read_bytes())
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(plane.port))
        monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", directory)

    def rotate(self, account: str) -> None:
        collection = f"/api/v1/namespaces/{self._namespace}/serviceaccounts"
        if not self._plane.api.exists(f"{collection}/{account}"):
            self._plane.api.post(collection, {"metadata": {"name": account}})
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        fresh = self.token.with_suffix(".new")
        fresh.write_text(self._plane.api.post(f"{collection}/{account}/token", request)["status"]["token"])
        os.replace(fresh, self.token)  # noqa: PTH105 - as the kubelet swaps


@pytest.fixture
def mounted(plane: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounted:
    return Mounted(plane, namespace, tmp_path, monkeypatch)


def test_a_mounted_token_is_followed_as_it_rotates(
    mounted: Mounted, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(kube: Kube) -> list[str]:
        seen = [await who(kube)]
        mounted.rotate("two")
        seen.append(await who(kube))
        monkeypatch.setattr(access, "TOKEN_SECONDS", 0.0)
        seen.append(await who(kube))
        mounted.token.unlink()
        return [*seen, await who(kube)]

    mounted.rotate("one")
    seen = use("", main)
    assert [name.rpartition(":")[2] for name in seen] == ["one", "one", "two", "two"]


def test_a_mounted_token_that_is_refused_is_read_again_at_once(mounted: Mounted) -> None:
    async def main(kube: Kube) -> str:
        mounted.rotate("one")
        return await who(kube)

    mounted.token.write_text("stale")
    assert use("", main).endswith(":one")
