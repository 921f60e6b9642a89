"""JSON to structs and back. Each type has one cached decoder; fields that a struct does not have are skipped.

Decoding an object of whatever content returns its struct or `Unreadable`, or raises KubeError; no other exception.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
from msgspec import Raw, Struct

from ateplace.errors import KubeError
from ateplace.kube.failures import UNDECODABLE, Status
from ateplace.kube.objects import Bare, Metadata

OBJECT_BYTES = 16 * 1024 * 1024
"""Maximum size of an object, in a response or a watch event. etcd's limit is 1.5 MiB, and JSON may escape each byte of
a string as six."""
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
LAZY_BYTES = 1024 * 1024
"""Items of a larger list page are decoded one at a time: as Python objects they take several times the memory."""
FAT_BYTES = 128 * 1024
"""A larger object is trimmed before it is decoded: each of its resource lists is cut to `RESOURCES` entries. A list of
22,000 would take ten times its size as Python objects, and fragment the heap."""
RESOURCES = 32
"""Entries kept of each resource list in such an object, in the API server's order (by name)."""
FIRST = (b"cpu", b"memory", b"pods", b"ephemeral-storage")
"""Always kept."""
DEPTH = 64
"""If an object is nested too deeply for the decoder, everything below this depth becomes null. API servers accept
10,000 levels in a custom resource; nothing that we read is that deep."""

RESOURCE_LIST = re.compile(rb'"(?:requests|limits|overhead|allocatable|allocatedResources)":\{')
ODD = re.compile(rb"[\\{\[]")
NESTING = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


class Object(Protocol):
    """What every wire struct has."""

    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T")
Bytes = bytes | bytearray

encode = msgspec.json.Encoder().encode


_decoders: dict[Any, "msgspec.json.Decoder[Any]"] = {}


def _decoder(type_: Any) -> "msgspec.json.Decoder[Any]":
    decoder = _decoders.get(type_)
    if decoder is None:
        decoder = _decoders[type_] = msgspec.json.Decoder(type_)
    return decoder


def decode(type_: type[T], body: Bytes, what: str) -> T:
    """Decode one object; raises KubeError if it is not a `type_`."""
    try:
        return cast("T", _decoder(type_).decode(body))
    except UNDECODABLE as error:
        raise KubeError(f"{what}: cannot read the answer: {error}") from error


def key(metadata: Metadata) -> str:
    """ "namespace/name", or "name" for a cluster-scoped object."""
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


def version(text: str) -> int:
    """A resourceVersion as an integer; raises KubeError if it is not one."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise KubeError(f"{text[:64]!r} is not a numeric resourceVersion")
    return int(text)


class ListMeta(Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Struct, Generic[T]):
    metadata: ListMeta
    items: list[T] | None = None


class BookmarkMetadata(Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class BookmarkObject(Struct):
    metadata: BookmarkMetadata


class Added(Struct, Generic[T], tag_field="type", tag="ADDED"):
    object: T


class Modified(Struct, Generic[T], tag_field="type", tag="MODIFIED"):
    object: T


class Deleted(Struct, Generic[T], tag_field="type", tag="DELETED"):
    object: T


class Bookmark(Struct, tag_field="type", tag="BOOKMARK"):
    object: BookmarkObject

    @property
    def ends_the_list(self) -> bool:
        annotations = self.object.metadata.annotations
        return annotations is not None and annotations.get(INITIAL_EVENTS_END) == "true"


class Failed(Struct, tag_field="type", tag="ERROR"):
    object: Status


class Unreadable(Struct):
    """An event or list item whose object does not match its struct; `why` is the decoder's error."""

    object: Bare
    why: str


Items = Iterable[T | Unreadable]
"""Can be iterated once: those of a large page are decoded lazily."""
Event = Added[T] | Modified[T] | Deleted[T] | Bookmark | Failed | Unreadable


_event_decoders: dict[Any, "msgspec.json.Decoder[Any]"] = {}


def _event_decoder(type_: Any) -> "msgspec.json.Decoder[Any]":
    # One pass: the API server writes `type` before `object`, so the struct is known in time.
    decoder = _event_decoders.get(type_)
    if decoder is None:
        union = Added[type_] | Modified[type_] | Deleted[type_] | Bookmark | Failed
        decoder = _event_decoders[type_] = msgspec.json.Decoder(union)
    return decoder


