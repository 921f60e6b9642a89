"""Random operations against the real API server, then a comparison with the naive model."""

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator

import pytest

from ateplace import names
from ateplace.local import ApiError, ControlPlane, substrate
from ateplace.local.api import Object
from tests import reconciling
from tests.reconciling import NODES, Reconciler, ateom, pod_path, settled

SETTLE_AFTER = (10, 70)
"""Between so few and so many operations the cluster is compared: sometimes soon, sometimes after a lot."""
HASTE = {"lease_seconds": 3, "linger": 0.3, "unbound_wait": 1, "serve__drain": 0}
MOST_PODS, MOST_NODES = 120, 20
"""Where there are more, the next operation removes one: ten thousand steps in a cluster that grows would be lists."""

AS_IN_LIFE = {404, 409, 422}
"""What an operation wanted to use is gone, is there already, or is not what it was; any other refusal is a fault."""


class World:
    """What the test has made, and everything that it may do next."""

    def __init__(self, plane: ControlPlane, namespace: str, us: list[Reconciler], seed: int) -> None:
        self.plane = plane
        self.namespace = namespace
        self.us = us
        self.dice = random.Random(seed)  # noqa: S311 - no secret
        self.nodes: list[str] = []
        self.done: list[str] = []
        self._made = 0
        self._operations: list[tuple[int, Callable[[], str]]] = [
            (30, self.create_a_bound_pod),
            (8, self.create_an_unbound_pod),
            (8, self.create_a_pod_from_before_us),
            (10, self.bind_a_pod),
            (14, self.delete_a_pod),
            (10, self.force_delete_a_pod),
            (6, self.finish_a_pod),
            (4, self.create_a_node),
            (3, self.delete_a_node),
            (3, self.recreate_a_node),
            (6, self.create_a_pool),
            (4, self.delete_a_pool),
            (6, self.damage_a_node),
            (1, self.restart_one_of_us),
            (1, self.kill_one_of_us),
        ]

    def step(self) -> None:
        weights, operations = zip(*((weight, operation) for weight, operation in self._operations), strict=True)
        operation = self.crowded() or self.dice.choices(operations, weights)[0]
        try:
            self.done.append(f"{operation.__name__}: {operation()}")
        except IndexError:
            return  # there is nothing to do it with
        except ApiError as error:
            if error.status not in AS_IN_LIFE:
                raise

    def crowded(self) -> Callable[[], str] | None:
        """What there is too much of, goes first."""
        if len(self.nodes) > MOST_NODES:
            return self.delete_a_node
        if len(self.pods()) > MOST_PODS:
            return self.dice.choice([self.delete_a_pod, self.force_delete_a_pod])
        return None

    def name(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}-{self.namespace[2:]}-{self._made}"

    def pools(self) -> list[Object]:
        return self.plane.api.list(f"/apis/ate.dev/v1alpha1/namespaces/{self.namespace}/workerpools")

    def without_pools(self) -> bool:
        left = {
            pool["metadata"]["name"]: (pool["metadata"].get("deletionTimestamp"), pool["metadata"].get("finalizers"))
            for pool in self.pools()
        }
        going = [pod["metadata"]["name"] for pod in self.pods() if pod["metadata"].get("deletionTimestamp")]
        assert not left, f"since, held by: {left}; pods on their way out: {going}"
        return True

    def pods(self, *, bound: bool | None = None) -> list[Object]:
        pods = self.plane.api.list(f"/api/v1/namespaces/{self.namespace}/pods")
        return [pod for pod in pods if bound is None or bool(pod["spec"].get("nodeName")) == bound]

    def _pod(self, *, uid: bool = True, node: bool = True) -> str:
        meta = self.dice.choice(self.pools())["metadata"]
        where = self.dice.choice(self.nodes) if node else ""
        made = ateom(self.plane, self.namespace, meta["name"], meta["uid"] if uid else "", where)
        return f"{made['metadata']['name']} on {where or 'nothing'}"

    def create_a_bound_pod(self) -> str:
        return self._pod()

    def create_an_unbound_pod(self) -> str:
        return self._pod(node=False)

    def create_a_pod_from_before_us(self) -> str:
        return self._pod(uid=False, node=self.dice.random() < 0.8)

    def bind_a_pod(self) -> str:
        pod, node = self.dice.choice(self.pods(bound=False)), self.dice.choice(self.nodes)
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"metadata": {"name": pod["metadata"]["name"]}, "target": target}
        self.plane.api.post(pod_path(pod) + "/binding", body)
        return f"{pod['metadata']['name']} to {node}"

    def delete_a_pod(self) -> str:
        pod = self.dice.choice(self.pods())
        self.plane.api.delete(pod_path(pod))
        return str(pod["metadata"]["name"])

    def force_delete_a_pod(self) -> str:
        pod = self.dice.choice(self.pods())
        reconciling.force_delete(self.plane, pod)
        return str(pod["metadata"]["name"])

    def finish_a_pod(self) -> str:
        pod, phase = self.dice.choice(self.pods(bound=True)), self.dice.choice(["Succeeded", "Failed"])
        self.plane.api.patch(pod_path(pod) + "/status", {"status": {"phase": phase}})
        return f"{pod['metadata']['name']} {phase}"

    def create_a_node(self, name: str = "") -> str:
        name = name or self.name("m")
        self.plane.api.post(NODES, {"metadata": {"name": name}})
        if name not in self.nodes:
            self.nodes.append(name)
        return name

    def delete_a_node(self) -> str:
        if len(self.nodes) < 3:
            return "none: too few"
        name = self.dice.choice(self.nodes)
        self.nodes.remove(name)
        self.plane.api.delete(f"{NODES}/{name}")
        return name

    def recreate_a_node(self) -> str:
        name = self.dice.choice(self.nodes)
        self.plane.api.delete(f"{NODES}/{name}")
        return self.create_a_node(name)

    def create_a_pool(self) -> str:
        name = self.dice.choice("abcdef")
        substrate.pool(self.plane, self.namespace, name)
        return name

    def delete_a_pool(self) -> str:
        name, how = self.dice.choice("abcdef"), self.dice.choice(["Background", "Foreground", "Orphan"])
        substrate.delete(self.plane, self.namespace, name, how)
        return f"{name} {how}"

    def damage_a_node(self) -> str:
        path = f"{NODES}/{self.dice.choice(self.nodes)}"
        found = [key for key in self.plane.api.get(path)["metadata"].get("annotations", {}) if names.claimed_pool(key)]
        uids = [pool["metadata"]["uid"] for pool in self.pools()]
        damage = self.dice.choice(
            [
                {"labels": {names.NODE_LABEL: self.dice.choice([None, "true", "false"])}},
                {"annotations": dict.fromkeys(found, self.dice.choice([None, "", "nonsense"]))},
                {"annotations": {names.claim_key(self.dice.choice([*uids, "nobody"])): ""}},
            ]
        )
        self.plane.api.patch(path, {"metadata": damage})
        return f"{path} {damage}"

    def restart_one_of_us(self) -> str:
        one = self.dice.choice(self.us)
        one.restart()
        return one.name

    def kill_one_of_us(self) -> str:
        one = self.dice.choice(self.us)
        one.kill()
        one.start()
        return one.name


