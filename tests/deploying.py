"""What the tests of the installation share: the manifests, rendered, kustomizations put together for one
test, and what an installation has claimed."""

import functools
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml

from ateplace import names
from ateplace.errors import LocalError
from ateplace.local import ControlPlane, binaries
from ateplace.local.api import Object

DEPLOY = Path(__file__).parents[1] / "deploy"
BASE = DEPLOY / "base"
OVERLAYS = {path.name: path for path in sorted((DEPLOY / "overlays").iterdir())}
COMPONENTS = {path.name: path for path in sorted((DEPLOY / "components").iterdir())}
SECOND_SCHEDULER = OVERLAYS["second-scheduler"]
NAMESPACE = "ateplace-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:ateplace-"
ROLES = ("webhook", "extender", "reconciler")


@functools.cache
def render(kustomization: Path) -> list[Object]:
    """The objects of a kustomization."""
    argv = [str(binaries.resolve()["kubectl"]), "kustomize", str(kustomization)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def compose(
    directory: Path,
    *resources: Path,
    components: tuple[Path, ...] = (),
    tag: str = "",
    scheduler: str = "",
    settings: Mapping[str, str] | None = None,
) -> Path:
    """A kustomization of others, written into `directory`; with other tags of our image and of the scheduler's, and
    settings of its own."""
    document: Object = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(path, directory.resolve()) for path in resources],
        "components": [os.path.relpath(path, directory.resolve()) for path in components],
    }
    tags = {"registry.example/ateplace": tag, "registry.k8s.io/kube-scheduler": scheduler}
    if images := [{"name": name, "newTag": tag} for name, tag in tags.items() if tag]:
        document["images"] = images
    if settings:
        literals = [f"{name}={value}" for name, value in settings.items()]
        merged = {"name": "ateplace-settings", "namespace": NAMESPACE, "behavior": "merge", "literals": literals}
        document["configMapGenerator"] = [merged]
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return directory


def newer(directory: Path) -> Path:
    """The default installation as the next version might have it: another image, another setting."""
    return compose(directory, SECOND_SCHEDULER, tag="v0.2.0", settings={"ATEPLACE_EXTENDER_OPEN_AHEAD": "3"})


def assert_no_difference(plane: ControlPlane, kustomization: Path) -> None:
    """What is installed is what the kustomization says. A controller's write between kubectl's two reads looks like a
    difference for a moment; only one that lasts is one."""

    def none() -> bool:
        try:
            said = plane.kubectl("diff", "--server-side", "-k", str(kustomization))
        except LocalError as error:
            raise AssertionError(str(error)) from error
        assert said == "", said
        return True

    plane.wait(none, timeout=60, why=f"no difference from {kustomization}", every=1)


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """The objects of one kind, by name."""
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def claimed(plane: ControlPlane, pool: Object) -> dict[str, str]:
    """The nodes that the pool has claimed, with the claims' values."""
    key = names.claim_key(pool["metadata"]["uid"])
    return {
        node["metadata"]["name"]: node["metadata"]["annotations"][key]
        for node in plane.api.list("/api/v1/nodes")
        if key in node["metadata"].get("annotations", {})
    }