def decode_event(type_: type[T], line: bytes) -> Event[T]:
    """Decode one line of a watch; raises KubeError if it is not an event."""
    try:
        return cast("Event[T]", _event_decoder(type_).decode(lean(line)))
    except UNDECODABLE as error:
        try:
            bare = _event_decoder(Bare).decode(_shallow(line) if isinstance(error, RecursionError) else line)
            if isinstance(bare, Deleted):
                return cast("Event[T]", bare)
            return Unreadable(bare.object, str(error))
        except UNDECODABLE:
            raise KubeError(f"cannot read a watch event: {error}") from error


def decode_page(type_: type[T], body: Bytes, what: str) -> tuple[ListMeta, Items[T]]:
    """Decode one page of a list; an unreadable item does not hide the others."""
    if len(body) <= LAZY_BYTES:
        try:
            page = _decoder(Page[type_]).decode(body)  # type: ignore[valid-type]
            return page.metadata, page.items or []
        except UNDECODABLE:
            pass
    try:
        raw = _decoder(Page[Raw]).decode(body)
    except RecursionError:
        raw = decode(Page[Raw], _shallow(body), what)
    except UNDECODABLE as error:
        raise KubeError(f"{what}: cannot read the answer: {error}") from error
    return raw.metadata, _decode_items(type_, raw.items or [], what)


def _decode_items(type_: type[T], items: list[Raw], what: str) -> Iterator[T | Unreadable]:
    for item in items:
        try:
            yield _decoder(type_).decode(lean(bytes(item)) if len(item) > FAT_BYTES else item)
        except UNDECODABLE as error:
            yield Unreadable(decode(Bare, bytes(item), what), str(error))


def lean(text: bytes) -> bytes:
    """The JSON of an object above `FAT_BYTES` with its resource lists trimmed; others unchanged. The pattern cannot
    match within a string, where quotes are escaped."""
    if len(text) <= FAT_BYTES:
        return text
    parts: list[bytes] = []
    kept = 0
    for match in RESOURCE_LIST.finditer(text):
        start, end = match.end(), text.find(b"}", match.end())
        found = text.count(b'":"', start, end)
        # Only as an API server writes it: quoted names and amounts without escapes, and the brace not within quotes.
        plain = text.count(b'",', start, end) == found - 1 and not ODD.search(text, start, end)
        if found > RESOURCES and plain and text[end - 1 : end] == b'"' != text[end - 2 : end - 1] != b":":
            cut = start
            for _ in range(RESOURCES):
                cut = text.index(b'",', cut) + 1
            parts.append(text[kept:cut])
            for name in FIRST:
                at = text.find(b',"%b":"' % name, cut, end)
                if at >= 0:
                    parts.append(text[at : text.index(b'"', at + len(name) + 5) + 1])
            kept = end
    return b"".join((*parts, text[kept:])) if parts else text


def _shallow(text: Bytes) -> bytes:
    """The same JSON with null for everything nested deeper than `DEPTH`, in one pass."""
    parts: list[Bytes] = []
    depth = kept = 0
    for token in NESTING.finditer(text):
        at = token.start()
        if text[at] in b"[{":
            depth += 1
            if depth == DEPTH + 1:
                parts += (text[kept:at], b"null")
        elif text[at] in b"]}":
            depth -= 1
            if depth == DEPTH:
                kept = at + 1
    return b"".join((*parts, text[kept:]))


class Lines:
    """Splits a stream of chunks into lines, in linear time however long a line is.

    (aiohttp's readline rejects lines longer than its buffer.) An unfinished last line is never returned: a stream that
    breaks off within an event has not delivered it.
    """

    def __init__(self, most: int = OBJECT_BYTES) -> None:
        self._most = most
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that this chunk completes, without newlines; raises KubeError for one above the limit."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            line = chunk[start:end]
            if self._parts:
                self._parts.append(line)
                line = b"".join(self._parts)
                self._parts.clear()
                self._held = 0
            start = end + 1
            if len(line) > self._most:
                raise KubeError(f"a watch event of {len(line)} bytes is above the limit of {self._most} bytes")
            if line:
                yield line
        if start < len(chunk):
            self._parts.append(chunk[start:])
            self._held += len(chunk) - start
            if self._held > self._most:
                raise KubeError(f"a watch event is above the limit of {self._most} bytes")
