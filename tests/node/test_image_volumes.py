"""Placeholders have nodes pull their pool's image before a burst; this takes containerd 2."""

from collections.abc import Iterator

import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.pods import Installation
from ateplace.local.realnode import RealNode, stand_ins
from tests.node.observing import SMALL, containers
from tests.node.registry import Registry

pytestmark = pytest.mark.long
HOST = "images.test"
IMAGE = f"{HOST}/ateom:1"


@pytest.fixture(scope="module")
def node(installed: Installation, plane: ControlPlane) -> Iterator[RealNode]:
    with RealNode(plane, "two", containerd_2=True) as node:
        plane.wait(node.ready, timeout=120, why="the node to be Ready", every=0.2)
        yield node


def test_the_node_runs_containerd_2(plane: ControlPlane, node: RealNode) -> None:
    said = plane.api.get(f"/api/v1/nodes/{node.name}")["status"]["nodeInfo"]["containerRuntimeVersion"]
    assert said.startswith("containerd://2."), said


def test_an_ateom_starts_from_an_image_that_its_placeholder_had_pulled(
    plane: ControlPlane, node: RealNode, namespace: str
) -> None:
    image = stand_ins.ateom(1)  # other bytes than those of images that the node has
    where = {"kubernetes.io/hostname": node.name}
    path = f"/api/v1/namespaces/{namespace}/pods"

    def one(selector: str) -> Object:
        found = plane.api.list(path, labelSelector=selector)
        assert [pod["status"]["phase"] for pod in found] == ["Running"], [pod["status"] for pod in found]
        return found[0]

    with Registry(node, HOST, image) as registry:
        substrate.pool(
            plane,
            namespace,
            "web",
            annotations={names.HEADROOM_ANNOTATION: "1"},
            image=IMAGE,
            nodeSelector=where,
            resources=SMALL,
        )
        held = plane.wait(lambda: one(names.PLACEHOLDER_LABEL), timeout=90, why="the placeholder", every=0.2)
        assert set(registry.pulled) == set(image.blobs)
    assert held["spec"]["volumes"][0]["image"]["reference"] == IMAGE
    (status,) = containers(held)
    assert status["volumeMounts"][0]["mountPath"] == "/ateom"

    substrate.scale(plane, namespace, "web", 1)  # the registry is gone
    ateom = plane.wait(lambda: one(f"{names.POOL_LABEL}=web"), timeout=60, why="the ateom", every=0.2)
    assert (ateom["spec"]["nodeName"], ateom["spec"]["containers"][0]["image"]) == (node.name, IMAGE)
    substrate.delete(plane, namespace, "web")
    plane.wait(lambda: not plane.api.list(path), timeout=60, why="their end", every=0.2)
