"""Two real nodes for every test here, beside KWOK's; where there can be none, every test says why."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ateplace.local import ControlPlane, substrate
from ateplace.local.pods import Installation
from ateplace.local.progress import say
from ateplace.local.realnode import RealNode, stand_ins, unfit
from ateplace.local.scene import OVERLAY
from tests.node import building
from tests.node.building import Builder
from tests.node.observing import SLOW_ATEOM, SLOW_END

REQUIRED = os.environ.get("REAL_NODE_TESTS") == "required"
"""Set by continuous integration where real nodes can run: nothing may be skipped there."""


@pytest.fixture(scope="session")
def fit() -> None:
    """Skips where no real node can run."""
    if reason := unfit():
        if REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def plane(fit: None) -> Iterator[ControlPlane]:
    """In place of the plane that other suites share."""
    with ControlPlane(real_nodes=True) as running:
        yield running


@pytest.fixture(scope="session")
def installed(plane: ControlPlane) -> Installation:
    """ateplace as processes. Its Deployments' pods are on nodes of KWOK's, where they only pretend."""
    plane.add_nodes(2, prefix="pretended")
    substrate.install(plane)
    running = Installation(plane, OVERLAY, reconciler__linger=3.0)
    running.start()
    return running


@pytest.fixture(scope="session")
def real_nodes(installed: Installation, plane: ControlPlane) -> Iterator[tuple[RealNode, RealNode]]:
    """Both Ready; each takes twenty pods, however many cores there are."""
    images = {SLOW_ATEOM: stand_ins.ateom(SLOW_END)}
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(RealNode(plane, f"real-{number}", images=images, maxPods=20)) for number in range(2)
        )
        for node in (one, two):
            plane.wait(node.ready, timeout=120, why=f"{node.name} to be Ready", every=0.2)
        yield one, two


@pytest.fixture(scope="session")
def tell(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Says what is worth knowing of a run that succeeds."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def tell(text: str) -> None:
        with capture.global_and_fixture_disabled():
            say(text)

    return tell


@pytest.fixture(scope="session")
def builder(fit: None, tmp_path_factory: pytest.TempPathFactory, tell: Callable[[str], None]) -> Builder:
    """Has the image's base, or what stands in for it."""
    if reason := building.unfit():
        if REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)
    made = Builder(tmp_path_factory.mktemp("image"))
    if made.trouble:
        tell(f"NOT the pinned base: Debian's Python stands in for it, because {made.trouble}")
    return made


@pytest.fixture(scope="session")
def archive(builder: Builder) -> Path:
    """The image, as containerd imports it."""
    return builder.build()
