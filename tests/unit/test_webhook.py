"""The webhook over real TLS: every bad input, and what does not concern us."""

import asyncio
import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ateplace import errors, names
from ateplace.process import metrics
from ateplace.process.http_server import Limits
from ateplace.webhook.app import application
from ateplace.webhook.pools import PATIENCE
from tests.unit.reviews import POOL_UID, UID, FixedPools, applied, patch, pod, review, rules
from tests.unit.sockets import Answer, Running, Tls, answer, closed, request, serving

ROOT = Path(__file__).parents[2]
TLS = Tls()
LIMITS = Limits(body_bytes=4 * 1024 * 1024)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    pools = FixedPools({"agents/pool": POOL_UID}, later={"agents/new": "new-uid"})
    with serving(application(rules(), pools, ()), LIMITS, TLS) as server:
        yield server


def post(running: Running, body: bytes, *, path: str = "/mutate", headers: str = "") -> Answer:
    with running.connect() as connection:
        connection.sendall(request(path, body, headers=headers))
        return answer(connection)


def ask(running: Running, obj: Any, **fields: Any) -> Answer:
    return post(running, json.dumps(review(obj, **fields)).encode())


def count(outcome: str) -> float:
    return metrics.REGISTRY.get_sample_value("ateplace_webhook_reviews_total", {"outcome": outcome}) or 0.0


def with_value(marker: str, value: bytes) -> bytes:
    """A good review's bytes with the JSON string `marker` replaced by `value`."""
    body = json.dumps(review(pod(labels={names.POOL_LABEL: "pool", "odd": marker}))).encode()
    return body.replace(json.dumps(marker).encode(), value)


def test_a_pod_is_patched(running: Running) -> None:
    found = ask(running, pod())
    assert found.status == 200
    assert found.headers["content-type"] == "application/json"
    assert applied(pod(), found.json)["metadata"]["labels"][names.POOL_UID_LABEL] == POOL_UID


def test_a_pool_that_the_watch_does_not_have_yet_is_asked_for(running: Running) -> None:
    fresh = pod(labels={names.POOL_LABEL: "new"})
    assert applied(fresh, ask(running, fresh).json)["metadata"]["labels"][names.POOL_UID_LABEL] == "new-uid"


@pytest.mark.parametrize(("pool", "namespace"), [("absent", "agents"), ("pool", "elsewhere"), ("../x", "agents")])
def test_a_pod_without_its_pool_is_denied_saying_which(running: Running, pool: str, namespace: str) -> None:
    before = count("denied")
    found = ask(running, pod(labels={names.POOL_LABEL: pool}), namespace=namespace)
    assert (found.status, patch(found.json)) == (200, [])
    assert found.json["response"]["allowed"] is False
    assert found.json["response"]["status"] == {
        "message": f'there is no WorkerPool "{pool}" in namespace "{namespace}", '
        "which the pod's label ate.dev/worker-pool names",
        "code": 403,
    }
    assert count("denied") == before + 1


DEPLOYMENT = {"group": "apps", "version": "v1", "kind": "Deployment"}


@pytest.mark.parametrize(
    ("obj", "fields"),
    [
        (pod(), {"operation": "UPDATE"}),
        (None, {"operation": "DELETE"}),
        (None, {"operation": "CONNECT", "subResource": "exec"}),
        (pod(), {"subResource": "ephemeralcontainers"}),
        ({"spec": "not a pod's"}, {"kind": DEPLOYMENT}),
        (pod(), {"kind": {"group": "", "version": "v2", "kind": "Pod"}}),
        (pod(labels={}), {}),
        (pod(labels={names.POOL_LABEL: ""}), {}),
        (pod(annotations={"kubernetes.io/config.mirror": "abc"}), {}),
        ({"metadata": {}, "spec": {}}, {}),
    ],
)
def test_what_does_not_concern_us_is_allowed_untouched_and_counted(
    running: Running, obj: Any, fields: dict[str, Any]
) -> None:
    before = count("skipped")
    found = ask(running, obj, **fields)
    assert found.json["response"] == {"uid": UID, "allowed": True}
    assert count("skipped") == before + 1


