"""Bytes to structs: lines, events, pages."""

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ateplace.cluster.resources import amounts
from ateplace.errors import KubeError
from ateplace.kube import codec
from ateplace.kube.failures import Status
from ateplace.kube.objects import Metadata, Node, Pod, WorkerPool

META = {"name": "n", "namespace": "ns", "resourceVersion": "5"}


def line(kind: str, what: object) -> bytes:
    return json.dumps({"type": kind, "object": what}).encode()


@given(st.lists(st.binary(min_size=1).map(lambda b: b.replace(b"\n", b" "))), st.binary(), st.lists(st.integers(1, 9)))
def test_lines_are_the_same_however_the_bytes_arrive(wanted: list[bytes], rest: bytes, sizes: list[int]) -> None:
    data = b"".join(each + b"\n" for each in wanted) + rest.replace(b"\n", b"")
    lines = codec.Lines()
    found: list[bytes] = []
    for size in [*sizes, len(data)]:
        found += lines.feed(data[:size])
        data = data[size:]
    assert found == wanted


def test_a_line_of_three_mebibytes_in_small_chunks_is_one_line() -> None:
    lines = codec.Lines()
    for _ in range(3 * 64):
        assert list(lines.feed(b"x" * 16384)) == []
    assert list(lines.feed(b"\n{}\n")) == [b"x" * 3 * 2**20, b"{}"]


@pytest.mark.parametrize(
    "chunks", [[b"x" * 11], [b"x" * 6, b"x" * 5], [b"x" * 11 + b"\n"], [b"x" * 6, b"x" * 5 + b"\n"]]
)
def test_a_line_over_the_limit_is_refused(chunks: list[bytes]) -> None:
    lines = codec.Lines(most=10)
    with pytest.raises(KubeError, match="limit of 10 bytes"):
        [found for chunk in chunks for found in lines.feed(chunk)]


@pytest.mark.parametrize(
    ("text", "event"),
    [
        (line("ADDED", {"metadata": META}), codec.Added(WorkerPool(Metadata("n", "ns", resource_version="5")))),
        (line("MODIFIED", {"metadata": META}), codec.Modified(WorkerPool(Metadata("n", "ns", resource_version="5")))),
        (line("DELETED", {"metadata": META}), codec.Deleted(WorkerPool(Metadata("n", "ns", resource_version="5")))),
        (
            line("BOOKMARK", {"kind": "WorkerPool", "metadata": {"resourceVersion": "5", "creationTimestamp": None}}),
            codec.Bookmark(codec.BookmarkObject(codec.BookmarkMetadata("5"))),
        ),
        (
            line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}),
            codec.Failed(Status(410, "too old", "Expired")),
        ),
    ],
)
def test_each_event_becomes_its_struct(text: bytes, event: object) -> None:
    assert codec.decode_event(WorkerPool, text) == event


@pytest.mark.parametrize(
    ("annotations", "ends"),
    [(None, False), ({}, False), ({"k8s.io/initial-events-end": "true"}, True), ({"other": "true"}, False)],
)
def test_the_bookmark_that_ends_a_list_carries_an_annotation(annotations: dict[str, str] | None, ends: bool) -> None:
    metadata: dict[str, Any] = {"resourceVersion": "5", "annotations": annotations}
    event = codec.decode_event(Pod, line("BOOKMARK", {"metadata": metadata, "spec": {"containers": None}}))
    assert isinstance(event, codec.Bookmark) and event.ends_the_list is ends


def test_an_object_of_another_shape_is_an_event_that_names_it() -> None:
    event = codec.decode_event(Node, line("MODIFIED", {"metadata": META, "spec": 7}))
    assert isinstance(event, codec.Unreadable)
    assert codec.key(event.object.metadata) == "ns/n"
    assert "$.object.spec" in event.why


def test_the_deletion_of_such_an_object_is_a_deletion() -> None:
    event = codec.decode_event(Node, line("DELETED", {"metadata": META, "spec": 7}))
    assert isinstance(event, codec.Deleted)


@pytest.mark.parametrize("text", [b"{", b"[]", b"{}", b"\xff", line("NEWS", {"metadata": META}), line("ADDED", {})])
def test_what_is_no_event_is_an_error(text: bytes) -> None:
    with pytest.raises(KubeError) as caught:
        codec.decode_event(Node, text)
    assert isinstance(caught.value.__cause__, msgspec.DecodeError)


@pytest.mark.parametrize("text", [b"", b"\x1f\x8b", b"[]", b'{"metadata":'])
def test_what_is_no_page_is_an_error(text: bytes) -> None:
    with pytest.raises(KubeError, match="GET /"):
        codec.decode_page(Node, text, "GET /")


def test_an_item_of_another_shape_does_not_hide_the_others_of_its_page() -> None:
    items = [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}, "spec": []}, {"metadata": {"name": "c"}}]
    body = json.dumps({"metadata": {"resourceVersion": "9", "continue": "x"}, "items": items}).encode()
    meta, found = codec.decode_page(Node, body, "GET /")
    assert (meta.resource_version, meta.continue_) == ("9", "x")
    assert [
        (type(item), (item.object if isinstance(item, codec.Unreadable) else item).metadata.name) for item in found
    ] == [
        (Node, "a"),
        (codec.Unreadable, "b"),
        (Node, "c"),
    ]


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "²", "0x1", " 1"])
def test_a_version_that_is_no_number_is_an_error(text: str) -> None:
    with pytest.raises(KubeError, match="resourceVersion"):
        codec.version(text)


def test_versions_compare_as_numbers() -> None:
    assert codec.version("10") > codec.version("9")


