"""A reflector: keeps a local copy of one collection of the API server and reports every change.

The cycle, repeated for ever:

    streaming list (watch with sendInitialEvents) ---- end of the list: bookmark ----> events, on the same connection
         | not supported: ERROR as the first event, 400, 422, or no such bookmark           |
         v                                                                                  v
    paged list ------------------------------- then watch from its version ----> ended, reset, silent: resume
                                                                                 from the last version seen
    410, also as an event: a full list again                                     (at once when it simply ended)

An accepted watch request is no sign of life: events may still be outstanding, and an API server that is cut off from
etcd accepts it as well. Only an event, a bookmark or a full list is one. If the last is so old that we cannot wait for
the next bookmark, we list instead of resuming.

A bookmark proves that the connection works and that no event up to its version was left out. It does not prove that
its version is the newest: an API server that is cut off from etcd repeats its last one, and a healthy one may lag by
many writes for minutes in a collection that rarely changes. So no decision that must be correct depends on bookmarks.

No change is missed: a resumed watch starts at the last version read, and where that is impossible, a full list is
compared with `store`. An old event never follows a newer one (`ateplace.kube.store`).

An exception from the handler ends `run()`: its state no longer follows `store`, so the process has to restart.
"""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Generic, TypeVar

from ateplace import errors
from ateplace.kube import Kube, codec
from ateplace.kube.backoff import Backoff
from ateplace.kube.failures import shorten
from ateplace.kube.store import Change, Mirror, NoStreamingList

log = logging.getLogger(__name__)

T = TypeVar("T", bound=codec.Object)
R = TypeVar("R")

SILENCE = 0.9
"""Reconnect after this fraction of `stale_after` without a byte, before we count as stale. Bookmarks come every minute,
but the first ones of an API server that has just started may take two."""
GAP = (1 - SILENCE) / 2
"""Resume a watch only if its last sign of life is younger than this fraction of `stale_after`: even if the new watch
stays silent until we reconnect, there is time left to list before we count as stale."""
STREAMING_LIST = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
STREAM_SECONDS = (300, 600)
"""The API server ends each watch after a random time in this range: reconnects are spread, and new API servers get
their share of the load."""
SETTLED_SECONDS = 1.0
"""A watch that ends sooner, without an event or a bookmark, has failed, and is retried with backoff."""

ABSENT_SECONDS = 5.0
"""A collection counts as removed, with all its objects, after 404s for this time: an API server that is starting, or
that lags behind the others, may not know a CustomResourceDefinition for a moment."""

WARN_SECONDS = 10.0
"""Minimum time between two log lines about unreadable objects: a tenant may create any number of them."""

NO_STREAMING_LIST = (NoStreamingList, errors.BadRequest, errors.Invalid)
"""How API servers reject a streaming list: by an ERROR event, or because they do not know the parameter."""


