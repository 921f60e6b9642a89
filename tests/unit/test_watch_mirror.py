"""What a watch knows: by table, and against a world that changes in every order."""

from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ateplace import errors
from ateplace.kube import codec
from ateplace.kube.failures import Status
from ateplace.kube.objects import Bare, Metadata, WorkerPool, WorkerPoolSpec
from ateplace.kube.store import Mirror, NoStreamingList

Record = tuple[str, int]


def pool(name: str, version: int, *, uid: str = "u", replicas: int = 1) -> WorkerPool:
    return WorkerPool(Metadata(name, "ns", uid, str(version)), WorkerPoolSpec(replicas))


def record(each: WorkerPool) -> Record | None:
    """Pools without replicas are of no interest."""
    assert each.spec is not None
    return (each.metadata.uid, each.spec.replicas) if each.spec.replicas else None


def bookmark(version: int, *, end: bool = False) -> codec.Bookmark:
    annotations = {codec.INITIAL_EVENTS_END: "true"} if end else None
    return codec.Bookmark(codec.BookmarkObject(codec.BookmarkMetadata(str(version), annotations)))


def unreadable(name: str, version: int) -> codec.Unreadable:
    return codec.Unreadable(Bare(Metadata(name, "ns", "u", str(version))), "why")


def live(*pools: WorkerPool, version: int = 10) -> Mirror[WorkerPool, Record]:
    mirror = Mirror(record)
    mirror.begin()
    mirror.page(pools)
    mirror.end(version)
    return mirror


@pytest.mark.parametrize(
    ("event", "changes", "version"),
    [
        (codec.Added(pool("b", 11)), [("ns/b", None, ("u", 1))], 11),
        (codec.Modified(pool("a", 11, replicas=2)), [("ns/a", ("u", 1), ("u", 2))], 11),
        (codec.Modified(pool("a", 11)), [], 11),
        (codec.Modified(pool("a", 11, replicas=0)), [("ns/a", ("u", 1), None)], 11),
        (codec.Added(pool("b", 11, replicas=0)), [], 11),
        (codec.Deleted(pool("a", 11)), [("ns/a", ("u", 1), None)], 11),
        (codec.Deleted(pool("b", 11)), [], 11),
        (codec.Added(pool("a", 11, uid="v")), [("ns/a", ("u", 1), ("v", 1))], 11),
        (codec.Modified(pool("a", 9, replicas=2)), [], 10),
        (codec.Deleted(pool("a", 9)), [], 10),
        (unreadable("a", 11), [], 11),
        (bookmark(12), [], 12),
    ],
    ids=[
        "new",
        "changed",
        "changed in nothing that is kept",
        "of no interest any more",
        "new, of no interest",
        "deleted",
        "deleted, never seen",
        "recreated",
        "older than what is known",
        "an older deletion",
        "cannot be read any more",
        "bookmark",
    ],
)
def test_an_event_becomes_the_change_that_it_is(event: Any, changes: list[Any], version: int) -> None:
    mirror = live(pool("a", 5))
    assert (mirror.feed(event), mirror.version) == (changes, version)


class Known(NamedTuple):
    uid: str
    replicas: int