def deep(depth: int) -> bytes:
    """A WorkerPool as API servers take it: one of its fields may hold anything."""
    odd = b'{"a":' * depth + b'"[{\\"' + b'"' + b"}" * depth
    return b'{"metadata":{"name":"n","namespace":"ns","resourceVersion":"5"},"spec":{"template":%s}}' % odd


@pytest.mark.parametrize("depth", [1_500, 10_000])
def test_a_deep_object_is_unreadable_and_hides_no_other(depth: int) -> None:
    event = codec.decode_event(WorkerPool, b'{"type":"ADDED","object":%s}' % deep(depth))
    assert isinstance(event, codec.Unreadable)
    assert codec.key(event.object.metadata) == "ns/n"
    gone = codec.decode_event(WorkerPool, b'{"type":"DELETED","object":%s}' % deep(depth))
    assert isinstance(gone, codec.Deleted)
    page = b'{"metadata":{"resourceVersion":"9"},"items":[%s,%s]}' % (
        deep(depth),
        json.dumps({"metadata": META}).encode(),
    )
    meta, items = codec.decode_page(WorkerPool, page, "GET")
    first, second = items
    assert meta.resource_version == "9"
    assert codec.key(second.metadata if isinstance(second, WorkerPool) else second.object.metadata) == "ns/n"
    assert codec.key(first.metadata if isinstance(first, WorkerPool) else first.object.metadata) == "ns/n"
    with pytest.raises(KubeError, match="cannot read"):
        codec.decode(WorkerPool, deep(depth), "GET")


def test_what_a_deep_object_costs_grows_with_its_bytes_and_not_faster() -> None:
    """As large as one of etcd's, and a quarter of that."""

    def seconds(size: int) -> float:
        part = b'{"b":[1,2],"c":"{[x"},'
        odd = b'{"a":' * 10_000 + b"[" + part * (size // len(part)) + b"1]" + b"}" * 10_000
        body = b'{"type":"ADDED","object":{"metadata":{"name":"n","resourceVersion":"5"},"spec":%s}}' % odd
        begun = time.process_time()
        assert isinstance(codec.decode_event(WorkerPool, body), codec.Unreadable)
        return time.process_time() - begun

    quarter, whole = (min(seconds(size) for _ in range(3)) for size in (400_000, 1_600_000))
    print(f"\n{whole:.3f} s for 1.6 MB")
    assert whole < 10 * quarter


def test_a_long_page_is_decoded_item_by_item() -> None:
    items = [{"metadata": {**META, "name": f"n{each}", "annotations": {"a": "x" * 4096}}} for each in range(300)]
    body = json.dumps({"metadata": {"resourceVersion": "9"}, "items": [*items, {"metadata": META, "spec": 7}]}).encode()
    assert len(body) > codec.LAZY_BYTES
    _, found = codec.decode_page(WorkerPool, body, "GET")
    assert not isinstance(found, list)
    *read, last = found
    assert len(read) == 300 and isinstance(last, codec.Unreadable)


@pytest.mark.parametrize("text", ["", "x", "-1", "1" * 21, "9" * 5_000, "٣"])
def test_what_is_no_resource_version_is_refused(text: str) -> None:
    with pytest.raises(KubeError, match="is not a numeric resourceVersion"):
        codec.version(text)


def fat(resources: dict[str, str], filler: int = codec.FAT_BYTES) -> bytes:
    """A watch event as an API server writes it: names in order, no spaces."""
    spec = {"containers": [{"name": "c", "resources": {"limits": resources, "requests": resources}}]}
    made = {"metadata": {"name": "p", "annotations": {"filler": "x" * filler}}, "spec": spec}
    return json.dumps({"type": "ADDED", "object": made}, separators=(",", ":"), sort_keys=False).encode()


def test_of_a_large_objects_resources_cpu_memory_and_the_first_by_name_are_read() -> None:
    many = {f"a.example.com/r{number:05}": str(number) for number in range(20_000)}
    event = codec.decode_event(Pod, fat({**many, "cpu": "2", "memory": "1Gi", "z.example.com/last": "1"}))
    assert isinstance(event, codec.Added) and event.object.spec.containers
    read = event.object.spec.containers[0].resources
    assert read is not None and read.requests == read.limits
    assert read.requests == dict(list(many.items())[: codec.RESOURCES]) | {"cpu": "2", "memory": "1Gi"}
    whole = amounts({**many, "cpu": "2", "memory": "1Gi"})
    assert amounts(read.requests) == whole, "the same as if all had been read"


@pytest.mark.parametrize(
    "odd",
    [
        {f"r{each}": "1" for each in range(codec.RESOURCES)},
        {f"r{each}": {"a": "1"} for each in range(100)},
        {f"r{each}": ["1", "2"] for each in range(100)},
        {f'r{each}\\"': '","x":"' for each in range(100)},
        {f"r{each}": each for each in range(100)},
        {f"r{each}": "}" if each in {0, 40} else "1" for each in range(100)},
        {f"r{each}": "}" if each == 40 else "1" for each in range(100)},
        {"}" if each == 40 else f"r{each}": "1" for each in range(100)},
        {f"r{each}": "," for each in range(100)},
        {"text": '"requests":{' + ",".join(f'"r{each}":"1"' for each in range(100)) + "}"},
    ],
    ids=[
        "few",
        "objects",
        "lists",
        "quotes",
        "numbers",
        "braces",
        "a brace",
        "a brace as a name",
        "commas",
        "a text",
    ],
)
def test_what_is_no_list_of_resources_is_left_as_it_is(odd: dict[str, Any]) -> None:
    text = fat(odd)
    assert msgspec.json.decode(codec.lean(text)) == msgspec.json.decode(text)
    assert codec.lean(fat({}, 0)) == fat({}, 0)