class Watch(Generic[T, R]):
    """The objects at `path` (a collection), filtered by selectors, each stored as the record that `project` returns.

    `on_change(key, old, new)` is called in the event loop for every change, after `store` is updated. It must be short,
    and must not modify `store` or a record. Calls come in the order in which the API server made the changes; after a
    full list, deletions come first.
    """

    def __init__(
        self,
        kube: Kube,
        path: str,
        type_: type[T],
        project: Callable[[T], R | None],
        on_change: Callable[[str, R | None, R | None], None],
        *,
        label_selector: str = "",
        field_selector: str = "",
        name: str = "",
        may_be_absent: bool = False,
    ) -> None:
        """`may_be_absent`: the collection itself may not exist (its CustomResourceDefinition was deleted). It is then
        treated as empty, and retried until it exists."""
        self._kube = kube
        self._path = path
        self._type = type_
        self._on_change = on_change
        self._mirror = Mirror(project, self._warn)
        self._warned = -math.inf
        self._must_list = True
        self._paged = False
        self._proved = -math.inf
        self._may_be_absent = may_be_absent
        self._missed = math.inf
        """Since when the collection has been answered with 404; inf while it exists."""
        self._opened = math.inf
        self._connects = 0
        self._selectors: dict[str, str] = {}
        if label_selector:
            self._selectors["labelSelector"] = label_selector
        if field_selector:
            self._selectors["fieldSelector"] = field_selector
        self.name = name or path.rpartition("/")[2]
        self.store = self._mirror.store
        """The records, by "namespace/name", or "name" where there is no namespace. Read only."""
        self.synced = asyncio.Event()
        """Set once the first full list has been delivered."""
        self.trouble = ""
        """Why the watch fails; "" while it works."""

    @property
    def version(self) -> int:
        """The resourceVersion up to which `store` is complete."""
        return self._mirror.version

    @property
    def events(self) -> int:
        """Events read, including the items of streaming lists."""
        return self._mirror.events

    @property
    def relists(self) -> int:
        """Full lists delivered after the first."""
        return max(0, self._mirror.lists - 1)

    @property
    def reconnects(self) -> int:
        """Watch requests accepted after the first."""
        return max(0, self._connects - 1)

    @property
    def unreadable(self) -> int:
        """Number of objects that cannot be read; `store` keeps their last readable state."""
        return len(self._mirror.unreadable)

    def staleness(self) -> float:
        """Seconds since the last sign of life: an event, a bookmark or a full list."""
        return time.monotonic() - self._proved if self.synced.is_set() else math.inf

    async def run(self) -> None:
        """Run until cancelled, or until the handler raises."""
        async with contextlib.aclosing(self._changes()) as batches:
            # Call the handler here, so that its exceptions are not mistaken for failures of the API server.
            async for changes in batches:
                for key, old, new in changes:
                    self._on_change(key, old, new)

    async def fresh(self) -> AsyncIterator[tuple[int, str, int, R]]:
        """List now, without touching `store`, to compare the two.

        Yields, for each object, the list's version, its key, its own version, and its record; for an unreadable object
        the record of its last readable state.
        """
        mirror = self._mirror
        async for text, items in self._kube.pages(self._path, self._type, query=self._selectors):
            for item in items:
                meta = item.object.metadata if isinstance(item, codec.Unreadable) else item.metadata
                record = mirror.read(item)
                if isinstance(record, codec.Unreadable):
                    record = mirror.kept(record)
                if record is not None:
                    yield codec.version(text), codec.key(meta), codec.version(meta.resource_version), record

    async def _changes(self) -> AsyncGenerator[list[Change[R]], None]:
        """The changes of one round after the other, with a delay in between that depends on how the round ended."""
        backoff = Backoff()
        while True:
            signs, self._opened = self._mirror.signs, math.inf
            failure: errors.KubeError | None = None
            try:
                async with contextlib.aclosing(self._round()) as batches:
                    async for changes in batches:
                        yield changes
            except errors.KubeError as error:
                failure = error
            worked = self._mirror.signs != signs or time.monotonic() - self._opened >= SETTLED_SECONDS
            if worked:
                backoff.reset()
            if self._is_absent(failure):
                if self._mirror.store or not self.synced.is_set():
                    self._mirror.begin()
                    yield self._mirror.end(0)
                # An empty `store` is current now. `trouble` stays set: it says why it is empty.
                self._proved, self._must_list = time.monotonic(), True
                self.synced.set()
            if failure is not None:
                self._note(failure)
            at_once = worked and (failure is None or isinstance(failure, errors.Gone))
            delay = 0.0 if at_once else backoff.delay()
            if isinstance(failure, errors.TooManyRequests):
                delay += failure.retry_after
            await asyncio.sleep(delay)

    def _is_absent(self, failure: errors.KubeError | None) -> bool:
        """Whether the collection has been missing for `ABSENT_SECONDS`."""
        now = time.monotonic()
        missed = self._may_be_absent and isinstance(failure, errors.NotFound)
        self._missed = min(self._missed, now) if missed else math.inf
        return now - self._missed >= ABSENT_SECONDS

    async def _round(self) -> AsyncGenerator[list[Change[R]], None]:
        """List if necessary, then watch until the connection ends."""
        query = {"resourceVersion": str(self._mirror.version)}
        if time.monotonic() - self._proved > GAP * self._kube.cluster.stale_after:
            self._must_list = True
        if self._must_list:
            # Alternate: if a streaming list fails, for whatever reason, the next try is a paged one, and vice versa.
            self._paged, paged = not self._paged, self._paged
            self._mirror.begin()
            if paged:
                yield self._mirror.end(await self._pages())
                self._prove()
                query = {"resourceVersion": str(self._mirror.version)}
            else:
                query = dict(STREAMING_LIST)
        async with contextlib.aclosing(self._follow(query)) as batches:
            async for changes in batches:
                yield changes

    async def _pages(self) -> int:
        version = 0
        async for text, items in self._kube.pages(self._path, self._type, query=self._selectors):
            version = codec.version(text)
            self._mirror.page(items)
        return version

    async def _follow(self, query: dict[str, str]) -> AsyncGenerator[list[Change[R]], None]:
        """One watch request; returns when the API server ends it."""
        mirror = self._mirror
        query |= self._selectors | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*STREAM_SECONDS)),  # noqa: S311 - no secret
        }
        lines = codec.Lines()
        silence = SILENCE * self._kube.cluster.stale_after
        async with self._kube.stream(self._path, query=query, silence=silence) as chunks:
            self._connects += 1
            self._opened = time.monotonic()
            async for chunk in chunks:
                for line in lines.feed(chunk):
                    if changes := mirror.feed(codec.decode_event(self._type, line)):
                        yield changes
                    if not mirror.listing:
                        self._prove()

    def _prove(self) -> None:
        """Record a sign of life."""
        self._proved = time.monotonic()
        self._must_list = self._paged = False
        self.synced.set()
        if self.trouble:
            log.info("watch recovered", extra={"watch": self.name})
            self.trouble = ""

    def _note(self, failure: errors.KubeError) -> None:
        fields = {"watch": self.name, "error": str(failure)}
        if isinstance(failure, errors.Gone):
            log.info("watch expired, listing again", extra=fields)
            self._must_list = True
        elif self._paged and isinstance(failure, NO_STREAMING_LIST):
            log.info("streaming list not supported, using a paged list", extra=fields)
        else:
            if not self.trouble:
                log.warning("watch failed, retrying", extra=fields)
            self.trouble = str(failure)

    def _warn(self, item: codec.Unreadable) -> None:
        now = time.monotonic()
        if now - self._warned >= WARN_SECONDS:
            self._warned = now
            fields = {"watch": self.name, "object": codec.key(item.object.metadata), "error": shorten(item.why)}
            log.warning("object cannot be read, keeping its last readable state", extra=fields)