def test_what_was_known_of_an_unreadable_object_stays_until_it_can_be_read_goes_or_is_another() -> None:
    warned: list[str] = []

    def project(each: WorkerPool) -> Known:
        assert each.spec is not None
        if each.spec.replicas > 9:
            raise RecursionError("too deep")
        return Known(each.metadata.uid, each.spec.replicas)

    mirror: Mirror[WorkerPool, Known] = Mirror(project, lambda item: warned.append(item.why))
    mirror.begin()
    mirror.page([pool(name, 1) for name in ("changed", "deleted", "recreated", "listed")])
    mirror.end(10)
    for version, name in enumerate(("changed", "deleted", "recreated", "listed", "new", "changed"), 11):
        assert mirror.feed(codec.Modified(pool(name, version, replicas=10))) == []
    assert mirror.unreadable == {"ns/changed", "ns/deleted", "ns/recreated", "ns/listed", "ns/new"}
    assert warned == ["RecursionError: too deep"] * 5  # once each
    assert mirror.store == {f"ns/{each}": ("u", 1) for each in ("changed", "deleted", "recreated", "listed")}

    assert mirror.feed(codec.Modified(pool("changed", 20, replicas=2))) == [("ns/changed", ("u", 1), ("u", 2))]
    assert mirror.feed(codec.Deleted(pool("deleted", 21, replicas=10))) == [("ns/deleted", ("u", 1), None)]
    mirror.begin()
    mirror.page([pool("changed", 20, replicas=2), pool("listed", 14, replicas=10)])
    mirror.page([pool("recreated", 22, uid="v", replicas=10)])
    assert mirror.end(23) == [("ns/recreated", ("u", 1), None)]
    assert mirror.unreadable == {"ns/listed", "ns/recreated"}
    assert len(warned) == 5


def test_a_list_is_compared_with_what_was_known_deletions_first() -> None:
    mirror = live(pool("same", 1), pool("gone", 2), pool("changed", 3), pool("recreated", 4))
    same = mirror.store["ns/same"]

    mirror.begin()
    mirror.page([pool("new", 20), pool("recreated", 19, uid="v"), pool("changed", 18, replicas=3)])
    mirror.page([pool("same", 1), unreadable("strange", 17)])
    store = dict(mirror.store)
    changes = mirror.end(21)

    assert store == {f"ns/{name}": ("u", 1) for name in ("same", "gone", "changed", "recreated")}
    assert changes == [
        ("ns/gone", ("u", 1), None),
        ("ns/new", None, ("u", 1)),
        ("ns/recreated", ("u", 1), ("v", 1)),
        ("ns/changed", ("u", 1), ("u", 3)),
    ]
    assert (mirror.version, mirror.lists, mirror.unreadable) == (21, 2, {"ns/strange"})
    assert mirror.store["ns/same"] is same


def test_events_between_a_streaming_lists_items_and_its_end_belong_to_it() -> None:
    mirror = live(pool("a", 5))
    mirror.begin()
    for event in (
        codec.Added(pool("a", 5)),
        codec.Added(pool("b", 6)),
        codec.Modified(pool("b", 12, replicas=2)),
        codec.Deleted(pool("a", 13)),
        unreadable("b", 14),
        codec.Modified(pool("b", 15, replicas=4)),
    ):
        assert mirror.feed(event) == []
    assert mirror.feed(bookmark(15, end=True)) == [("ns/a", ("u", 1), None), ("ns/b", None, ("u", 4))]


def test_a_list_that_breaks_off_leaves_no_trace() -> None:
    mirror = live(pool("a", 5))
    mirror.begin()
    mirror.feed(codec.Added(pool("b", 6)))
    mirror.begin()
    mirror.page([pool("a", 5)])
    assert mirror.end(11) == []
    assert mirror.store == {"ns/a": ("u", 1)}


@pytest.mark.parametrize(
    ("listing", "event", "error"),
    [
        (True, codec.Failed(Status(500, "RequestWatchProgress is disabled")), NoStreamingList),
        (True, bookmark(11), NoStreamingList),
        (False, codec.Failed(Status(410, "too old", "Expired")), errors.Gone),
        (False, codec.Failed(Status(500, "boom")), errors.ServerError),
        (False, codec.Failed(Status(429, "slow")), errors.TooManyRequests),
        (False, bookmark(9), errors.Gone),
    ],
    ids=["not offered", "not implemented", "expired", "failed", "busy", "history went back"],
)
def test_what_ends_a_watch_says_how_to_go_on(listing: bool, event: Any, error: type[errors.KubeError]) -> None:
    mirror = live(pool("a", 5))
    if listing:
        mirror.begin()
    with pytest.raises(error):
        mirror.feed(event)
    assert mirror.store == {"ns/a": ("u", 1)}


