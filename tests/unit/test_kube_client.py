"""The API client against a server that answers as the test says, or does not."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ateplace import errors
from ateplace.kube import Kube, client, failures
from ateplace.kube.objects import Metadata, Node
from tests.unit.kube_server import Answer, Handler, Request, Server, connected, kubeconfig, serving, until

NODE = {"metadata": {"name": "n1", "uid": "u1", "resourceVersion": "7"}, "spec": {"podCIDR": "10.0.0.0/24"}}
PATH = "/api/v1/nodes/n1"

Use = Callable[[Kube, Server], Awaitable[Any]]


def talk(directory: Path, handler: Handler, use: Use, **options: float) -> Any:
    """Run `use` with a client that is connected to a server with this handler."""

    async def main() -> Any:
        async with (
            serving(handler) as server,
            connected(kubeconfig(directory, server.url, token="t"), **options) as kube,
        ):
            return await use(kube, server)

    return asyncio.run(main())


class Script:
    """Answers one after the other; the last one again and again."""

    def __init__(self, *answers: Callable[[Answer], Awaitable[None]]) -> None:
        self._answers = list(answers)

    async def __call__(self, request: Request, answer: Answer) -> None:
        step = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        await step(answer)


async def ok(answer: Answer) -> None:
    await answer.reply(200, NODE)


async def broken(answer: Answer) -> None:
    await answer.refuse(500, "InternalError", "etcdserver: leader changed")


async def reset(answer: Answer) -> None:
    answer.reset()


async def silent(answer: Answer) -> None:
    await asyncio.Event().wait()


def busy(seconds: str) -> Callable[[Answer], Awaitable[None]]:
    async def answer_busy(answer: Answer) -> None:
        await answer.refuse(429, "TooManyRequests", "slow down", Retry_After=seconds)

    return answer_busy


async def get(kube: Kube, _: Server) -> Node:
    return await kube.get(PATH, Node)


WRITES: dict[str, Callable[[Kube], Awaitable[object]]] = {
    "PATCH": lambda kube: kube.patch(PATH, {"metadata": {}}, Node),
    "POST": lambda kube: kube.create("/api/v1/nodes", NODE, Node),
    "PUT": lambda kube: kube.replace(PATH, NODE, Node),
    "DELETE": lambda kube: kube.delete(PATH),
}
every_write = pytest.mark.parametrize("method", WRITES)


def test_an_object_is_read_into_the_fields_that_its_struct_has(tmp_path: Path) -> None:
    async def use(kube: Kube, server: Server) -> tuple[Node, Request]:
        return await kube.get(PATH, Node, query={"a": "x=y,z in (1)"}), server.requests[0]

    node, request = talk(tmp_path, Script(ok), use)

    assert node.metadata == Metadata(name="n1", uid="u1", resource_version="7")
    assert (request.method, request.path, request.query) == ("GET", PATH, {"a": "x=y,z in (1)"})
    assert request.headers["authorization"] == "Bearer t"
    assert request.headers["user-agent"] == "ateplace-test"


def test_object_as_a_type_means_plain_data(tmp_path: Path) -> None:
    assert talk(tmp_path, Script(ok), lambda kube, _: kube.get(PATH, object)) == NODE


def test_writes_send_the_content_type_and_body_of_their_verb(tmp_path: Path) -> None:
    async def use(kube: Kube, server: Server) -> list[Request]:
        await kube.patch(PATH, {"a": 1}, Node)
        await kube.patch(PATH, [{"op": "test"}], Node, kind="json")
        await kube.patch(PATH, {"a": 1}, Node, kind="strategic", query={"fieldManager": "x"})
        await kube.create("/api/v1/nodes", {"a": 1}, Node)
        await kube.replace(PATH, {"a": 1}, Node)
        await kube.delete(PATH, uid="u", resource_version="7", grace=0, propagation="Background")
        return server.requests

    requests = talk(tmp_path, Script(ok), use)

    options = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "gracePeriodSeconds": 0,
        "propagationPolicy": "Background",
    }
    assert [(r.method, r.path, r.headers["content-type"], r.json, r.query) for r in requests] == [
        ("PATCH", PATH, "application/merge-patch+json", {"a": 1}, {}),
        ("PATCH", PATH, "application/json-patch+json", [{"op": "test"}], {}),
        ("PATCH", PATH, "application/strategic-merge-patch+json", {"a": 1}, {"fieldManager": "x"}),
        ("POST", "/api/v1/nodes", "application/json", {"a": 1}, {}),
        ("PUT", PATH, "application/json", {"a": 1}, {}),
        ("DELETE", PATH, "application/json", options, {}),
    ]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadRequest),
        (401, errors.Unauthorized),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (405, errors.Refused),
        (409, errors.Conflict),
        (410, errors.Gone),
        (413, errors.Invalid),
        (415, errors.Invalid),
        (422, errors.Invalid),
        (500, errors.ServerError),
        (503, errors.ServerError),
        (302, errors.KubeError),
    ],
)
def test_a_status_becomes_the_error_of_its_kind(tmp_path: Path, status: int, kind: type[errors.KubeError]) -> None:
    async def refuse(answer: Answer) -> None:
        await answer.refuse(status, "SomeReason", "because\nof this")

    with pytest.raises(errors.KubeError) as caught:
        talk(tmp_path, Script(refuse), lambda kube, _: kube.patch(PATH, {}, Node))

    assert type(caught.value) is kind
    assert (str(caught.value), caught.value.status, caught.value.reason) == (
        f"PATCH {PATH}: {status} because of this",
        status,
        "SomeReason",
    )


def test_a_patch_with_another_objects_uid_is_a_conflict(tmp_path: Path) -> None:
    async def immutable(answer: Answer) -> None:
        causes = [{"reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid"}]
        await answer.reply(422, {"kind": "Status", "reason": "Invalid", "details": {"causes": causes}})

    with pytest.raises(errors.Conflict):
        talk(tmp_path, Script(immutable), lambda kube, _: kube.patch(PATH, {}, Node))


@pytest.mark.parametrize(
    "body", [b"", b"<html>Bad Gateway</html>", b"\xff\x00\xfe", b"[]", b'{"message": 7}', b'{"message":"\xff"}']
)
def test_an_error_that_is_no_status_object_is_still_mapped(tmp_path: Path, body: bytes) -> None:
    async def proxy(answer: Answer) -> None:
        await answer.reply(404, body)

    with pytest.raises(errors.NotFound) as caught:
        talk(tmp_path, Script(proxy), get)
    assert str(caught.value).isprintable()


def test_an_error_body_without_an_end_is_read_up_to_its_limit(tmp_path: Path) -> None:
    async def endless(answer: Answer) -> None:
        await answer.raw(b"HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await answer.chunk(b"x" * 4096)

    started = time.monotonic()
    with pytest.raises(errors.Forbidden) as caught:
        talk(tmp_path, Script(endless), get)
    assert time.monotonic() - started < 10
    assert len(str(caught.value)) < failures.MESSAGE_CHARACTERS + 100


def test_a_read_that_its_deadline_ends_says_what_went_wrong_before(tmp_path: Path) -> None:
    with pytest.raises(errors.ServerError, match="leader changed"):
        talk(tmp_path, Script(broken, silent), get, request_timeout=1.0)


def test_a_read_is_tried_again_after_failures_of_the_server_and_the_network(tmp_path: Path) -> None:
    async def use(kube: Kube, server: Server) -> tuple[str, int, int]:
        return (await get(kube, server)).metadata.name, len(server.requests), kube.retries

    assert talk(tmp_path, Script(broken, reset, broken, ok), use) == ("n1", 4, 3)


def test_a_read_is_not_tried_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ATTEMPTS", 3)
    seen: list[Request] = []

    async def use(kube: Kube, server: Server) -> None:
        try:
            await get(kube, server)
        finally:
            seen.extend(server.requests)

    with pytest.raises(errors.ServerError):
        talk(tmp_path, Script(broken), use)
    assert len(seen) == 3


@every_write
@pytest.mark.parametrize(("fault", "kind"), [(broken, errors.ServerError), (reset, errors.Unreachable)])
def test_a_write_with_an_unknown_outcome_is_sent_once(
    tmp_path: Path, method: str, fault: Callable[[Answer], Awaitable[None]], kind: type[errors.KubeError]
) -> None:
    async def use(kube: Kube, server: Server) -> list[str]:
        await get(kube, server)  # so that the write goes over a connection that was kept
        with pytest.raises(kind):
            await WRITES[method](kube)
        assert server.connections == 1
        return [request.method for request in server.requests]

    assert talk(tmp_path, Script(ok, fault), use) == ["GET", method]


@every_write
def test_a_write_that_was_refused_for_load_is_sent_again_after_the_time_asked_for(tmp_path: Path, method: str) -> None:
    async def use(kube: Kube, server: Server) -> tuple[int, float]:
        started = time.monotonic()
        await WRITES[method](kube)
        return len(server.requests), time.monotonic() - started

    sent, seconds = talk(tmp_path, Script(busy("1"), ok), use)

    assert sent == 2
    assert 1 <= seconds < 10


def test_a_load_refusal_that_outlasts_the_deadline_is_reported_at_once(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(errors.TooManyRequests) as caught:
        talk(tmp_path, Script(busy("30")), lambda kube, _: kube.patch(PATH, {}, Node, deadline=20.0))
    assert caught.value.retry_after == 30
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(("asked", "seconds"), [("", 1.0), ("0", 1.0), ("soon", 1.0), ("-5", 1.0), ("86400", 60.0)])
def test_odd_wishes_for_a_pause_are_bounded(asked: str, seconds: float) -> None:
    error = failures.from_answer("GET /", 429, b"{}", asked)
    assert isinstance(error, errors.TooManyRequests) and error.retry_after == seconds


@pytest.mark.parametrize("use", [get, lambda kube, _: kube.patch(PATH, {}, Node)])
def test_a_call_without_an_answer_ends_at_its_deadline(tmp_path: Path, use: Use) -> None:
    started = time.monotonic()
    with pytest.raises(errors.Unreachable, match="no answer in time"):
        talk(tmp_path, Script(silent), use, request_timeout=0.5)
    assert time.monotonic() - started < 10


def test_a_write_to_a_server_that_is_not_listening_yet_is_sent_when_it_is(tmp_path: Path) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]

    async def main() -> list[str]:
        async with connected(kubeconfig(tmp_path, f"http://127.0.0.1:{port}", token="t")) as kube:
            write = asyncio.create_task(kube.patch(PATH, {}, Node))
            await until(lambda: kube.retries > 0)
            async with serving(Script(ok), port) as server:
                await write
                return [request.method for request in server.requests]

    assert asyncio.run(main()) == ["PATCH"]


def test_calls_share_kept_connections(tmp_path: Path) -> None:
    async def use(kube: Kube, server: Server) -> int:
        for _ in range(10):
            await get(kube, server)
            with pytest.raises(errors.NotFound):
                await kube.get("/absent", Node)
        return server.connections

    async def handler(request: Request, answer: Answer) -> None:
        await (answer.refuse(404) if request.path == "/absent" else answer.reply(200, NODE))

    assert talk(tmp_path, handler, use) == 1


def test_an_answer_of_another_shape_is_an_error_that_says_where(tmp_path: Path) -> None:
    async def strange(answer: Answer) -> None:
        await answer.reply(200, {"metadata": {"name": 7}})

    with pytest.raises(errors.KubeError, match=rf"GET {PATH}: cannot read the answer: .*metadata.name") as caught:
        talk(tmp_path, Script(strange), get)
    assert isinstance(caught.value.__cause__, msgspec.ValidationError)


def test_a_closed_client_says_so(tmp_path: Path) -> None:
    async def use(kube: Kube, _: Server) -> None:
        await kube.close()
        await kube.patch(PATH, {}, Node)

    with pytest.raises(errors.Unreachable, match="closed"):
        talk(tmp_path, Script(ok), use)


class Pages:
    """A list of `count` nodes in pages of whatever size is asked for."""

    def __init__(self, count: int, filler: int = 0) -> None:
        self._items: list[Any] = [{"metadata": {"name": f"n{i}"}, "filler": "x" * filler} for i in range(count)]
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, request: Request, answer: Answer) -> None:
        limit, start = int(request.query["limit"]), int(request.query.get("continue", 0))
        self.asked.append((request.query["limit"], request.query.get("continue", "")))
        rest = len(self._items) > start + limit
        meta = {"resourceVersion": "9", "continue": str(start + limit) if rest else ""}
        await answer.reply(200, {"metadata": meta, "items": self._items[start : start + limit]})


async def names(kube: Kube, _: Server) -> list[str]:
    return [node.metadata.name async for node in kube.list("/api/v1/nodes", Node)]


def test_a_list_comes_in_pages(tmp_path: Path) -> None:
    pages = Pages(1001)
    assert talk(tmp_path, pages, names) == [f"n{i}" for i in range(1001)]
    assert pages.asked == [("500", ""), ("500", "500"), ("500", "1000")]


def test_a_page_that_is_too_large_is_asked_for_in_smaller_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAGE_BYTES", 100_000)
    pages = Pages(300, filler=1000)
    assert talk(tmp_path, pages, names) == [f"n{i}" for i in range(300)]
    assert [limit for limit, _ in pages.asked][:5] == ["500", "250", "125", "62", "62"]


def test_an_object_that_is_larger_than_a_page_does_not_hide_the_others(tmp_path: Path) -> None:
    """One tenant's: in JSON, what etcd holds in 1.5 MiB may take 9."""
    pages = Pages(20)
    pages._items[0]["filler"] = "x" * 9 * 1024 * 1024
    assert talk(tmp_path, pages, names) == [f"n{i}" for i in range(20)]
    assert pages.asked[-6:] == [("1", ""), ("1", "1"), ("2", "2"), ("4", "4"), ("8", "8"), ("16", "16")]


def test_a_list_of_nothing_is_empty(tmp_path: Path) -> None:
    async def nothing(answer: Answer) -> None:
        await answer.reply(200, {"metadata": {"resourceVersion": "9"}, "items": None})

    assert talk(tmp_path, Script(nothing), names) == []


def test_a_list_that_cannot_be_continued_says_so(tmp_path: Path) -> None:
    async def handler(request: Request, answer: Answer) -> None:
        if "continue" in request.query:
            await answer.refuse(410, "Expired", "The provided continue parameter is too old")
        else:
            await answer.reply(200, {"metadata": {"resourceVersion": "9", "continue": "c"}, "items": []})

    with pytest.raises(errors.Gone):
        talk(tmp_path, handler, names)


def test_a_list_with_an_item_that_cannot_be_read_is_not_taken_for_complete(tmp_path: Path) -> None:
    async def handler(request: Request, answer: Answer) -> None:
        items = [{"metadata": {"name": "good"}}, {"metadata": {"name": "bad"}, "spec": 7}]
        await answer.reply(200, {"metadata": {"resourceVersion": "9"}, "items": items})

    with pytest.raises(errors.KubeError, match="cannot read bad"):
        talk(tmp_path, handler, names)
