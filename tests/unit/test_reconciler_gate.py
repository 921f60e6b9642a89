"""The atelet DaemonSet's gate while others write to it, and after a run that did not end."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ateplace import names
from ateplace.errors import AteplaceError
from ateplace.kube import Kube
from ateplace.settings import Settings
from reconciler.gate import STRATEGY_NOTE, Gate
from reconciler.migrate import Migration
from reconciler.uninstall import Removal
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving

ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
NOTE = json.dumps({"strategy": ROLLING, "hash": "h1"})


class Daemon:
    """A cluster with nothing but the atelet DaemonSet; `conflicts` writes of its template are refused, and `away` means
    that its pods cannot be listed, as in the middle of an outage."""

    def __init__(self, *, gated: bool, strategy: str = "RollingUpdate", note: str = "", conflicts: int = 0) -> None:
        self.gated, self.strategy, self.note, self.conflicts = gated, strategy, note, conflicts
        self.away = False

    def body(self) -> dict[str, Any]:
        selector = {names.NODE_LABEL: "true"} if self.gated else {}
        notes = {STRATEGY_NOTE: self.note} if self.note else {}
        strategy = ROLLING if self.strategy == "RollingUpdate" else {"type": self.strategy}
        return {
            "metadata": {"uid": "ds", "name": "atelet", "resourceVersion": "7", "generation": 1, "annotations": notes},
            "spec": {"updateStrategy": strategy, "template": {"spec": {"nodeSelector": selector}}},
            "status": {"observedGeneration": 1},
        }

    async def handle(self, request: Request, answer: Answer) -> None:
        if request.path.endswith("/daemonsets/atelet"):
            if request.method == "PATCH" and "template" in request.json["spec"] and self.conflicts:
                self.conflicts -= 1
                await answer.refuse(409, "Conflict", "the object has been modified")
                return
            if request.method == "PATCH":
                self.write(request.json)
            await answer.reply(200, self.body())
        elif request.path.endswith("/ate-system/pods") and self.away:
            await answer.refuse(403, "Forbidden", "no")
        elif request.path.rpartition("/")[2] in {"workerpools", "pods", "nodes", "controllerrevisions"}:
            await answer.reply(200, {"metadata": {}, "items": []})
        else:
            await answer.refuse(404, "NotFound", "no")

    def write(self, body: dict[str, Any]) -> None:
        spec = body["spec"]
        if "template" in spec:
            self.gated = spec["template"]["spec"]["nodeSelector"][names.NODE_LABEL] is not None
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
    during(daemon, tmp_path, lambda kube: Gate(kube, Settings().substrate).set(closed=closed))
    assert (daemon.gated, daemon.strategy, daemon.note) == (closed, "RollingUpdate", "")


def test_uninstalling_ends_what_an_interrupted_run_has_begun(tmp_path: Path) -> None:
    daemon = Daemon(gated=False, strategy="OnDelete", note=NOTE)
    said: list[str] = []
    during(daemon, tmp_path, lambda kube: Removal(kube, Settings(), said.append, dry_run=True).run())
    assert (daemon.strategy, daemon.note) == ("OnDelete", NOTE), "a dry run writes nothing"
    during(daemon, tmp_path, lambda kube: Removal(kube, Settings(), said.append, dry_run=False).run())
    assert (daemon.gated, daemon.strategy, daemon.note) == (False, "RollingUpdate", "")
    assert not any("give atelet all of its nodes back" in line for line in said)


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
    assert said[-1] == "trouble: taking our label out of atelet's nodeSelector again"
    assert (daemon.gated, daemon.strategy, daemon.note) == (False, "RollingUpdate", "")
