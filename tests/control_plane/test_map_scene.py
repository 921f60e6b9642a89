"""The live scene of `make run`: what it does by itself, and that it leaves to the user what the user has changed."""

from collections.abc import Iterator

import pytest

from ateplace.local import ControlPlane, scene, substrate
from ateplace.local.api import Object
from ateplace.local.scene import FEW, MANY, Script

PATH = f"{substrate.POOLS.format(scene.NAMESPACE)}/{scene.POOL}"


@pytest.fixture
def stage(plane: ControlPlane) -> Iterator[ControlPlane]:
    """WorkerPools, of which nobody makes pods."""
    plane.define(substrate.MANIFESTS / substrate.shape(plane).name / "workerpool-crd.yaml")
    if not plane.api.exists(f"/api/v1/namespaces/{scene.NAMESPACE}"):
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": scene.NAMESPACE}})
    yield plane
    if plane.api.exists(PATH):
        plane.api.delete(PATH)


def pool(plane: ControlPlane) -> Object:
    return plane.api.get(PATH)


def test_the_scene_ends_by_handing_the_cluster_over(stage: ControlPlane) -> None:
    script = Script()
    assert script.play(stage, 0.0) == []
    assert script.play(stage, 3.1) == [f"» pool created with {FEW} ateoms"]
    assert script.play(stage, 3.2) == []
    assert script.play(stage, 8.1) == [f"» pool scaled up to {MANY} ateoms"]
    assert pool(stage)["spec"]["replicas"] == MANY
    assert script.play(stage, 16.1) == [f"» pool scaled down to {FEW} ateoms"]
    assert pool(stage)["spec"]["replicas"] == FEW
    first, how = script.play(stage, 16.2)
    assert first == f"» the pool keeps its {FEW} ateoms: the scene is over; it is yours now:"
    assert how.split() == ["kubectl", "scale", "workerpool/web", "-n", "demo", "--replicas=40"]
    assert script.play(stage, 100.0) == []


def test_the_scene_never_undoes_what_the_user_scaled(stage: ControlPlane) -> None:
    script = Script()
    script.play(stage, 3.1)
    substrate.scale(stage, scene.NAMESPACE, scene.POOL, 40)
    told = script.play(stage, 8.1)
    assert told[0] == "» you have changed the pool: the scene is over; it is yours now:"
    assert pool(stage)["spec"]["replicas"] == 40
    assert script.play(stage, 16.1) == []
    assert pool(stage)["spec"]["replicas"] == 40


def test_a_write_between_the_scenes_look_and_its_own_wins(stage: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()
    script.play(stage, 3.1)
    look = stage.api.get

    def scaled_right_after(path: str, **query: str) -> Object:
        found = look(path, **query)
        if path == PATH and found["spec"]["replicas"] == FEW and found["metadata"]["generation"] == 1:
            substrate.scale(stage, scene.NAMESPACE, scene.POOL, 7)
        return found

    monkeypatch.setattr(stage.api, "get", scaled_right_after)
    script.play(stage, 8.1)
    assert pool(stage)["spec"]["replicas"] == 7


def test_a_pool_that_the_user_deleted_stays_deleted(stage: ControlPlane) -> None:
    script = Script()
    script.play(stage, 3.1)
    stage.api.delete(PATH)
    stage.wait(lambda: not stage.api.exists(PATH), why="the pool to go")
    assert script.play(stage, 8.1)[0].endswith("it is yours now:")
    assert not stage.api.exists(PATH)


def test_a_pool_that_the_user_created_first_is_the_users(stage: ControlPlane) -> None:
    substrate.pool(stage, scene.NAMESPACE, scene.POOL, 5)
    assert Script().play(stage, 3.1)[0].startswith("» you have changed the pool")
    assert pool(stage)["spec"]["replicas"] == 5