@contextlib.contextmanager
def world(plane: ControlPlane, namespace: str, seed: int) -> Iterator[World]:
    """`SEED` in the environment is used instead of `seed`."""
    seed = int(os.environ.get("SEED", seed))
    print(f"\nSEED={seed}")
    with (
        reconciling.agent_substrate(plane, controller=False),
        reconciling.reconciling(plane, count=2, **HASTE) as us,
    ):
        reconciling.wait_for_the_garbage_collector(plane, namespace)
        made = World(plane, namespace, us, seed)
        for _ in range(6):
            made.create_a_node()
        for name in "abcd":
            substrate.pool(plane, namespace, name)
        try:
            yield made
        finally:
            plane.remove_nodes(made.nodes)
            for pod in made.pods():
                with contextlib.suppress(ApiError):
                    reconciling.force_delete(plane, pod)


def play(made: World, steps: int) -> None:
    began = time.monotonic()
    waited = [0.0]
    look = 0
    for number in range(1, steps + 1):
        look = look or number + made.dice.randint(*SETTLE_AFTER)
        made.step()
        if number in {look, steps}:
            look = 0
            asked = time.monotonic()
            try:
                made.plane.wait(
                    lambda: settled(made.plane), timeout=30, why="the cluster to be as the model", every=0.2
                )
            except AssertionError as error:
                raise AssertionError(f"{error}\n" + "\n".join(made.done[-2 * SETTLE_AFTER[1] :])) from None
            waited.append(time.monotonic() - asked)
    took, looks = time.monotonic() - began, f"{sum(waited):.0f} s in all, {max(waited):.1f} s at most"
    print(f"{steps} steps in {took:.0f} s; waited {len(waited) - 1} times, {looks}")
    for pool in made.pools():
        try:
            substrate.delete(made.plane, made.namespace, pool["metadata"]["name"])
        except ApiError as error:
            if error.status != 404:  # it was on its way out
                raise
    # Kubernetes takes up to 80 s to notice that nobody will end a pod which was deleted together with its node.
    made.plane.wait(made.without_pools, timeout=180, why="every pool to be deletable", every=0.2)
    made.plane.wait(lambda: settled(made.plane), timeout=30, why="the cluster to be as the model")
    assert sum(one.missed() for one in made.us) == 0
    assert not any("Traceback" in one.said() for one in made.us)


def test_after_200_random_operations_the_cluster_is_as_the_model_says(plane: ControlPlane, namespace: str) -> None:
    with world(plane, namespace, seed=134) as made:
        play(made, 200)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_after_10_000_random_operations_the_cluster_is_as_the_model_says(plane: ControlPlane, namespace: str) -> None:
    with world(plane, namespace, seed=random.randrange(10**6)) as made:  # noqa: S311 - no secret
        play(made, 10_000)
