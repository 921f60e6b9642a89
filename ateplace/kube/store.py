"""What a watch knows, without any I/O: fed with events and pages, it says what changed.

                begin()            end of the list
    (empty) -------------> Listing ---------------> Live <--+ events, bookmarks: the version rises
                              ^                      |  +---+
                              +----------------------+
                               begin(): too old to go on

While Listing, everything is collected aside and `store` stays as it was; at the end the two are compared. So no reader
sees half a list, a deletion missed in a gap is found, and a list that breaks off leaves no trace. Live, an event
older than the version reached is dropped: one etcd has one order, and its resourceVersions are numbers in it.

An object that cannot be decoded, or that `project` raises anything for, is unreadable. It must neither end a process
nor hide others, and its author must not gain by it: what was known of it before stays, until it can be read again, is
deleted, or another object of its name takes its place.
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from ateplace import errors
from ateplace.kube import codec, failures
from ateplace.kube.objects import Bare

T = TypeVar("T", bound=codec.Object)
R = TypeVar("R")

Change = tuple[str, R | None, R | None]
"""Key, record before, record now; None: there was or is none."""


class NoStreamingList(errors.KubeError):
    """This server, or its storage, lists in pages only."""


class WentBack(errors.AteplaceError):
    """The API server's state is older than what it has shown before: etcd was restored from a backup. What we remember
    is about a past that never was, so this is no KubeError, which is waited out: it ends the process."""


class Mirror(Generic[T, R]):
    """The records of all objects of one watch, by key.

    `project` makes the record that is kept; None means that the object is of no interest, the same as absent.
    A record equal to the one before is no change, and the one before is kept: whatever tells two objects of
    one name apart for the user, such as the uid, belongs into the record. `warn` is called once for an object that
    cannot be read, however often it changes.
    """

    def __init__(
        self, project: Callable[[T], R | None], warn: Callable[[codec.Unreadable], None] = lambda _: None
    ) -> None:
        self._project = project
        self._warn = warn
        self._list: dict[str, R] = {}
        self._list_unreadable: set[str] = set()
        self.listing = False
        self._events_before = 0
        self.store: dict[str, R] = {}
        self.version = 0
        """`store` is complete up to here; 0 before the first list."""
        self.lists = 0
        """Full lists taken over."""
        self.events = 0
        """Events read, the items of streaming lists included, bookmarks not."""
        self.signs = 0
        """Events and bookmarks that told something while Live."""
        self.unreadable: set[str] = set()
        """Keys of the objects that cannot be read now."""

    def read(self, item: T | codec.Unreadable) -> R | codec.Unreadable | None:
        """An object's record, or why it has none. The one place where foreign values meet our code."""
        if isinstance(item, codec.Unreadable):
            return item
        try:
            return self._project(item)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the process
            return codec.Unreadable(Bare(item.metadata), f"{type(error).__name__}: {error}")

    def kept(self, item: codec.Unreadable) -> R | None:
        """What was known of an object before it became unreadable; None when that was another one of its name."""
        metadata = item.object.metadata
        key = codec.key(metadata)
        record = self._list.get(key) or self.store.get(key)
        return record if getattr(record, "uid", metadata.uid) == metadata.uid else None

    def begin(self) -> None:
        """A full list begins; one that was under way is forgotten."""
        self._list = {}
        self._list_unreadable = set()
        self.listing = True
        self._events_before = self.events

    def page(self, items: Iterable[T | codec.Unreadable]) -> None:
        """A part of the list that is under way."""
        for item in items:
            self._collect(item)

    def end(self, version: int) -> list[Change[R]]:
        """The list is complete as of `version`: what differs from what we had, deletions first. Every list is
        consistent, so one that is older than what was seen before comes from an etcd that was restored."""
        if 0 < version < self.version:
            raise WentBack(f"the API server lists version {version}, and version {self.version} was seen before")
        fresh, self._list = self._list, {}
        self.unreadable, self._list_unreadable = self._list_unreadable, set()
        self.listing = False
        self.version = version
        self.lists += 1
        store = self.store
        gone = [key for key in store if key not in fresh]
        changes: list[Change[R]] = [(key, store.pop(key), None) for key in gone]
        for key, record in fresh.items():
            old = store.get(key)
            if old is not record:
                store[key] = record
                changes.append((key, old, record))
        return changes

    def feed(self, event: codec.Event[T]) -> list[Change[R]]:
        """One event of the stream; raises what an ERROR event says, and Gone when only a list helps."""
        if isinstance(event, codec.Bookmark):
            return self._bookmark(event)
        if isinstance(event, codec.Failed):
            error = failures.from_status("watch", event.object)
            if self.listing and self.events == self._events_before:
                raise NoStreamingList(str(error), status=error.status, reason=error.reason)
            raise error
        self.events += 1
        metadata = event.object.metadata
        if self.listing:
            # Between the list's items and its end there may be events already: what happened meanwhile.
            if isinstance(event, codec.Deleted):
                self._list.pop(codec.key(metadata), None)
                self._list_unreadable.discard(codec.key(metadata))
            else:
                self._collect(event if isinstance(event, codec.Unreadable) else event.object)
            return []
        version = codec.version(metadata.resource_version)
        if version < self.version:
            return []
        self.version = version
        self.signs += 1
        key = codec.key(metadata)
        if isinstance(event, codec.Deleted):
            self.unreadable.discard(key)
            return self._put(key, None)
        record = self.read(event if isinstance(event, codec.Unreadable) else event.object)
        if isinstance(record, codec.Unreadable):
            self._note(record, key, self.unreadable)
            return [] if self.kept(record) is not None else self._put(key, None)
        self.unreadable.discard(key)
        return self._put(key, record)

    def _bookmark(self, event: codec.Bookmark) -> list[Change[R]]:
        version = codec.version(event.object.metadata.resource_version)
        if self.listing:
            if not event.ends_the_list:
                raise NoStreamingList("watch: a bookmark came that does not end the list")
            return self.end(version)
        if version < self.version:
            # The server knows less than we do: restored from a backup, or far behind. Only a list tells.
            raise errors.Gone(f"watch: the server is at {version}, and was at {self.version} before", status=410)
        self.version = version
        self.signs += 1
        return []

    def _collect(self, item: T | codec.Unreadable) -> None:
        record = self.read(item)
        if isinstance(record, codec.Unreadable):
            key = codec.key(record.object.metadata)
            self._note(record, key, self._list_unreadable)
            record = self.kept(record)
        else:
            key = codec.key(item.object.metadata if isinstance(item, codec.Unreadable) else item.metadata)
            self._list_unreadable.discard(key)
        if record is None:
            self._list.pop(key, None)
            return
        # Most objects have not changed since the last list: then the old record serves, and is not doubled.
        old = self.store.get(key)
        self._list[key] = old if old is not None and old == record else record

    def _note(self, item: codec.Unreadable, key: str, found: set[str]) -> None:
        if key not in self.unreadable and key not in found:
            self._warn(item)
        found.add(key)

    def _put(self, key: str, record: R | None) -> list[Change[R]]:
        old = self.store.get(key)
        if record is None:
            if old is None:
                return []
            del self.store[key]
        elif old is not None and old == record:
            return []
        else:
            self.store[key] = record
        return [(key, old, record)]
