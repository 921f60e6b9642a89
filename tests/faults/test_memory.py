"""Row 44: every cache and map has a bound or an owner, so that when everything has gone nothing is kept of it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.scheduling import Scheduling
from tests import reconciling
from tests.placing import OWNER, ateom, create, where
from tests.reconciling import pool_path

Nodes = Callable[..., list[str]]

CENSUS = """
import collections, gc, json, os, sys, threading, time

OURS = ("ateplace", "certs", "extender", "reconciler")

def census():
    found = collections.Counter()
    for each in gc.get_objects():
        kind = type(each)
        if not str(kind.__module__).startswith(OURS):
            continue
        slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
        for name in {*getattr(each, "__dict__", ()), *slots}:
            value = getattr(each, name, None)
            if isinstance(value, (dict, set, list, collections.deque)):
                found[f"{kind.__module__}.{kind.__qualname__}.{name}"] += len(value)
    return {name: count for name, count in found.items() if count}

def tell(path):
    while True:
        with open(path + ".new", "w") as file:
            json.dump(census(), file)
        os.replace(path + ".new", path)
        time.sleep(0.5)

gc.freeze = lambda: None  # what is frozen would not be counted
threading.Thread(target=tell, args=(sys.argv.pop(1),), daemon=True).start()
from ateplace.cli.main import main
main()
"""
"""Our program, and a thread that keeps saying how much every container of every object of ours holds."""

BOUNDED = (
    "ateplace.process.http_connection.",  # connections
    "ateplace.kube.codec.",  # the last message of each watch
    "ateplace.process.http_server.",
    "ateplace.extender.decision_log.Ring._kept",
    "ateplace.reconciler.events.Events._budgets",
    "ateplace.reconciler.events.Events._written",
)
"""What is kept up to a number, and so is no one's in particular."""
TURNS = 4


def holds(census: Path) -> dict[str, int]:
    """What a process holds, without what is bounded by a number."""
    counted: dict[str, int] = json.loads(census.read_text("utf-8"))
    return {name: count for name, count in counted.items() if not name.startswith(BOUNDED)}


def live_and_go(plane: ControlPlane, namespace: str, turn: int, made: list[str]) -> None:
    """Ten new pools with fifty pods on new nodes; and all of them leave."""
    pools = [substrate.pool(plane, namespace, f"pool-{turn}-{number}") for number in range(10)]
    create(plane, [ateom(pool, f"p{n}-{pool['metadata']['name']}") for pool in pools for n in range(5)])
    where(plane, namespace, 50)
    for pod in plane.api.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=names.POOL_LABEL):
        reconciling.force_delete(plane, pod)
    for pool in pools:
        substrate.delete(plane, namespace, pool["metadata"]["name"])
    paths = [pool_path(namespace, pool["metadata"]["name"]) for pool in pools]
    plane.wait(lambda: not any(plane.api.exists(path) for path in paths), why="the pools to go")
    plane.remove_nodes(made)


@pytest.mark.long
@pytest.mark.usefixtures("nothing_is_bound_before_it_is_claimed")
def test_44_when_pods_pools_and_nodes_have_gone_nothing_is_kept_of_them(
    plane: ControlPlane, namespace: str, nodes: Nodes, tmp_path: Path
) -> None:
    papers = {role: tmp_path / role for role in ("extender", "reconciler")}
    program = {role: [sys.executable, "-c", CENSUS, str(path)] for role, path in papers.items()}
    with (
        reconciling.agent_substrate(plane, controller=False),
        reconciling.reconciling(plane, program=program["reconciler"]) as (one,),
        Scheduling(plane, argv=[*program["extender"], "extender"], reconciler__linger=1) as rig,
    ):
        plane.wait(one.leads, why="it to lead")
        live_and_go(plane, namespace, 0, nodes(8, labels={OWNER: namespace}, cpu="4"))
        before = {role: holds(path) for role, path in papers.items()}
        assert all(before.values()), "what the census does not see, it cannot miss"
        for turn in range(1, TURNS):
            live_and_go(plane, namespace, turn, nodes(8, labels={OWNER: namespace}, cpu="4"))

        def emptied() -> bool:
            more = {
                f"{role} {name}": (before[role].get(name, 0), count)
                for role, path in papers.items()
                for name, count in holds(path).items()
                if count > before[role].get(name, 0)
            }
            assert not more, str(more)
            return True

        plane.wait(emptied, timeout=60, why="nothing to be kept", every=0.5)
        assert rig.get("/readyz") == "ready\n"
