"""Fixtures that every suite shares: one control plane per run, a namespace and nodes of its own for each test."""

import itertools
import signal
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

from ateplace.local import ControlPlane, substrate
from ateplace.local.witness import Witness
from tests import reconciling
from tests.reconciling import Reconciler

_numbers = itertools.count()

# The same examples in every run, so that a run fails only for what was changed; those who want chance say so.
settings.register_profile("same-examples", derandomize=True, database=None)
settings.load_profile("same-examples")

# A shell starts what it puts into the background with SIGINT ignored, and whatever a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests with the mark `both_shapes` run on a plane with each shape of Agent Substrate."""
    if metafunc.definition.get_closest_marker("both_shapes") and "plane" in metafunc.fixturenames:
        # None, not "new": the very plane that all other tests share.
        metafunc.parametrize("plane", [None, "old"], ids=["new", "old"], indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The old shape last: it has a control plane of its own, and there is one at a time."""
    items.sort(key=lambda item: isinstance(item, pytest.Function) and _plane(item) == "old")


def _plane(item: pytest.Function) -> object:
    return item.callspec.params.get("plane") if hasattr(item, "callspec") else None


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The shared control plane; it starts without nodes. Start one of your own only to hurt it."""
    with ControlPlane() as running:
        substrate.use(running, substrate.SHAPES[getattr(request, "param", None) or "new"])
        yield running


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """A fresh namespace with its default ServiceAccount; deleted, not waited for, afterwards."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    plane.api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    plane.wait(lambda: plane.api.exists(f"/api/v1/namespaces/{name}/serviceaccounts/default"), why="a ServiceAccount")
    yield name
    plane.api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[Callable[..., list[str]]]:
    """`nodes(3, cpu="4")` makes Ready nodes for this test alone and returns their names."""
    made: list[str] = []

    def make(count: int, **options: Any) -> list[str]:
        names = plane.add_nodes(count, prefix=f"n{next(_numbers)}", **options)
        made.extend(names)
        return names

    yield make
    plane.remove_nodes(made)


@pytest.fixture(scope="module")
def reconciler(plane: ControlPlane) -> Iterator[Reconciler]:
    """One, with pools but nobody who makes pods of them; in the end it must have missed nothing."""
    with reconciling.agent_substrate(plane, controller=False), reconciling.reconciling(plane) as (running,):
        yield running
        assert running.missed() == 0
        assert "Traceback" not in running.said()


@pytest.fixture
def node(nodes: Callable[..., list[str]], reconciler: Reconciler) -> str:
    """A node that the reconciler looks after."""
    return nodes(1)[0]


@pytest.fixture(scope="session")
def witness(plane: ControlPlane) -> Iterator[Witness]:
    """The shared plane's witness; `witness.violations()` may be asked at any time."""
    with Witness(plane) as watching:
        yield watching


@pytest.fixture
def nothing_is_bound_before_it_is_claimed(witness: Witness) -> Iterator[None]:
    """Fails the test during which an ateom was bound too early on the shared plane."""
    yield
    assert witness.violations() == []
