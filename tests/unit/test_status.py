"""The picture of a cluster, and its drawing."""

import asyncio
import io
from datetime import UTC, datetime

import msgspec
import pytest
from rich.console import Console

from ateplace.cli import pool_checks
from ateplace.cli.snapshot import as_data, changes, compose
from ateplace.cli.status import attempt
from ateplace.cli.tables import draw, draw_pools, shown_zones
from ateplace.errors import KubeError
from ateplace.kube.objects import Deployment
from ateplace.names import ZONE_LABEL
from ateplace.settings import Settings
from tests.unit.objects import atelet, node, pod, pool


def text(renderable: object) -> list[str]:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(renderable)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_picture_counts_each_pod_where_it_is() -> None:
    picture = compose(
        [node("n1", "u1", "u2"), node("n2", "u1"), node("n3")],
        [
            pod("a", "n1"),
            pod("b", "n1", ready=False),
            pod("c"),
            pod("d", "n1", phase="Succeeded"),
            pod("p", "n2", placeholder=True),
            pod("q", placeholder=True),
        ],
        [atelet("n1"), atelet("n2", ready=False)],
        [pool(replicas=3), pool("idle", "u2", 0, deleting=True)],
        in_flight={"n2": {"u1": 2}, "gone": {"u1": 1}},
    )
    nothing = {"claimed": True, "claim": "2026-01-01T00:00:00Z", "ateoms": 0, "ready": 0, "placeholders": 0}
    assert as_data(picture) == {
        "nodes": [
            {
                "name": "n1",
                "labelled": True,
                "atelet": "ready",
                "pools": [
                    {"pool": "demo/idle", **nothing, "inFlight": 0},
                    {"pool": "demo/web", **nothing, "ateoms": 2, "ready": 1, "inFlight": 0},
                ],
            },
            {
                "name": "n2",
                "labelled": True,
                "atelet": "starting",
                "pools": [{"pool": "demo/web", **nothing, "placeholders": 1, "inFlight": 2}],
            },
            {"name": "n3", "labelled": False, "atelet": None, "pools": []},
        ],
        "pools": [
            {
                "pool": "demo/web",
                "uid": "u1",
                "replicas": 3,
                "deleting": False,
                "ateoms": 2,
                "ready": 1,
                "waiting": 1,
                "placeholders": 1,
                "placeholdersWaiting": 1,
                "nodes": 2,
                "draining": 0,
                "overdue": 0,
            },
            {
                "pool": "demo/idle",
                "uid": "u2",
                "replicas": 0,
                "deleting": True,
                "ateoms": 0,
                "ready": 0,
                "waiting": 0,
                "placeholders": 0,
                "placeholdersWaiting": 0,
                "nodes": 1,
                "draining": 0,
                "overdue": 0,
            },
        ],
    }


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        ({"replicas": 2}, {"replicas": 2, "availableReplicas": 1}, (1, 2)),
        ({"replicas": 3}, {"replicas": 1, "availableReplicas": 1}, (1, 3)),
        ({"replicas": 2}, {}, (0, 2)),
        ({"replicas": 2}, None, (0, 2)),
        ({"replicas": 0}, {"replicas": 1, "availableReplicas": 1}, (1, 0)),
    ],
)
def test_wanted_replicas_are_those_that_were_asked_for(
    spec: dict[str, int], status: object, expected: tuple[int, int]
) -> None:
    body = {"metadata": {"name": "ateplace-webhook"}, "spec": {"template": {"spec": {}}, **spec}, "status": status}
    found = msgspec.convert(body, Deployment)
    assert (found.available(), found.spec.replicas) == expected


def test_a_pools_ateoms_are_counted_by_zone_where_there_are_several() -> None:
    zoned = [
        node("n1", "u1", labels={ZONE_LABEL: "a"}),
        node("n2", "u1", labels={ZONE_LABEL: "b"}),
        node("n3", labels={ZONE_LABEL: "c"}),
        node("n4"),
    ]
    picture = compose(zoned, [pod("1", "n1"), pod("2", "n1"), pod("3", "n2")], [], [pool(replicas=3)])
    assert shown_zones(picture, "demo/web") == "– 0, a 2, b 1, c 0"
    assert any("– 0, a 2, b 1, c 0" in line for line in text(draw_pools(picture)))
    assert shown_zones(compose(zoned[:1], [pod("1", "n1")], [], [pool()]), "demo/web") == ""


