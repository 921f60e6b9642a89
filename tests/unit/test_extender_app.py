"""The extender's port, without a cluster behind it."""

import asyncio
import json
import math
from pathlib import Path
from typing import cast

import pytest

from ateplace import names
from ateplace.cluster.feed import View
from ateplace.extender.app import Application, Verbs, answering
from ateplace.kube import Kube
from ateplace.process.http_server import Limits, Server
from ateplace.process.runtime import Runtime
from ateplace.settings import Settings
from tests.unit.kube_server import until
from tests.unit.sockets import answer, closed, request, serving
from tests.unit.verbs_rig import Api, Rig, ask, held_up

LABELS = {names.POOL_LABEL: "web", names.POOL_UID_LABEL: "A"}
POD = {"metadata": {"name": "p", "namespace": "ns", "uid": "p", "labels": LABELS}, "spec": {"containers": []}}
CALL = json.dumps({"Pod": POD, "Nodes": None, "NodeNames": ["n1"]}).encode()


def test_a_replica_that_cannot_decide_says_so_and_lets_its_caller_find_another() -> None:
    """The scheduler calls over one connection, and keeps it: it would never reach the replica that can."""
    view = View(cast("Kube", None), Settings())
    verbs = Verbs(cast("Kube", None), view, Settings())
    with serving(Application(verbs), Limits(body_bytes=10_000)) as running:
        with running.connect() as connection:
            connection.sendall(request("/filter", CALL))
            said = answer(connection)
            assert json.loads(said.body) == {"Error": "ateplace: the watch of workerpools has not synced yet"}
            assert closed(connection)
        for watch in view.watches:
            watch.synced.set()
            watch.staleness = lambda: 0.0  # type: ignore[method-assign]
        with running.connect() as connection:
            connection.sendall(request("/prioritize", CALL))
            assert json.loads(answer(connection).body) == [{"Host": "n1", "Score": 0}]
            connection.sendall(request("/prioritize", CALL))
            assert answer(connection).status == 200, "this one is kept"


def test_a_role_that_ends_in_an_error_waits_for_the_write_under_way(tmp_path: Path) -> None:
    async def use(rig: Rig) -> None:
        gate = asyncio.Event()
        rig.api.fates.append(held_up(gate))
        call = asyncio.create_task(rig.filter("n1"))
        await until(lambda: rig.api.seen)
        call.cancel()
        server = Server(Application(rig.verbs), host="127.0.0.1", port=0, tls=None, limits=Limits(body_bytes=10_000))
        asyncio.get_running_loop().call_later(0.05, gate.set)
        with pytest.raises(RuntimeError, match="on purpose"):
            async with answering(Runtime(Settings(), cast("Kube", None)), server, rig.verbs):
                raise RuntimeError("broken on purpose")
        assert rig.ledger.nodes["n1"].pools["A"].sent > -math.inf

    ask(tmp_path, Api(), use, "n1")
