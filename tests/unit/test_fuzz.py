"""Whatever comes in, whole objects through all that we do with them: no exception, no cost without bound, nothing left.

Objects are made from the API's own schemas and then mangled (`tests.unit.fuzzing` and `splicing`). They come as the
bytes of watch streams, through decoder, store, projection and ledger; what is then known is put before the reconciler's
plan, and before the extender by calls that are no better. (Admission reviews: `test_review_random`.)
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ateplace import errors, names
from ateplace.cluster.feed import View
from ateplace.cluster.resources import NAMES as MOST_RESOURCES
from ateplace.extender.app import Application, Verbs
from ateplace.kube import Kube, codec
from ateplace.kube.watch import Watch
from ateplace.reconciler.claims.plan import decide
from ateplace.reconciler.claims.unbound import Unbound
from ateplace.settings import Settings
from tests.unit.fuzzing import NODES, POOL_UID, Json, Maker
from tests.unit.splicing import Splicer

SETTINGS: Final = Settings()
EVENTS: Final = 16
CALLS: Final = 4
SLOW: Final = 2.0
"""Seconds that one object may take on a machine that does much else; usually it is a millisecond."""


class Obliging:
    """An API server that takes every write, has nothing else, and now and then does not answer."""

    cluster = SETTINGS.cluster

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._version = 1000

    def _answers(self) -> None:
        if self._maker.chance.random() < 0.2:
            raise errors.Unreachable("no answer")

    async def get(self, *_: Any, **__: Any) -> Any:
        self._answers()
        raise errors.NotFound("nothing is there")

    async def patch(self, _: str, body: Any, type_: type[Any], **__: Any) -> Any:
        self._answers()
        self._version += 1
        meta = {**body["metadata"], "resourceVersion": str(self._version)}
        return msgspec.convert({"metadata": meta}, type_)

    async def delete(self, *_: Any, **__: Any) -> None:
        self._answers()

    async def list(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        self._answers()
        there: tuple[Any, ...] = ()
        for each in there:
            yield each


class World:
    """A view and an extender that are fed and asked as their processes would be."""

    def __init__(self, maker: Maker) -> None:
        kube = cast("Kube", Obliging(maker))
        self.view = View(kube, SETTINGS)
        for watch in self.view.watches:
            watch._mirror.version = 1
            watch.synced.set()
            watch._proved = time.monotonic()
        view = self.view
        self.watches: dict[str, tuple[Watch[Any, Any], ...]] = {
            "Pod": (view.ateoms, view.placeholders, view.atelets),
            "Node": (view.nodes,),
            "DaemonSet": (view.daemonsets,),
            "LimitRange": (view.limit_ranges,),
            "WorkerPool": (view.pools,),
        }
        self.unbound = Unbound(SETTINGS.cluster.stale_after)
        view.follow_pods(self.unbound.changed)
        self.application = Application(Verbs(kube, view, SETTINGS))

    def settle(self) -> None:
        """What an ordinary cluster has: else most calls end before anything is decided."""
        meta = {"name": "web", "namespace": "ns", "resourceVersion": "1"}
        template = {"metadata": {"labels": {"app": "atelet"}}, "spec": {"nodeSelector": {names.NODE_LABEL: "true"}}}
        self.see(self.view.pools, {"metadata": {**meta, "uid": POOL_UID}, "spec": {"replicas": 3}})
        self.see(self.view.daemonsets, {"metadata": {**meta, "uid": "ds"}, "spec": {"template": template}})
        for name in filter(None, NODES):
            room = {"cpu": "8", "memory": "32Gi", "pods": "110"}
            about = {"name": name, "uid": name, "resourceVersion": "1"}
            self.see(self.view.nodes, {"metadata": about, "status": {"allocatable": room}})

    def see(self, watch: Watch[Any, Any], made: Json) -> None:
        self.feed(watch, json.dumps({"type": "ADDED", "object": made}).encode())

    def feed(self, watch: Watch[Any, Any], line: bytes) -> None:
        """One line of a stream; broken bytes are trouble with the stream, and nothing else."""
        try:
            changes = watch._mirror.feed(codec.decode_event(watch._type, line))
        except errors.KubeError:
            return
        for key, old, new in changes:
            watch._on_change(key, old, new)
        watch._mirror.version = min(watch._mirror.version, 2**62)

    async def ask(self, verb: str, body: bytes) -> int:
        status, answer = await self.application._answer(self.application._verbs[f"/{verb}"], verb, body)
        msgspec.json.decode(answer)
        return status


def call(maker: Maker, verb: str, pod: bytes) -> bytes:
    if verb == "preempt":
        victims = {
            name: {"Pods": [{"UID": maker.chance.choice(("Pod-ns-web-0", "Pod-ns-api-0"))}]} for name in NODES if name
        }
        return b'{"Pod":%b,"NodeNameToMetaVictims":%b}' % (pod, json.dumps(victims).encode())
    return b'{"Pod":%b,"NodeNames":%b}' % (pod, json.dumps([name for name in NODES if name]).encode())


async def run(maker: Maker) -> None:
    world = World(maker)
    chance = maker.chance
    if chance.random() < 0.7:
        world.settle()
    for version in range(2, 2 + EVENTS):
        kind = chance.choice(("Pod", "Pod", "Pod", "Node", "WorkerPool", "DaemonSet", "LimitRange"))
        happened = chance.choice((b"ADDED", b"MODIFIED", b"DELETED"))
        line = b'{"type":"%b","object":%b}' % (happened, maker.text(kind, version))
        if chance.random() < 0.1:
            line = maker.cut(line)
        began = time.monotonic()
        for watch in world.watches[kind]:
            world.feed(watch, line)
        assert time.monotonic() - began < SLOW
    ledger = world.view.ledger
    for name in ledger.nodes:
        decide(ledger, world.unbound, name, 1e6, SETTINGS)
    assert all(len(record.shape.counted) <= MOST_RESOURCES for record in ledger.pods.values())
    for _ in range(CALLS):
        ours = {"namespace": "ns", "labels": {names.POOL_LABEL: "web", names.POOL_UID_LABEL: POOL_UID}}
        pod = maker.text("Pod", 9, **({**ours, "annotations": {}} if chance.random() < 0.6 else {}))
        verb = chance.choice(("filter", "prioritize", "preempt"))
        body = call(maker, verb, pod)
        status = await world.ask(verb, maker.cut(body) if chance.random() < 0.1 else body)
        assert status in {200, 400, 503}, body
    for watch in world.view.watches:
        watch._mirror.begin()
        for key, old, new in watch._mirror.end(2**62):
            watch._on_change(key, old, new)
    ledger.picks.expire(time.monotonic() + 1e6)
    assert (ledger.pods, ledger.picks.attempts, ledger.pools, ledger.nodes) == ({}, {}, {}, {})
    assert (ledger.picks.unpicked.used, ledger.picks.unpicked.reserved) == ({}, {})


def check(kind: type[Maker], seeds: range) -> None:
    logging.disable(logging.CRITICAL)
    try:
        with asyncio.Runner() as runner:
            for seed in seeds:
                runner.run(run(kind(seed)))
    finally:
        logging.disable(logging.NOTSET)


@settings(
    max_examples=100,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.integers(0, 2**31))
def test_twenty_thousand_objects_and_calls_do_no_harm(seed: int) -> None:
    check(Maker, range(seed, seed + 10))


def test_parts_of_objects_put_into_others_do_no_harm() -> None:
    check(Splicer, range(100))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_a_million_objects_and_calls_do_no_harm(part: int) -> None:
    """Fifty thousand of them at a time, by seeds, so that one that does harm can be had again."""
    seeds = 1_000_000 // 20 // (EVENTS + CALLS)
    check(Splicer, range(part * seeds, (part + 1) * seeds))
