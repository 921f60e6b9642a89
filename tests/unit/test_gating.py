"""Which atelet DaemonSets the reconciler gates, and when."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ateplace import names
from ateplace.cluster.ledger import Ledger
from ateplace.kube import Kube
from ateplace.reconciler.events import About, Events
from ateplace.reconciler.gating import FIRST_WAIT, Gating
from ateplace.settings import load
from tests.unit.cluster import template
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving


class Heard(Events):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.words: list[tuple[str, str]] = []

    def say(self, about: About, reason: str, message: str) -> None:
        self.words.append((about.name, reason))

    warn = say


class Cluster:
    """An API server with one DaemonSet, `atelet-v2`, whose status is given; `conflicts` patches are refused."""

    def __init__(self, status: dict[str, int] | None = None, *, uid: str = "atelet-v2", conflicts: int = 0) -> None:
        self.uid, self.conflicts = uid, conflicts
        self.status = {"observedGeneration": 1, **(status or {})}
        self.selector: dict[str, str] = {"version": "v2"}
        self.patches: list[Any] = []

    async def handle(self, request: Request, answer: Answer) -> None:
        if not request.path.endswith("/ate-system/daemonsets/atelet-v2"):
            await answer.refuse(404, "NotFound", "no")
            return
        if request.method == "PATCH":
            if self.conflicts:
                self.conflicts -= 1
                await answer.refuse(409, "Conflict", "changed")
                return
            self.patches.append(request.json)
            self.selector |= request.json["spec"]["template"]["spec"]["nodeSelector"]
        meta: dict[str, Any] = {"name": "atelet-v2", "namespace": "ate-system", "uid": self.uid}
        meta |= {"resourceVersion": "7", "generation": 1}
        spec = {"template": {"spec": {"nodeSelector": self.selector}}}
        await answer.reply(200, {"metadata": meta, "spec": spec, "status": self.status})


def rounds(cluster: Cluster, directory: Path, ledger: Ledger, count: int = 1, **settings: str) -> list[tuple[str, str]]:
    heard, now = Heard(), [0.0]

    async def main() -> None:
        async with serving(cluster.handle) as server, connected(kubeconfig(directory, server.url)) as kube:
            await look(kube)

    async def look(kube: Kube) -> None:
        given = load({}, [f"reconciler.{name}={value}" for name, value in settings.items()]).settings
        gating = Gating(kube, ledger, given, heard, lambda: now[0])
        for _ in range(count):
            await gating.round()
            now[0] += 1

    asyncio.run(main())
    return heard.words


def known(*, others_gated: bool = True) -> Ledger:
    ledger = Ledger()
    if others_gated:
        ledger.daemonset_seen(template(uid="atelet-v1"), 0.0)
    ledger.daemonset_seen(template(uid="atelet-v2", gated=False), 0.0)
    return ledger


def test_one_without_pods_is_gated_on_the_version_that_was_read(tmp_path: Path) -> None:
    cluster = Cluster()
    assert rounds(cluster, tmp_path, known()) == [("atelet-v2", "Gated")]
    assert cluster.patches == [
        {
            "metadata": {"uid": "atelet-v2", "resourceVersion": "7"},
            "spec": {"template": {"spec": {"nodeSelector": {names.NODE_LABEL: "true"}}}},
        }
    ]


@pytest.mark.parametrize("count", ["desiredNumberScheduled", "currentNumberScheduled", "numberMisscheduled"])
def test_one_with_pods_is_not_restarted_by_surprise_but_spoken_of(tmp_path: Path, count: str) -> None:
    cluster = Cluster({count: 3})
    assert rounds(cluster, tmp_path, known(), count=5) == [("atelet-v2", "NotGated")], "and not every second"
    assert cluster.patches == []


@pytest.mark.parametrize(
    ("policy", "others_gated", "patched"),
    [("follow", True, 1), ("follow", False, 0), ("always", False, 1), ("never", True, 0)],
)
def test_a_cluster_that_nobody_has_gated_is_left_alone_unless_the_setting_says_so(
    tmp_path: Path, policy: str, others_gated: bool, patched: int
) -> None:
    cluster = Cluster()
    rounds(cluster, tmp_path, known(others_gated=others_gated), gate=policy)
    assert len(cluster.patches) == patched


def test_it_waits_until_the_controller_has_looked(tmp_path: Path) -> None:
    cluster = Cluster({"observedGeneration": 0})
    assert rounds(cluster, tmp_path, known(), count=3) == [] and cluster.patches == []


def test_another_one_of_the_same_name_is_not_meant(tmp_path: Path) -> None:
    cluster = Cluster(uid="recreated")
    assert rounds(cluster, tmp_path, known()) == [] and cluster.patches == []


def test_a_write_that_another_got_in_the_way_of_is_tried_again(tmp_path: Path) -> None:
    cluster = Cluster(conflicts=2)
    assert rounds(cluster, tmp_path, known(), count=3) == [("atelet-v2", "Gated")]


def test_there_is_no_fight_with_a_manager_that_takes_the_label_out_again(tmp_path: Path) -> None:
    """Our view goes on showing it ungated, as if its manager were as quick as we are."""

    class Stubborn(Cluster):
        async def handle(self, request: Request, answer: Answer) -> None:
            await super().handle(request, answer)
            self.selector.pop(names.NODE_LABEL, None)

    cluster = Stubborn()
    rounds(cluster, tmp_path, known(), count=100)
    assert len(cluster.patches) == 4, f"after 0, {FIRST_WAIT:.0f}, 30 and 70 seconds"
