"""Every role down for a minute under load, held against the table of failure modes in docs/operations.md."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest

from ateplace.local import ControlPlane, substrate
from ateplace.local.api import Object
from ateplace.local.pods import Installation
from ateplace.local.witness import Witness
from tests.deploying import SECOND_SCHEDULER
from tests.load import Load, blamed

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
NAMESPACE = "agents"
OUTAGE = 60.0
RECOVERY = 90.0
ROLES = ("webhook", "extender", "scheduler", "reconciler")
pytestmark = pytest.mark.long

ROOM = {"requests": {"cpu": "50m", "memory": "32Mi"}}


def table() -> dict[str, dict[str, str]]:
    """The rows of the table of failure modes, by what is down."""
    text = OPERATIONS.read_text("utf-8").partition("## Failure modes")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    header = rows[0]
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows[2:]}


@pytest.fixture(scope="module")
def installed() -> Iterator[Installation]:
    with ControlPlane(nodes=8) as plane:
        substrate.install(plane)
        running = Installation(plane, SECOND_SCHEDULER, reconciler__linger=5)
        running.start()
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        substrate.pool(plane, NAMESPACE, "load", resources=ROOM)
        substrate.pool(plane, NAMESPACE, "steady", 5, resources=ROOM)
        plane.wait(lambda: len(placed(plane, "steady")) == 5, why="the steady pool")
        yield running


def pods(plane: ControlPlane, pool: str) -> list[Object]:
    return plane.api.list(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=f"ate.dev/worker-pool={pool}")


def placed(plane: ControlPlane, pool: str) -> dict[str, str]:
    """The pool's running pods and their nodes."""
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in pods(plane, pool)
        if pod["status"].get("phase") == "Running"
    }


def claims(plane: ControlPlane, pool: Object) -> set[str]:
    """The nodes that a pool claims, by the label as well."""
    key = f"ate.dev/claim.{pool['metadata']['uid']}"
    nodes = plane.api.list("/api/v1/nodes", labelSelector="ate.dev/atelet=true")
    return {node["metadata"]["name"] for node in nodes if key in node["metadata"].get("annotations", {})}


class Trial:
    """One outage: what is tried during it, and what becomes of that. The next one finds no trace of it on Nodes."""

    def __init__(self, plane: ControlPlane, role: str) -> None:
        self.plane = plane
        self.role = role
        self._steady = placed(plane, "steady")
        self._releasing = substrate.pool(plane, NAMESPACE, f"release-{role}", 1, resources=ROOM)
        self._deleted = substrate.pool(plane, NAMESPACE, f"delete-{role}", 1, resources=ROOM)
        self._waiting = substrate.pool(
            plane, NAMESPACE, f"place-{role}", 1, nodeSelector={"outage": role}, resources=ROOM
        )
        plane.wait(lambda: bool(claims(plane, self._releasing)) and bool(placed(plane, f"release-{role}")), why="one")
        plane.wait(lambda: bool(placed(plane, f"delete-{role}")), why="another")
        plane.wait(lambda: len(pods(plane, f"place-{role}")) == 1, why="a pod that fits nowhere")

    def __enter__(self) -> "Trial":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._label(None)

    def _label(self, value: str | None) -> None:
        self.plane.api.patch("/api/v1/nodes/node-0000", {"metadata": {"labels": {"outage": value}}})

    def begin(self) -> None:
        """Try everything; called when the role is down."""
        plane, role = self.plane, self.role
        self._label(role)
        substrate.scale(plane, NAMESPACE, f"release-{role}", 0)
        substrate.delete(plane, NAMESPACE, f"delete-{role}")
        spec = {"containers": [{"name": "c", "image": "registry.example/c:1"}]}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        plane.api.post(path, {"metadata": {"name": f"other-{role}"}, "spec": spec})

    def done(self) -> dict[str, bool]:
        """Which of the things that can wait have happened."""
        plane, role = self.plane, self.role
        other = plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/other-{role}")
        return {
            "placing ateoms": bool(placed(plane, f"place-{role}")),
            "all other pods": other["status"].get("phase") == "Running",
            "releasing claims": not claims(plane, self._releasing),
            "deleting pools": not plane.api.exists(f"{substrate.POOLS.format(NAMESPACE)}/delete-{role}"),
        }

    def steady(self) -> bool:
        """Whether the ateoms that ran before still run, on nodes that are still claimed."""
        pool = self.plane.api.get(f"{substrate.POOLS.format(NAMESPACE)}/steady")
        return placed(self.plane, "steady") == self._steady and set(self._steady.values()) == claims(self.plane, pool)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("role", ROLES)
