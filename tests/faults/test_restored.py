"""etcd restored from a backup: processes that remember what never was, and what they do about it."""

from collections.abc import Iterator

import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.scheduling import Scheduling
from ateplace.local.witness import Witness
from tests.placing import OWNER, ateom, claims, create, where
from tests.reconciling import Reconciler

pytestmark = pytest.mark.long

LINGER = 4.0
HALF = {"cpu": "3", "memory": "64Mi"}
"""Two of them on a node."""
NAMESPACE = "restored"


@pytest.fixture
def own() -> Iterator[ControlPlane]:
    with ControlPlane() as plane:
        substrate.install(plane, controller=False)
        yield plane


def test_after_a_restore_our_processes_end_and_start_from_what_is_there(own: ControlPlane) -> None:
    """That the first two pods ended, and their claim was released, never was; nor were the last two pods and theirs."""
    own.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    own.wait(lambda: own.api.exists(account), why="a ServiceAccount")
    nodes = own.add_nodes(4, labels={OWNER: NAMESPACE})
    pool = substrate.pool(own, NAMESPACE, "web")
    key = names.claim_key(pool["metadata"]["uid"])

    def make(*named: str) -> list[Object]:
        pods = [ateom(pool, name, requests=HALF) for name in named]
        create(own, pods)
        return pods

    def claimed() -> set[str]:
        return {name for name in nodes if key in claims(own, name)}

    reconciler = Reconciler(own, NAMESPACE, linger=LINGER)
    with Scheduling(own, reconciler__linger=LINGER) as rig:
        reconciler.start()
        make("a", "b")
        first = where(own, NAMESPACE, 2)
        own.wait(lambda: claimed() == set(first.values()), why="one node that is claimed")
        backup = own.back_up_etcd()
        rig.wait_ready()
        own.wait(reconciler.ready, timeout=60, why="the reconciler to be ready again")
        make("c", "d")
        later = set(where(own, NAMESPACE, 4, timeout=120).values()) - set(first.values())
        for name in ("a", "b"):
            own.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", {"gracePeriodSeconds": 0})
        own.wait(lambda: claimed() == later, timeout=60, why="the first node to be released")

        own.restore_etcd(backup)
        processes = ("extender-0", reconciler.name)
        for name in processes:
            own.wait(lambda name=name: own.keeper.exit_code(name) is not None, timeout=90, why=f"{name} to end")  # type: ignore[misc]
            assert own.keeper.exit_code(name) not in {0, None}
            assert "was seen before" in own.log(name).read_text()
        assert where(own, NAMESPACE, 2) == first and claimed() == set(first.values()), "as it was"
        own.restart_scheduler("ateplace")
        rig.start()
        rig.wait_ready()
        reconciler.start()
        with Witness(own) as witness:
            make("e", "f", "g")
            found = where(own, NAMESPACE, 5, timeout=120)
            own.wait(lambda: claimed() == set(found.values()), timeout=60, why="claims on the nodes with pods alone")
            assert witness.violations() == []
        reconciler.kill()
