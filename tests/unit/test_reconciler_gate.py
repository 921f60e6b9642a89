"""The atelet DaemonSet's gate while others write to it, and after a run that did not end."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ateplace import names
from ateplace.cli.migrate import Migration
from ateplace.cli.uninstall import Removal
from ateplace.cluster.atelet_gate import HASH, STRATEGY_NOTE, Gate
from ateplace.errors import AteplaceError
from ateplace.kube import Kube
from ateplace.settings import Settings
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving

ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
NOTE = json.dumps({"strategy": ROLLING, "hash": "h1"})


class Daemon:
    """A cluster with nothing but the atelet DaemonSet and its `pods` (by name, the hashes of their templates).

    `conflicts` writes of its template are refused, `away` means that its pods cannot be listed, as in the middle of an
    outage, and `stuck` names a pod that cannot be written. Its controller sees a new template when it has been read
    `lag` times."""

    def __init__(self, *, gated: bool, strategy: str = "RollingUpdate", note: str = "", conflicts: int = 0) -> None:
        self.gated, self.strategy, self.note, self.conflicts = gated, strategy, note, conflicts
        self.away, self.stuck, self.lag = False, "", 0
        self.generation = self.observed = 1
        self.pods: dict[str, str] = {}

    def body(self) -> dict[str, Any]:
        selector = {names.NODE_LABEL: "true"} if self.gated else {}
        notes = {STRATEGY_NOTE: self.note} if self.note else {}
        strategy = ROLLING if self.strategy == "RollingUpdate" else {"type": self.strategy}
        meta = {"uid": "ds", "name": "atelet", "resourceVersion": "7"}
        return {
            "metadata": {**meta, "generation": self.generation, "annotations": notes},
            "spec": {
                "updateStrategy": strategy,
                "template": {"metadata": {"labels": {"app": "atelet"}}, "spec": {"nodeSelector": selector}},
            },
            "status": {"observedGeneration": self.observed},
        }

    def hash(self) -> str:
        """Of the newest template that the controller knows; one that comes back has the hash that it had."""
        if self.observed < self.generation:
            return "older"
        return "closed" if self.gated else "open"

    def list(self, request: Request) -> list[dict[str, Any]]:
        owned = {"ownerReferences": [{"uid": "ds"}]}
        if request.path.endswith("/controllerrevisions"):
            return [{"metadata": {**owned, "labels": {HASH: self.hash()}}, "revision": self.generation}]
        if request.path.endswith("/ate-system/pods") and HASH in request.query["labelSelector"]:
            wanted = request.query["labelSelector"]
            return [
                {"metadata": {**owned, "name": name, "uid": name, "labels": {HASH: value}}}
                for name, value in self.pods.items()
                if value in re.split(r"[=(), ]+", wanted)
            ]
        return []

    async def handle(self, request: Request, answer: Answer) -> None:
        if request.path.endswith("/daemonsets/atelet"):
            if request.method == "PATCH" and "template" in request.json["spec"] and self.conflicts:
                self.conflicts -= 1
                await answer.refuse(409, "Conflict", "the object has been modified")
                return
            if request.method == "PATCH":
                self.write(request.json)
            elif self.lag:
                self.lag -= 1
            else:
                self.observed = self.generation
            await answer.reply(200, self.body())
        elif request.method == "PATCH" and request.path.rpartition("/")[2] == self.stuck:
            await answer.refuse(403, "Forbidden", "no")
        elif request.method == "PATCH":
            self.pods[request.path.rpartition("/")[2]] = request.json["metadata"]["labels"][HASH]
            await answer.reply(200, {"metadata": {}})
        elif request.path.endswith("/ate-system/pods") and self.away:
            await answer.refuse(403, "Forbidden", "no")
        elif request.path.endswith("/daemonsets"):
            await answer.reply(200, {"metadata": {}, "items": [self.body()]})
        elif request.path.rpartition("/")[2] in {"workerpools", "pods", "nodes", "controllerrevisions"}:
            await answer.reply(200, {"metadata": {}, "items": self.list(request)})
        else:
            await answer.refuse(404, "NotFound", "no")

    def write(self, body: dict[str, Any]) -> None:
        spec = body["spec"]
        if "template" in spec:
            self.gated = spec["template"]["spec"]["nodeSelector"][names.NODE_LABEL] is not None
            self.generation += 1
        if "updateStrategy" in spec:
            self.strategy = spec["updateStrategy"]["type"]
        annotations = body["metadata"].get("annotations", {})
        self.note = annotations.get(STRATEGY_NOTE, self.note) or ""


def during(daemon: Daemon, directory: Path, do: Callable[[Kube], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            serving(daemon.handle) as server,
            connected(kubeconfig(directory, server.url)) as kube,
        ):
            await do(kube)

    asyncio.run(main())


@pytest.mark.parametrize("closed", [True, False])
def test_a_gate_that_somebody_else_writes_to_is_read_again_and_set(tmp_path: Path, closed: bool) -> None:
    daemon = Daemon(gated=not closed, conflicts=3)
    during(daemon, tmp_path, lambda kube: Gate(kube, "ate-system", "atelet").set(closed=closed))
    assert (daemon.gated, daemon.strategy, daemon.note) == (closed, "RollingUpdate", "")


def test_uninstalling_ends_what_an_interrupted_run_has_begun(tmp_path: Path) -> None:
    daemon = Daemon(gated=False, strategy="OnDelete", note=NOTE)
    said: list[str] = []
    during(daemon, tmp_path, lambda kube: Removal(kube, Settings(), said.append, dry_run=True).run())
    assert (daemon.strategy, daemon.note) == ("OnDelete", NOTE), "a dry run writes nothing"
    during(daemon, tmp_path, lambda kube: Removal(kube, Settings(), said.append, dry_run=False).run())
    assert (daemon.gated, daemon.strategy, daemon.note) == (False, "RollingUpdate", "")
    assert not any("let atelet run on all of its nodes again" in line for line in said)


def test_a_migration_that_cannot_close_the_gate_leaves_it_open(tmp_path: Path) -> None:
    """It fails after its first write, and half way back somebody gets between."""
    daemon = Daemon(gated=False)
    said: list[str] = []

    def say(words: str) -> None:
        said.append(words)
        if "adding our label" in words:
            daemon.away = True
        if "again" in words:
            daemon.away, daemon.conflicts = False, 2

    with pytest.raises(AteplaceError):
        during(daemon, tmp_path, lambda kube: Migration(kube, Settings(), say).run(dry_run=False))
    assert said[-1] == "failed: taking our label out of atelet's nodeSelector again"
    assert (daemon.gated, daemon.strategy, daemon.note) == (False, "RollingUpdate", "")


def test_a_gate_is_open_once_the_controller_knows_of_it(tmp_path: Path) -> None:
    """Labels go from nodes after that: a controller that has seen only those would end every atelet."""
    daemon = Daemon(gated=True, strategy="OnDelete")
    daemon.lag = 2
    during(daemon, tmp_path, lambda kube: Gate(kube, "ate-system", "atelet").set(closed=False))
    assert daemon.observed == daemon.generation == 2


def test_no_atelet_is_restarted_when_a_gate_that_is_half_closed_is_opened_again(tmp_path: Path) -> None:
    daemon = Daemon(gated=False)
    daemon.pods, daemon.stuck = {"a": "open", "b": "open", "old": "older"}, "b"
    with pytest.raises(AteplaceError):
        during(daemon, tmp_path, lambda kube: Gate(kube, "ate-system", "atelet").set(closed=True))
    assert daemon.pods == {"a": "closed", "b": "open", "old": "older"}
    daemon.stuck = ""
    during(daemon, tmp_path, lambda kube: Gate(kube, "ate-system", "atelet").set(closed=False))
    assert daemon.pods == {"a": "open", "b": "open", "old": "older"}
    assert (daemon.gated, daemon.strategy, daemon.note) == (False, "RollingUpdate", "")


def test_atelets_that_wait_for_an_update_which_nobody_has_begun_are_left_to_it(tmp_path: Path) -> None:
    """Somebody has just changed the template: what the controller calls current is what was."""
    daemon = Daemon(gated=False)
    daemon.pods, daemon.generation, daemon.lag = {"a": "older"}, 2, 1
    during(daemon, tmp_path, lambda kube: Gate(kube, "ate-system", "atelet").set(closed=True))
    assert daemon.pods == {"a": "older"}
    assert (daemon.gated, daemon.strategy, daemon.note) == (True, "RollingUpdate", "")
