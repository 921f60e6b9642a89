"""The extender's port, without a cluster behind it."""

import json
from typing import cast

from ateplace import names
from ateplace.cluster.feed import View
from ateplace.extender.app import Application, Verbs
from ateplace.kube import Kube
from ateplace.process.http_server import Limits
from ateplace.settings import Settings
from tests.unit.sockets import answer, closed, request, serving

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