def test_pods_of_a_pool_that_was_recreated_are_not_counted_for_the_new_one() -> None:
    picture = compose([node("n1", "old")], [pod("a", "n1", uid="old")], [], [pool(uid="new")])
    assert picture.rows["demo/web"].ateoms == 0
    assert picture.nodes["n1"].pools["old"].ateoms == 1


def test_a_pod_with_a_forged_pool_is_counted_for_no_pool() -> None:
    """Its label has the UID of another namespace's pool, and its own namespace has a pool of the name."""
    forged = pod("a", "n1", uid="u1")
    forged.metadata.namespace = "other"
    own = pool("web", "u2")
    own.metadata.namespace = "other"
    picture = compose([node("n1")], [forged], [], [pool(uid="u1"), own])
    assert {name: row.ateoms for name, row in picture.rows.items()} == {"demo/web": 0, "other/web": 0}
    assert picture.nodes["n1"].pools["u1"].ateoms == 1


def test_a_drawing_shows_every_state_once() -> None:
    picture = compose(
        [node("n1", "u1"), node("n2", "u1"), node("n3"), node("n4")],
        [pod("a", "n1"), pod("b", "n1", ready=False), pod("p", "n1", placeholder=True), pod("c", "n3")],
        [atelet("n1"), atelet("n2", bound=False)],
        [pool()],
        in_flight={"n2": {"u1": 1}},
    )
    assert [line.split() for line in text(draw(picture, idle=False))] == [
        ["node", "atelet", "pool", "claim", "ateoms", "placeholders", "in", "flight"],
        ["n1", "ready", "demo/web", "held", "●◐", "○"],
        ["n2", "Unschedulable", "demo/web", "unused", "◌"],
        ["n3", "–", "demo/web", "missing", "●"],
    ]
    assert text(draw(picture))[-1].split() == ["n4", "–", "–"]


def test_ateoms_within_their_grace_are_draining_and_others_are_overdue() -> None:
    """The grace may be an hour: what waits for that is as it should be."""
    ends = {"a": "2026-01-01T01:00:00Z", "b": "2026-01-01T00:00:00Z", "p": "2026-01-01T01:00:00Z"}
    pods = [pod("a", "n1"), pod("b", "n1"), pod("c", "n1"), pod("p", "n1", placeholder=True)]
    for one in pods:
        one.metadata.deletion_timestamp = ends.get(one.metadata.name)
    now = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    picture = compose([node("n1", "u1")], pods, [atelet("n1")], [pool(replicas=3, deleting=True)], now=now)
    assert (picture.rows["demo/web"].draining, picture.rows["demo/web"].overdue) == (1, 1)
    drawn = "being deleted, 1 draining, 1 over their grace period"
    assert drawn in text(draw_pools(picture))[-1]
    says = [one.says for one in pool_checks.findings(pool(deleting=True), picture, pods, Settings())]
    assert "it is being deleted: 4 pods and claims on 1 node are left, 1 of the pods is draining" in says
    assert "1 ateom is Terminating, and over the grace period" in says


def test_many_pods_are_a_number() -> None:
    picture = compose([node("n1", "u1")], [pod(f"p{number}", "n1") for number in range(42)], [], [pool()])
    assert "● × 42" in text(draw(picture))[1]


def test_changes_are_told_a_line_each() -> None:
    before = compose([node("n1"), node("n2", "u1"), node("n9")], [], [atelet("n2")], [])
    after = compose([node("n1", "u1"), node("n2"), node("n3")], [pod("a", "n1")], [atelet("n1")], [pool()])
    assert changes(before, after) == [
        "pool demo/web created",
        "n1 claimed for demo/web",
        "n1: atelet ready",
        "n1: +1 ateoms, now 1",
        "n2 released by u1",
        "n2: atelet gone",
        "n3 joined",
        "n9 left",
    ]


def test_who_is_told_to_stop_at_the_moment_of_an_error_stops() -> None:
    """One that is looked at fails, and before whoever waits for all hears of it the user presses Ctrl-C."""

    async def failing() -> None:
        raise KubeError("no answer")

    async def main() -> None:
        looking = asyncio.create_task(attempt(asyncio.gather(failing(), asyncio.sleep(3600))))
        await asyncio.sleep(0)  # it has failed now, and whoever waits is told next
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking

    asyncio.run(main())


def test_trouble_that_passes_is_no_end() -> None:
    async def failing() -> None:
        raise KubeError("no answer")

    assert str(asyncio.run(attempt(failing()))) == "no answer"