def test_an_outage_is_as_the_table_says(installed: Installation, role: str) -> None:
    plane = installed.plane
    with Trial(plane, role) as trial, Witness(plane) as witness:
        with Load(plane, NAMESPACE, "load", rate=5) as load:
            plane.wait(lambda: load.created >= 10, why="the load to flow")
            installed.pods[role].kill()
            began = time.monotonic()
            trial.begin()
            while time.monotonic() - began < OUTAGE:
                time.sleep(1)
            # What was sent before the kill may have been admitted before it, and answered after.
            created, failed = load.since(began)
            seen = {what: "goes on" if happened else "waits" for what, happened in trial.done().items()}
            seen["running ateoms"] = "goes on" if trial.steady() else "stops"
            seen["creating ateoms"] = "goes on" if created and not failed else "refused" if not created else "both"
            installed.pods[role].run()
            back = time.monotonic()
            if installed.pods[role].serves:
                plane.wait(installed.ready, timeout=60, why=f"the {role} to be ready")
            ready = time.monotonic()
            plane.wait(lambda: all(trial.done().values()), timeout=RECOVERY, why="what waited to be made up for")
            plane.wait(lambda: load.unbound() < 15, timeout=RECOVERY, why="the pods that waited to be placed")
            recovered = time.monotonic() - back
        # Calls that were under way when it came back may fail, but none that was sent when it was ready.
        assert blamed(load.since(ready)[1], load.stalls) == []
        assert witness.violations() == []
    print(f"{role}: {created} created, {len(failed)} refused, recovered {recovered:.1f} s after its start: {seen}")
    assert seen == table()[role]


def test_a_cluster_that_comes_up_with_nothing_of_ours_running_comes_up() -> None:
    """Webhook registered, failurePolicy Fail, nobody there: nodes, kube-system and our own pods come up anyway."""
    with ControlPlane() as plane:
        substrate.install(plane)
        rendered = plane.kubectl("kustomize", str(SECOND_SCHEDULER))
        plane.apply(rendered)
        plane.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        pool = substrate.pool(plane, NAMESPACE, "web", 3, resources=ROOM)
        labels = {"app": "dns"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "example/dns:1"}]}}
        spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
        for namespace in ("kube-system", NAMESPACE):
            path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
            plane.api.post(path, {"metadata": {"name": "dns"}, "spec": spec})
        plane.add_nodes(4)

        def available(namespace: str) -> bool:
            found = plane.api.list(f"/apis/apps/v1/namespaces/{namespace}/deployments")
            ours = [item for item in found if item["metadata"]["name"] != "web"]
            counts = {item["metadata"]["name"]: item["status"].get("availableReplicas") for item in ours}
            assert set(counts.values()) == {2}, counts
            return True

        for namespace in ("kube-system", NAMESPACE, "ateplace-system"):
            plane.wait(lambda namespace=namespace: available(namespace), timeout=60, why=f"{namespace} to come up")  # type: ignore[misc]
        assert pods(plane, "web") == []
        events = plane.kubectl("get", "events", "-n", NAMESPACE, "-o", "jsonpath={.items[*].message}")
        assert "failed calling webhook" in events
        assert not claims(plane, pool)
        installed = Installation(plane, SECOND_SCHEDULER, reconciler__linger=5)
        installed.start()
        plane.wait(lambda: len(placed(plane, "web")) == 3, timeout=120, why="the ateoms, when they are tried again")
        assert set(placed(plane, "web").values()) == claims(plane, pool)
