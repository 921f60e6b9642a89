"""The README's commands, word for word, in a fresh clone.

Fences say where a block belongs: `shell` runs in the clone, `shell cluster` against a cluster (the local plane, with
kubectl on the PATH), all in one terminal: what a block exports is there for the next. Any other fence is not run.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ateplace.local import ControlPlane, substrate
from ateplace.local.pods import Installation

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```shell([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITHIN = {"make test": {"PYTEST_ADDOPTS": "--collect-only --quiet"}}
"""The suite is what we are in: in the clone it is collected, and the run itself is somebody else's."""


def blocks(root: Path, where: str) -> list[str]:
    """The README's blocks for a place, as a newcomer would paste them."""
    return [block.strip() for place, block in FENCE.findall((root / "README.md").read_text()) if place.strip() == where]


def terminal(**environment: str) -> dict[str, str]:
    """The environment of somebody who has just opened one: nothing of the tests', no virtual environment."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "VIRTUAL_ENV"))}
    path = [part for part in kept["PATH"].split(os.pathsep) if Path(part) != Path(sys.prefix) / "bin"]
    return kept | {"PATH": os.pathsep.join(path)} | environment


def paste(block: str, cwd: Path, environment: dict[str, str]) -> dict[str, str]:
    """The environment afterwards, for the next block."""
    extra = WITHIN.get(block, {})
    after = cwd.parent / "environment"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{block}\nenv -0 >{after}"],
        cwd=cwd,
        env=environment | extra,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout[-4000:]}"
    told = dict(line.split("=", 1) for line in after.read_text().split("\0") if line)
    return {key: value for key, value in told.items() if key not in extra}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What somebody gets who clones the repository now: committed files only."""
    path = tmp_path_factory.mktemp("clone") / "ateplace"
    subprocess.run(["git", "clone", "--quiet", "--no-local", str(ROOT), str(path)], check=True, timeout=120)
    return path


@contextmanager
def cluster() -> Iterator[tuple[ControlPlane, dict[str, str]]]:
    """A cluster with Agent Substrate and a pool at work, and nothing of ours."""
    with ControlPlane(nodes=4) as plane:
        substrate.install(plane, gated=False)
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": "demo"}})
        substrate.pool(plane, "demo", "web", 4)
        path = f"{plane.binaries['kubectl'].parent}{os.pathsep}{terminal()['PATH']}"
        yield plane, terminal(PATH=path, KUBECONFIG=str(plane.kubeconfig), COLUMNS="160")


def test_there_are_blocks_for_both_places() -> None:
    assert blocks(ROOT, "")
    assert blocks(ROOT, "cluster")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_block_works_in_a_fresh_clone(clone: Path) -> None:
    for block in blocks(clone, ""):
        paste(block, clone, terminal())
    with cluster() as (plane, environment):
        installed: Installation | None = None
        for block in blocks(clone, "cluster"):
            environment = paste(block, clone, environment)  # noqa: PLW2901 - one terminal
            if "kubectl apply" in block and installed is None:
                # KWOK's kubelets only pretend to run our pods: do it for them, with what was just applied.
                installed = Installation(plane, clone / "deploy" / "overlays" / "second-scheduler")
                installed.start()
        assert installed is not None
