"""The extender's JSON, pinned by what kube-scheduler v1.36 sends and reads."""

import msgspec
import pytest

from ateplace.extender import protocol

CALL = b"""{"Pod":{"metadata":{"name":"p","namespace":"ns","uid":"u","creationTimestamp":null},
"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"1"}}}]},"status":{}},
"Nodes":null,"NodeNames":["a","b"]}"""
PREEMPTION = b"""{"Pod":{"metadata":{"uid":"u"},"spec":{"containers":null},"status":{}},"NodeNameToVictims":null,
"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"v"}],"NumPDBViolations":1}}}"""


def test_a_filter_call_is_read() -> None:
    args = protocol.extender_args(CALL)
    assert args.pod is not None
    names = args.names
    assert names is not None
    assert (args.pod.metadata.uid, names.all()) == ("u", ["a", "b"])


def test_a_preempt_call_is_read() -> None:
    victims = protocol.preemption_args(PREEMPTION).victims
    assert victims == {"a": protocol.MetaVictims([protocol.MetaPod("v")], 1)}


def test_a_preempt_call_may_have_candidates_without_victims() -> None:
    """From 1.38 on: an empty list, or the null that Go makes of one that was never filled."""
    empty = PREEMPTION.replace(b'[{"UID":"v"}]', b"[]").replace(b'"NumPDBViolations":1', b'"NumPDBViolations":0')
    assert empty != PREEMPTION
    assert protocol.preemption_args(empty).victims == {"a": protocol.MetaVictims([], 0)}
    assert protocol.preemption_args(empty.replace(b"[]", b"null")).victims == {"a": protocol.MetaVictims(None, 0)}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (protocol.FilterResult(node_names=["a"]), {"NodeNames": ["a"]}),
        (
            protocol.FilterResult(node_names=[], unresolvable={"a": "no"}),
            {"NodeNames": [], "FailedAndUnresolvableNodes": {"a": "no"}},
        ),
        (protocol.FilterResult(error="no"), {"Error": "no"}),
        ([protocol.HostPriority("a", 3)], [{"Host": "a", "Score": 3}]),
        (protocol.PreemptionResult({}), {"NodeNameToMetaVictims": {}}),
        (
            protocol.PreemptionResult({"a": protocol.MetaVictims([], 0)}),
            {"NodeNameToMetaVictims": {"a": {"Pods": [], "NumPDBViolations": 0}}},
        ),
        (
            protocol.PreemptionResult({"a": protocol.MetaVictims([protocol.MetaPod("v")], 1)}),
            {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "v"}], "NumPDBViolations": 1}}},
        ),
    ],
)
def test_answers_have_the_go_types_casing(answer: object, expected: object) -> None:
    assert msgspec.json.decode(protocol.encode(answer)) == expected


@pytest.mark.parametrize("odd", [b"\xff", b"\xc6x", b"[" * 100_000], ids=["no start", "cut short", "deep"])
@pytest.mark.parametrize("names", [b'"NodeNames":["a"]', b'"NodeNames": ["a"] '], ids=["as it writes", "otherwise"])
def test_a_call_that_is_no_text_or_too_deep_is_a_bad_call(odd: bytes, names: bytes) -> None:
    deep = odd.startswith(b"[")
    pod = b'{"spec":{"affinity":%b}}' % odd if deep else b'{"metadata":{"name":"%b"}}' % odd
    with pytest.raises(protocol.BadCall):
        protocol.extender_args(b'{"Pod":%b,%b}' % (pod, names))


def test_lower_case_keys_are_no_pod_and_no_names() -> None:
    args = protocol.extender_args(CALL.replace(b'"Pod"', b'"pod"').replace(b'"NodeNames"', b'"nodeNames"'))
    assert (args.pod, args.names) == (None, None)


@pytest.mark.parametrize("raw", [b'["a","b-1","c"]', b'[ "a" , "b-1", "c" ]', b'["\\u0061","b-1","c"]'])
def test_names_are_found_however_many_are_asked_for(raw: bytes) -> None:
    names = protocol.Names(raw)
    assert [name in names for name in ("a", "b", "b-1", "1", "c", "", "d", "a")] == [
        True, False, True, False, True, False, False, True
    ]  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"nonsense",
        b'{"NodeNames":"a"}',
        b'{"NodeNames":[1]}',
        b'{"Pod":{"metadata":{}}}',
        b"\xff\xfe{\x00}\x00",
        b'{"Pod":' + b"[" * 100_000,
        b'{"NodeNames":["\xff"]}',
    ],
)
def test_what_is_no_call_is_refused(body: bytes) -> None:
    with pytest.raises(protocol.BadCall):
        read(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"Pod":null,"Nodes":null,"NodeNames":["a","b"]}',
        b'{"NodeNames":["a","b"],"Pod":null}',
        b'{"Nodes":null, "NodeNames" : ["a", "b"] }',
        b'{"Pod":{"metadata":{"name":"x","odd":{"k":1,"NodeNames":["z"]}},"spec":{}},"NodeNames":["a","b"]}',
        b'{"Pod":{"metadata":{"name":",\\"NodeNames\\":["},"spec":{}},"NodeNames":["a","b"]}',
    ],
)
def test_names_are_read_wherever_and_however_they_are_written(body: bytes) -> None:
    assert read(body) == ["a", "b"]


def read(body: bytes) -> list[str]:
    names = protocol.extender_args(body).names
    assert names is not None
    return names.all()
