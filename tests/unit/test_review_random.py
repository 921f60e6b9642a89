"""Random and mangled reviews through decode and mutate: always a valid answer, and every patch applies."""

import asyncio
import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ateplace import names
from ateplace.settings import Substrate, Webhook
from ateplace.webhook import wait_container
from ateplace.webhook.app import OUTCOMES, Mutate
from tests.unit.reviews import POOL_UID, UID, FixedPools, applied, patch, pod, review, rules

OURS = wait_container.container(Webhook(), Substrate())
HANDLERS = [
    Mutate(rules(priority_policy=policy, scheduler_name=scheduler), FixedPools(), ("usual",))
    for policy in ("IfUnset", "Always", "Never")
    for scheduler in ("ateplace-scheduler", "")
]
SPECIAL = [
    "",
    "pool",
    "absent",
    "usual",
    "~",
    "/",
    "a/b~c",
    names.INIT_CONTAINER,
    names.SCHEDULER,
    POOL_UID,
    "\u0000",
    "𝕏",
]
FIELDS = [
    *("metadata", "spec", "labels", "annotations", "initContainers", "schedulerName", "priorityClassName"),
    *("priority", "preemptionPolicy", "name", names.POOL_LABEL, names.POOL_UID_LABEL, "kubernetes.io/config.mirror"),
]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(SPECIAL),
    st.text(max_size=8),
)
keys = st.one_of(st.sampled_from(FIELDS), st.text(max_size=6))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)
containers = st.one_of(
    st.sampled_from(
        [OURS, {"name": names.INIT_CONTAINER, "image": "other"}, {**OURS, "image": "other"}, {"name": "a"}]
    ),
    st.dictionaries(keys, scalars, max_size=3),
)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """A pod that an API server could send: well formed, in any combination of what matters to us."""
    labels = draw(st.dictionaries(st.text(max_size=6) | st.sampled_from(SPECIAL), st.text(max_size=6), max_size=3))
    labels[names.POOL_LABEL] = "pool"
    if draw(st.booleans()):
        labels[names.POOL_UID_LABEL] = draw(st.sampled_from([POOL_UID, "forged"]))
    obj = pod(labels=labels)
    spec, metadata = obj["spec"], obj["metadata"]
    for key, choices in (
        ("priorityClassName", ["", None, "usual", "own", names.ATEOM_PRIORITY_CLASS]),
        ("schedulerName", ["", None, "default-scheduler", "batch", names.SCHEDULER]),
        ("priority", [0, 1000, None, 2**31]),
        ("preemptionPolicy", ["Never", "PreemptLowerPriority", None]),
        ("nodeName", ["n1"]),
    ):
        spec.pop(key, None)
        if draw(st.booleans()):
            spec[key] = draw(st.sampled_from(choices))
    if draw(st.booleans()):
        spec["initContainers"] = draw(st.none() | st.lists(containers, max_size=4))
    if draw(st.booleans()):
        metadata["annotations"] = draw(
            st.none() | st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=2)
        )
    return obj


def mangled(obj: dict[str, Any], odd: list[Any], chance: random.Random) -> bytes:
    """The bytes of a review in which some values, or some bytes, are not what they should be."""
    asked = json.loads(json.dumps(review(obj)))
    for _ in range(chance.randrange(4)):
        node = asked
        for _ in range(chance.randrange(6)):
            inner = [value for value in node.values() if isinstance(value, dict)]
            if not inner:
                break
            node = chance.choice(inner)
        key = chance.choice([*node, *FIELDS])
        if chance.random() < 0.7:
            node[key] = copy.deepcopy(chance.choice(odd))
        else:
            node.pop(key, None)
    body = bytearray(json.dumps(asked).encode())
    for _ in range(chance.choice((0, 0, 1, 2))):
        at = chance.randrange(len(body) + 1)
        body[at : at + chance.randrange(4)] = chance.randbytes(chance.randrange(4))
    return bytes(body)


def answer(handler: Mutate, body: bytes) -> tuple[int, str, bytes]:
    """Run the coroutine by hand: it never waits, as the pools are known."""
    coroutine = handler.answer(body)
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: tuple[int, str, bytes] = end.value
        return result
    raise AssertionError("it waited for something")


def check_well_formed(obj: dict[str, Any], which: int) -> None:
    """A pod that API servers may send is patched; the patch applies; what comes out needs no patch."""
    handler = HANDLERS[which]
    status, _, said = answer(handler, json.dumps(review(obj)).encode())
    assert status == 200
    once = applied(obj, json.loads(said))
    assert once["metadata"]["labels"] == {**obj["metadata"]["labels"], names.POOL_UID_LABEL: POOL_UID}
    found = once["spec"]["initContainers"]
    assert [each.get("name") for each in found].index(names.INIT_CONTAINER) == 0
    assert found[0] == OURS
    assert found[1:] == [each for each in obj["spec"].get("initContainers") or [] if each.get("name") != OURS["name"]]
    touched = {"initContainers", "schedulerName", "priorityClassName", "priority", "preemptionPolicy"}
    assert {k: v for k, v in once["spec"].items() if k not in touched} == {
        k: v for k, v in obj["spec"].items() if k not in touched
    }
    assert patch(json.loads(answer(handler, json.dumps(review(once)).encode())[2])) == []


def check_mangled(body: bytes, which: int) -> None:
    """Whatever is sent: a known outcome, no exception, and no patch that does not apply."""
    status, outcome, said = answer(HANDLERS[which], body)
    assert status in {200, 400}
    assert outcome in OUTCOMES
    assert outcome != "errored"
    if outcome == "patched":
        asked = json.loads(body)
        response = json.loads(said)
        assert response["response"]["uid"] == asked["request"]["uid"]
        response["response"]["uid"] = UID
        applied(asked["request"]["object"], response)
    elif status == 200 or said.startswith(b"{"):
        response = json.loads(said)["response"]
        assert response["uid"]
        assert "patch" not in response


def check(obj: dict[str, Any], odd: list[Any], seed: int, variants: int) -> None:
    """One pod as it is, and `variants` mangled reviews of it."""
    chance = random.Random(seed)  # noqa: S311 - reproducible
    check_well_formed(obj, seed % len(HANDLERS))
    for _ in range(variants):
        check_mangled(mangled(obj, odd, chance), chance.randrange(len(HANDLERS)))


def many(examples: int, *, derandomize: bool = True) -> Callable[[Any], Any]:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=derandomize,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


everything = given(pods(), st.lists(values, min_size=3, max_size=8), st.integers(0, 2**32))


@many(1_000)
@everything
def test_twenty_thousand_reviews_get_a_valid_answer(obj: dict[str, Any], odd: list[Any], seed: int) -> None:
    check(obj, odd, seed, 20)


@pytest.mark.slow
@many(10_000, derandomize=False)
@everything
def test_a_million_reviews_get_a_valid_answer(obj: dict[str, Any], odd: list[Any], seed: int) -> None:
    check(obj, odd, seed, 100)


def test_running_by_hand_is_running() -> None:
    body = json.dumps(review(pod())).encode()
    assert answer(HANDLERS[0], body) == asyncio.run(HANDLERS[0].answer(body))
