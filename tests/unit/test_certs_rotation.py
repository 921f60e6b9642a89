"""The change of authority: no call ever fails, whatever the order of things, and it always comes to an end.

The model has the parts that matter: Secrets and the webhook configuration with their versions, readers that
see a write late (but within the settling time), a scheduler that reads its authorities once, and two leaders
which act on what they read some time ago and may stop between any two writes.
"""

from dataclasses import replace

import pytest

from ateplace.certs.rotation import (
    ChangeAuthority,
    DropPrevious,
    Inject,
    Issue,
    Leaf,
    MakeAuthority,
    Phase,
    Publish,
    RestartScheduler,
    Scheduler,
    Step,
    Stillness,
    Wait,
    World,
    phase,
    plan,
    trust_mark,
)

BOTH = frozenset({"old", "new"})


def leaf(issuer: str | None = "new", bundle: frozenset[str] = frozenset({"new"}), **more: object) -> Leaf:
    return replace(Leaf("", issuer, bundle), **more)  # type: ignore[arg-type]


def world(
    leaves: dict[str, Leaf] | None = None,
    *,
    previous: frozenset[str] = frozenset(),
    trusts: frozenset[str] | None = None,
    running: bool = True,
    restartable: bool = True,
    injected: bool = True,
    current: str | None = "new",
    due: str = "",
) -> World:
    trusted = previous | ({current} if current else frozenset())
    scheduler = Scheduler(trust_mark(trusted if trusts is None else trusts), running, restartable)
    given = leaves if leaves is not None else {"a": leaf(bundle=trusted)}
    return World(current, previous, given, scheduler, injected, due=due)


OLD = leaf("old", BOTH)
OLD_DUE = leaf("old", BOTH, needs_renewal="old age")
OLD_SHOWN = replace(OLD, for_scheduler=True)
NEW = leaf("new", BOTH)
PREVIOUS = frozenset({"old"})
SWITCH = "it is signed by the previous authority"

CASES: list[tuple[str, World, bool, Phase, list[Step]]] = [
    ("nothing to do", world(), True, Phase.STEADY, []),
    (
        "nothing there at all",
        world({}, current=None),
        False,
        Phase.MISSING,
        [MakeAuthority("there is no authority")],
    ),
    (
        "a leaf is missing and another is due",
        world({"a": leaf(None, needs_renewal="none"), "b": leaf(needs_renewal="old age")}),
        False,
        Phase.STEADY,
        [Issue("none", "a"), Issue("old age", "b")],
    ),
    (
        "a leaf is signed by a stranger",
        world({"a": leaf(None, needs_renewal="a stranger's")}),
        False,
        Phase.STEADY,
        [Issue("a stranger's", "a")],
    ),
    (
        "the configuration was changed by hand",
        world(injected=False),
        False,
        Phase.PUBLISHING,
        [Inject("the webhook configuration trusts something else")],
    ),
    (
        "renewal goes on where the configuration cannot be written",
        world({"a": leaf(needs_renewal="old age")}, injected=False),
        False,
        Phase.PUBLISHING,
        [Issue("old age", "a"), Inject("the webhook configuration trusts something else")],
    ),
    ("the authority grows old", world(due="old age"), True, Phase.STEADY, [ChangeAuthority("old age")]),
    (
        "a change has begun",
        world({"a": leaf("old", PREVIOUS)}, previous=PREVIOUS),
        True,
        Phase.PUBLISHING,
        [Publish("its trusted authorities are others", "a")],
    ),
    (
        "not everybody has seen it",
        world({"a": OLD}, previous=PREVIOUS),
        False,
        Phase.SWITCHING,
        [Wait("until every pod trusts both")],
    ),
    (
        "a leaf of the previous authority grows old before everybody has seen the new one",
        world({"a": OLD_DUE}, previous=PREVIOUS),
        False,
        Phase.SWITCHING,
        [Wait("until every pod trusts both")],
    ),
    (
        "the scheduler has to be restarted, the other leaf need not wait for it",
        world({"a": OLD, "b": OLD_SHOWN}, previous=PREVIOUS, trusts=PREVIOUS),
        True,
        Phase.RESTARTING,
        [Issue(SWITCH, "a"), RestartScheduler("it has read other authorities")],
    ),
    (
        "the scheduler is restarting",
        world({"b": OLD_SHOWN}, previous=PREVIOUS, running=False),
        True,
        Phase.RESTARTING,
        [Wait("until the scheduler has restarted")],
    ),
    (
        "the scheduler belongs to somebody else",
        world({"b": OLD_SHOWN}, previous=PREVIOUS, trusts=PREVIOUS, restartable=False),
        True,
        Phase.RESTARTING,
        [Wait("until an administrator has restarted the scheduler and said so")],
    ),
    (
        "the scheduler has restarted",
        world({"b": OLD_SHOWN}, previous=PREVIOUS),
        True,
        Phase.SWITCHING,
        [Issue(SWITCH, "b")],
    ),
    (
        "all leaves are switched",
        world({"a": NEW, "b": NEW}, previous=PREVIOUS),
        False,
        Phase.DROPPING,
        [Wait("until every pod has its new leaf")],
    ),
    (
        "all pods have them",
        world({"a": NEW, "b": NEW}, previous=PREVIOUS),
        True,
        Phase.DROPPING,
        [DropPrevious("no leaf is signed by it any more")],
    ),
    (
        "the scheduler still trusts the dropped one",
        world(trusts=BOTH),
        True,
        Phase.STEADY,
        [RestartScheduler("it has read other authorities")],
    ),
    ("another's scheduler may trust one more", world(trusts=BOTH, restartable=False), True, Phase.STEADY, []),
]


@pytest.mark.parametrize(
    ("now", "settled", "where", "steps"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_next_steps_follow_from_what_there_is(now: World, settled: bool, where: Phase, steps: list[Step]) -> None:
    assert (phase(now), plan(now, settled=settled)) == (where, steps)


def test_a_scheduler_that_was_never_marked_is_marked_at_once() -> None:
    fresh = replace(world(), scheduler=Scheduler("", True, True))
    assert plan(fresh, settled=False) == [RestartScheduler("it has read other authorities")]


def test_time_begins_again_when_something_moves() -> None:
    stillness = Stillness(10)
    seen = [("a", 0, 1), ("a", 10, 10.5), ("a", 11, 11), ("b", 12, 12), ("a", 30, 31), ("a", 41, 42)]
    assert [stillness.observe(*look) for look in seen] == [False, False, True, False, False, True]
