"""Keep a small local copy of what the API server has, and say what changes.

One life of a watch, repeated for ever:

    streaming list (watch with sendInitialEvents) ---- end of the list: bookmark ----> events, on the same connection
         | not offered: ERROR as the first event, 400, 422, or no end in sight              |
         v                                                                                  v
    paged list ------------------------------- then watch from its version ----> ended, reset, silent: resume
                                                                                 from the last version seen
    410, also as an event: a full list again                                     (at once when it simply ended)

Being let in again proves nothing: what happened meanwhile is still to be read, and a server that is cut off from its
storage lets us in as well. A sign of life is an event, a bookmark or a full list. When the last one is too long ago to
wait for the next bookmark, the watch is not resumed but lists.

What a bookmark proves: the connection works, and nothing up to its version was left out. What it does not prove: that
this version is the newest. A server that hears nothing from etcd goes on sending the one it has, and a healthy one may
be many writes behind for minutes where objects of this kind hardly change. So nothing that must be right rests on it.

Nothing is missed: a resumed watch starts where the last one was read to, and where that is impossible a full list is
compared with what we had. Nothing old follows something newer (`ateplace.kube.store`).

A handler that raises ends `run()` with that exception: a copy that its user did not follow is worse than
none, and the process is made to be restarted.
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
"""Reconnect after this part of `stale_after` without a byte, before we count as stale. Bookmarks come once a minute,
except from an API server that has just started: its first ones may take two."""
GAP = (1 - SILENCE) / 2
"""A watch is resumed only if its last proof is not longer ago than this part of `stale_after`: should the new one say
nothing for as long as that is borne, a list can still be made before we count as stale."""
STREAMING_LIST = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
STREAM_SECONDS = (300, 600)
"""How long the API server serves one watch: the ends are spread, and load finds its way to new API servers."""
SETTLED_SECONDS = 1.0
"""A watch that ends sooner, and without a word, was not a working one."""

ABSENT_SECONDS = 5.0
"""A collection counts as removed when it was not found for so long: everything in it goes by that, and an API server
that is just starting, or one of several that lags behind, may not know a CustomResourceDefinition for a moment."""

WARN_SECONDS = 10.0
"""Least time between two log lines about objects that cannot be read: a tenant may make any number of them."""

NO_STREAMING_LIST = (NoStreamingList, errors.BadRequest, errors.Invalid)
"""How servers say it: in the stream, or because they do not know the parameter."""


class Watch(Generic[T, R]):
    """The objects at `path` (a collection), selected by labels and fields, each kept as `project` makes it.

    `on_change(key, old, new)` is called in the event loop for every difference, when `store` has it already: it
    must be short, and must not change `store` or a record. The order of calls is the order in which the API
    server saw the changes, except after a full list, when deletions come first.
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
        """`may_be_absent`: the collection itself may be removed (a CustomResourceDefinition). Then there are no such
        objects, and it is asked for again until it is there."""
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
        """Since when it has not been found; inf when it is there."""
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
        """What is wrong; "" while all is well."""

    @property
    def version(self) -> int:
        """The resourceVersion up to which `store` is complete."""
        return self._mirror.version

    @property
    def events(self) -> int:
        """Events read, the items of streaming lists included."""
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
        """How many objects cannot be read now; what was known of them before stays."""
        return len(self._mirror.unreadable)

    def staleness(self) -> float:
        """Seconds since `store` was current for sure: an event, a bookmark, a full list."""
        return time.monotonic() - self._proved if self.synced.is_set() else math.inf

    async def run(self) -> None:
        """Follow for ever; only cancellation, or an exception of the handler, ends it."""
        async with contextlib.aclosing(self._changes()) as batches:
            # The handler is called here so that none of its exceptions is taken for trouble with the API server.
            async for changes in batches:
                for key, old, new in changes:
                    self._on_change(key, old, new)

    async def fresh(self) -> AsyncIterator[tuple[int, str, int, R]]:
        """A list made now, beside the watch and without touching `store`, to hold against it.

        For each object: the list's version, its key, its own version, its record. One that cannot be read has the
        record that it had.
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
        """Round after round, with the pause in between that its end calls for."""
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
                # Its trouble stays: that there are none is known, and why is worth saying.
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
        """Whether there has been no such collection for a while."""
        now = time.monotonic()
        missed = self._may_be_absent and isinstance(failure, errors.NotFound)
        self._missed = min(self._missed, now) if missed else math.inf
        return now - self._missed >= ABSENT_SECONDS

    async def _round(self) -> AsyncGenerator[list[Change[R]], None]:
        """A full list if one is needed, then events for as long as one connection holds."""
        query = {"resourceVersion": str(self._mirror.version)}
        if time.monotonic() - self._proved > GAP * self._kube.cluster.stale_after:
            self._must_list = True
        if self._must_list:
            # A streaming list that fails, for whatever reason, is followed by a paged one, and the other way round.
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
        """`store` has just been seen to be current."""
        self._proved = time.monotonic()
        self._must_list = self._paged = False
        self.synced.set()
        if self.trouble:
            log.info("watch works again", extra={"watch": self.name})
            self.trouble = ""

    def _note(self, failure: errors.KubeError) -> None:
        fields = {"watch": self.name, "error": str(failure)}
        if isinstance(failure, errors.Gone):
            log.info("watch cannot go on, listing again", extra=fields)
            self._must_list = True
        elif self._paged and isinstance(failure, NO_STREAMING_LIST):
            log.info("no streaming list here, taking a paged one", extra=fields)
        else:
            if not self.trouble:
                log.warning("watch failed, trying again", extra=fields)
            self.trouble = str(failure)

    def _warn(self, item: codec.Unreadable) -> None:
        now = time.monotonic()
        if now - self._warned >= WARN_SECONDS:
            self._warned = now
            fields = {"watch": self.name, "object": codec.key(item.object.metadata), "error": shorten(item.why)}
            log.warning("object cannot be read: what was known of it stays", extra=fields)