NOT_REVIEWS = {
    "empty": b"",
    "not json": b"hello",
    "null": b"null",
    "a list": b"[]",
    "an empty object": b"{}",
    "no request": json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}).encode(),
    "request null": json.dumps({**review(None), "request": None}).encode(),
    "no uid": json.dumps(review(pod(), uid=None)).encode(),
    "empty uid": json.dumps(review(pod(), uid="")).encode(),
    "long uid": json.dumps(review(pod(), uid="x" * 10_000)).encode(),
    "v1beta1": json.dumps({**review(pod()), "apiVersion": "admission.k8s.io/v1beta1"}).encode(),
    "another kind": json.dumps({**review(pod()), "kind": "ConversionReview"}).encode(),
    "another kind, not a pod": json.dumps({**review(None), "kind": "TokenReview"}).encode(),
    "depth 100k": with_value("M", b"[" * 100_000 + b"]" * 100_000),
    "depth 100k of objects": with_value("M", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "depth 100k, unclosed": b"[" * 100_000,
    "NaN": with_value("M", b"NaN"),
    "Infinity": with_value("M", b"-Infinity"),
    "lone surrogate": with_value("M", b'"\\ud800"'),
    "invalid UTF-8": with_value("M", b'"\xff\xfe"'),
    "encoded surrogate": with_value("M", b'"\xed\xa0\x80"'),
    "NUL": with_value("M", b'"a\x00b"'),
    "NUL at the end": json.dumps(review(pod())).encode() + b"\x00",
    "UTF-16": json.dumps(review(pod())).encode("utf-16"),
    "BOM": b"\xef\xbb\xbf" + json.dumps(review(pod())).encode(),
    "trailing text": json.dumps(review(pod())).encode() + b"{}",
    "cut off": json.dumps(review(pod())).encode()[:-1],
    "single quotes": str(review(pod())).encode(),
}


@pytest.mark.parametrize("body", NOT_REVIEWS.values(), ids=NOT_REVIEWS)
def test_what_is_not_a_review_is_answered_400(running: Running, body: bytes) -> None:
    before = count("malformed")
    found = post(running, body)
    assert found.status == 400
    assert found.headers["content-type"].startswith("text/plain")
    assert 0 < len(found.body) < 300
    assert count("malformed") == before + 1


@pytest.mark.parametrize(
    ("obj", "fields"),
    [
        (None, {}),
        ("a string", {}),
        ([], {}),
        ({}, {}),
        ({"metadata": None, "spec": {}}, {}),
        ({"metadata": {"labels": []}, "spec": {}}, {}),
        ({"metadata": {"labels": {names.POOL_LABEL: 7}}, "spec": {}}, {}),
        (pod(init=["text"]), {}),  # type: ignore[list-item]
        (pod(initContainers={}), {}),
        (pod(schedulerName=5), {}),
        (pod(), {"kind": "Pod"}),
        (pod(), {"operation": 5}),
    ],
)
def test_an_object_that_is_not_a_pod_is_400_in_a_review_with_the_uid(
    running: Running, obj: Any, fields: dict[str, Any]
) -> None:
    found = ask(running, obj, **fields)
    assert found.status == 400
    assert found.json["response"]["uid"] == UID
    assert found.json["response"]["allowed"] is False
    assert found.json["response"]["status"]["code"] == 400


@pytest.mark.parametrize("number", [b"9" * 5000, b"1180591620717411303424", b"-0.0e-9999", b"1e99999"])
@pytest.mark.parametrize("field", ["priority", "terminationGracePeriodSeconds"])
def test_huge_numbers_are_left_alone(running: Running, number: bytes, field: str) -> None:
    body = json.dumps(review(pod(**dict[str, Any]({field: "M"})))).encode().replace(b'"M"', number)
    found = post(running, body)
    assert found.status == 200
    assert patch(found.json)


CROWDS = {
    "labels": b"{%s}" % b",".join(b'"%d":""' % number for number in range(300_000)),
    "containers": b"[%s]" % b",".join([b"{}"] * 1_300_000),
    "initContainers": b"[%s]" % b",".join([b"1"] * 2_000_000),
    "tolerations": b"[%s]" % b",".join([b"[]"] * 1_300_000),
}


@pytest.mark.parametrize("field", CROWDS)
def test_a_crowd_of_small_things_does_not_hold_up_the_others(running: Running, field: str) -> None:
    obj = pod()
    (obj["metadata"] if field == "labels" else obj["spec"])[field] = "M"
    body = json.dumps(review(obj)).encode().replace(b'"M"', CROWDS[field])
    assert len(body) > 3_000_000
    found = post(running, body)
    if field == "tolerations":  # skipped, not decoded
        assert patch(found.json)
    else:
        assert found.status == 400
        assert found.json["response"]["uid"] == UID
        assert found.json["response"]["status"]["message"] == "the pod has too many labels or containers"


def test_a_large_pod_with_many_containers_is_taken(running: Running) -> None:
    obj = pod(containers=[{"name": f"c{n}", "image": "i", "args": ["x" * 100]} for n in range(3000)])
    assert len(json.dumps(obj)) > 300_000
    assert patch(ask(running, obj).json)