def test_an_error_in_the_middle_of_a_streaming_list_is_that_error() -> None:
    mirror = Mirror(record)
    mirror.begin()
    mirror.feed(codec.Added(pool("a", 5)))
    with pytest.raises(errors.Gone):
        mirror.feed(codec.Failed(Status(410, "too old")))


NAMES = st.sampled_from(["a", "b", "c"])


class World(RuleBasedStateMachine):
    """Pools come, change, go and come again, while the mirror lists, follows, breaks off, and hears things twice.

    At every moment what it has must be the world as it was at the version that it says, and whoever applied
    all its changes must have the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.version = 10
        self.now: dict[str, WorkerPool] = {}
        self.history: list[Any] = []
        self.past: dict[int, dict[str, Record]] = {10: {}}
        self.mirror = Mirror(record)
        self.view: dict[str, Record] = {}
        self.read = 0
        self.must_list = True

    def happened(self, event: Any) -> None:
        self.history.append(event)
        known = {f"ns/{name}": record(each) for name, each in self.now.items()}
        self.past[self.version] = {key: each for key, each in known.items() if each}

    @rule(name=NAMES, replicas=st.integers(0, 2))
    def written(self, name: str, replicas: int) -> None:
        self.version += 1
        old = self.now.get(name)
        uid = old.metadata.uid if old else f"uid-{self.version}"
        self.now[name] = pool(name, self.version, uid=uid, replicas=replicas)
        self.happened((codec.Modified if old else codec.Added)(self.now[name]))

    @rule(name=NAMES)
    def deleted(self, name: str) -> None:
        if old := self.now.pop(name, None):
            self.version += 1
            assert old.spec is not None
            self.happened(codec.Deleted(pool(name, self.version, uid=old.metadata.uid, replicas=old.spec.replicas)))

    def apply(self, changes: list[Any]) -> None:
        for key, old, new in changes:
            assert self.view.pop(key, None) == old
            if new is not None:
                self.view[key] = new

    @rule()
    def listed_in_pages(self) -> None:
        self.mirror.begin()
        for each in self.now.values():
            self.mirror.page([each])
        self.apply(self.mirror.end(self.version))
        self.read, self.must_list = len(self.history), False

    @rule(missing=st.integers(0, 3), ended=st.booleans())
    def listed_in_a_stream(self, missing: int, ended: bool) -> None:
        """As of some events ago, which then follow, before the end of the list."""
        start = max(0, len(self.history) - missing)
        then: dict[str, WorkerPool] = {}
        for event in self.history[:start]:
            then.pop(event.object.metadata.name, None)
            if not isinstance(event, codec.Deleted):
                then[event.object.metadata.name] = event.object
        self.mirror.begin()
        self.must_list = True
        for event in [*map(codec.Added, then.values()), *self.history[start:]]:
            self.apply(self.mirror.feed(event))
        if ended:
            self.apply(self.mirror.feed(bookmark(self.version, end=True)))
            self.read, self.must_list = len(self.history), False

    @precondition(lambda self: not self.must_list)
    @rule(count=st.integers(1, 4), again=st.integers(0, 3))
    def followed(self, count: int, again: int) -> None:
        """Some events, the last few of those before once more."""
        for event in self.history[max(0, self.read - again) : self.read + count]:
            self.apply(self.mirror.feed(event))
        self.read = min(len(self.history), self.read + count)

    @precondition(lambda self: not self.must_list)
    @rule()
    def caught_up(self) -> None:
        self.followed(len(self.history), 0)
        self.apply(self.mirror.feed(bookmark(self.version)))
        assert self.mirror.version == self.version

    @invariant()
    def is_the_world_at_its_version(self) -> None:
        assert self.mirror.store == self.view
        assert self.mirror.store == (self.past[self.mirror.version] if self.mirror.version else {})


World.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestWorld = World.TestCase
