"""What the reply rule costs in writes, counted: a burst, a trickle over nodes that a pool holds, pods with preferences.

Time is simulated: one pod a second, each of which lives for a minute. `pytest -s` prints the figures.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ateplace.settings import Extender, Settings
from tests.unit.cluster import atelet, node, pod
from tests.unit.kube_server import Answer, Request
from tests.unit.verbs_rig import Api, Rig, ask

HELD = [f"n{number}" for number in range(100)]
MINUTES = 5
LIFE = 60
SPREAD: Any = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]


class Counting(Api):
    """Which nodes were written, and in which minute."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = {name: {"name": name, "uid": f"{name}-uid", "resourceVersion": "2"} for name in HELD}
        self.minute = 0
        self.written: Counter[tuple[str, int]] = Counter()

    async def __call__(self, request: Request, answer: Answer) -> None:
        if request.method == "PATCH":
            self.written[self.named(request), self.minute] += 1
        await super().__call__(request, answer)


def first(nodes: list[str]) -> str:
    return nodes[0]


def placing(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    settings: Settings | None = None,
    chosen: Callable[[list[str]], str] = first,
    apart: float = 1.0,
    **spec: Any,
) -> Counter[tuple[str, int]]:
    """300 pods, so many seconds apart, and one of the nodes that each is answered."""
    passed = 0.0
    for module in ("ateplace.extender.context", "ateplace.extender.claim_writer", "ateplace.extender.filter.handler"):
        monkeypatch.setattr(f"{module}.boottime", lambda: 1000.0 + passed)
    api = Counting()

    async def use(rig: Rig) -> None:
        nonlocal passed
        for name in HELD:
            rig.ledger.node_seen(node(name, "A", version=2), 0)
            rig.ledger.atelet_seen(atelet(name), 0)
            rig.ledger.pod_seen(pod(f"on-{name}", name), 0)
        rig.ledger.pod_gone("p", 0)
        for number in range(60 * MINUTES):
            passed = number * apart
            api.minute, uid = int(passed // 60), f"u{number}"
            rig.ledger.pod_seen(pod(uid), passed)
            answered = (await rig.filter(*HELD, uid=uid, **spec)).node_names
            assert answered
            rig.ledger.pod_seen(pod(uid, chosen(list(answered))), passed)
            if passed >= LIFE:
                rig.ledger.pod_gone(f"u{number - round(LIFE / apart)}", passed)

    ask(directory, api, use, settings=settings)
    return api.written


def told(what: str, written: Counter[tuple[str, int]]) -> int:
    """The most writes of one node in one minute."""
    nodes, most = len({name for name, _ in written}), max(written.values())
    print(f"\n{what}: {written.total()} writes on {nodes} nodes, at most {most} a minute of one", end="")
    return most


def test_a_burst_writes_each_node_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = placing(tmp_path, monkeypatch, apart=0.01)
    assert told("300 pods at once", written) == 1
    assert written.total() < 60, "as many nodes as 300 pods fill"


def test_a_trickle_writes_each_node_that_it_fills_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = placing(tmp_path, monkeypatch)
    assert told("60 pods a minute for 5 minutes", written) == 1
    assert written.total() <= 10 * MINUTES, "the fullest node first: a trickle visits few"


def test_a_trickle_with_room_for_one_on_each_node_writes_once_for_each_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = placing(tmp_path, monkeypatch, settings=Settings(extender=Extender(ateoms_per_node=2)))
    assert told("60 pods a minute for 5 minutes, one to a node", written) == 1
    assert written.total() <= 60 * MINUTES


@pytest.mark.parametrize("last", [False, True], ids=["the first is chosen", "the last is chosen"])
def test_pods_with_preferences_are_answered_few_nodes_and_write_each_about_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    def chosen(nodes: list[str]) -> str:
        assert len(nodes) <= 9, "one for itself and eight that its pool holds"
        return nodes[-1 if last else 0]

    written = placing(tmp_path, monkeypatch, chosen=chosen, topologySpreadConstraints=SPREAD)
    most = told("60 pods a minute for 5 minutes, with preferences", written)
    assert most <= 2, "half a linger is a minute, which may begin in the middle of another"