def test_duplicate_keys_are_decided_once(running: Running) -> None:
    body = with_value("M", b'"a"').replace(
        b'"odd": "a"', b'"%s": "absent", "%s": "pool"' % ((names.POOL_LABEL.encode(),) * 2)
    )
    assert body.count(names.POOL_LABEL.encode()) == 3
    assert patch(post(running, body).json)


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml", "", "application/jsonp"])
def test_another_content_type_is_answered_415(running: Running, content_type: str) -> None:
    body = json.dumps(review(pod())).encode()
    assert post(running, body, headers=f"content-type: {content_type}\r\n").status == 415


def test_a_content_type_with_parameters_is_taken(running: Running) -> None:
    body = json.dumps(review(pod())).encode()
    assert post(running, body, headers="content-type: Application/JSON; charset=utf-8\r\n").status == 200


@pytest.mark.parametrize("size", [8 * 1024 * 1024, 7_000_000])
def test_a_large_body_is_answered_413(running: Running, size: int) -> None:
    body = json.dumps(review(pod(annotations={"large": "x" * size}))).encode()
    with running.connect() as connection:
        try:
            connection.sendall(request("/mutate", body))
        except OSError:
            pytest.fail("the server closed before it answered")
        assert answer(connection).status == 413
        assert closed(connection)


def test_endless_chunks_are_answered_413(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(request("/mutate", headers="transfer-encoding: chunked\r\n"))
        for _ in range(80):
            connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        assert answer(connection).status == 413
        assert closed(connection)


def test_a_body_just_below_the_limit_is_taken(running: Running) -> None:
    large = pod(annotations={"large": "x" * (4 * 1024 * 1024 - 5000)})
    assert patch(ask(running, large).json)


@pytest.mark.parametrize("path", ["/", "/docs", "/redoc", "/openapi.json", "/mutate/", "/metrics", "/healthz"])
def test_nothing_else_is_there(running: Running, path: str) -> None:
    with running.connect() as connection:
        connection.sendall(request(path, method="GET"))
        assert answer(connection).status in {404, 307}


def test_other_methods_are_answered_405(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(request("/mutate", method="GET"))
        assert answer(connection).status == 405


def test_plain_http_gets_nothing(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.server.port), timeout=10) as connection:
        connection.sendall(request("/mutate", b"{}"))
        assert closed(connection)


class BrokenPools:
    """Fails in the ways that a lookup can."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def known(self, namespace: str, name: str) -> str | None:
        return None

    async def find(self, namespace: str, name: str, client: str = "") -> str | None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code"), [(errors.Unreachable("secret detail"), 503), (RuntimeError("secret detail"), 500)]
)
def test_a_failure_inside_is_a_review_with_the_uid_and_without_details(
    error: Exception, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(application(rules(), BrokenPools(error), ()), LIMITS, TLS) as running:
        found = ask(running, pod(annotations={"password": "hunter2"}))
    assert found.status == 200
    response = found.json["response"]
    assert (response["uid"], response["allowed"], response["status"]["code"]) == (UID, False, code)
    assert "secret detail" not in found.body.decode()
    assert "hunter2" not in caplog.text


def test_the_patch_is_base64_of_json(running: Running) -> None:
    response = ask(running, pod()).json["response"]
    ops = json.loads(base64.b64decode(response["patch"]))
    assert [(op["op"], op["path"]) for op in ops] == [
        ("add", "/metadata/labels/ate.dev~1worker-pool-uid"),
        ("add", "/spec/initContainers"),
        ("add", "/spec/priorityClassName"),
        ("remove", "/spec/priority"),
        ("remove", "/spec/preemptionPolicy"),
        ("add", "/spec/schedulerName"),
    ]


def test_many_connections_are_answered_at_once(running: Running) -> None:
    body = request("/mutate", json.dumps(review(pod())).encode())

    async def client() -> int:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", running.server.port, ssl=TLS.client, server_hostname="localhost"
        )
        good = 0
        for _ in range(10):
            writer.write(body)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            good += b'"allowed":true' in await reader.readexactly(length)
        writer.close()
        await writer.wait_closed()
        return good

    async def clients() -> list[int]:
        return await asyncio.gather(*(client() for _ in range(40)))

    assert asyncio.run(clients()) == [10] * 40


def test_the_registration_is_what_our_answers_are_made_for() -> None:
    """Each is a promise elsewhere: the time of a direct look at a pool is less than the API server's, a second
    invocation would be for nothing, a pod asked for in another version of its API is still one, and a dry run writes
    nothing."""
    (configuration,) = yaml.safe_load_all((ROOT / "deploy" / "base" / "webhook-configuration.yaml").read_text())
    (hook,) = configuration["webhooks"]
    pinned = {
        "timeoutSeconds": 5,
        "reinvocationPolicy": "Never",
        "matchPolicy": "Equivalent",
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    assert {key: hook[key] for key in pinned} == pinned
    assert hook["timeoutSeconds"] > PATIENCE
