"""Our label in the nodeSelector of atelet's DaemonSets, put on or taken off without restarting a single atelet.

A DaemonSet's pods carry the hash of the template that they were made from, and any change of the template, even one
that leaves a pod where it is, makes a rolling update replace it: for a moment its node would have no atelet. So:

    one write: our label into (or out of) the nodeSelector, and OnDelete as the update strategy
        the controller ends the pods of nodes that are out, starts those of nodes that are in, and leaves the rest
    the pods that were up to date get the new template's hash: what it would make on their nodes is what they are
    one write: the update strategy as it was

The strategy to go back to, and the old hash, are noted on the DaemonSet in the first write, so that a second run ends
what a first one began. Pods that were not up to date before are left to the rolling update that they were waiting for.
"""

import asyncio
import json
import logging
from typing import Any, Final

from ateplace import errors, label_selectors, names
from ateplace.cluster.records import live_atelet_template
from ateplace.errors import AteplaceError
from ateplace.kube import Kube, paths, selectors
from ateplace.kube.objects import DaemonSet
from ateplace.settings import Substrate

log = logging.getLogger(__name__)

Json = dict[str, Any]

STRATEGY_NOTE: Final = "ateplace.ate.dev/update-strategy"
HASH: Final = "controller-revision-hash"
OBSERVE_SECONDS: Final = 60.0
POLL: Final = 0.2
TRIES: Final = 5
"""Of one write that others get in the way of."""


async def gates(kube: Kube, substrate: Substrate) -> list["Gate"]:
    """Of every atelet DaemonSet: those whose pods `substrate.atelet_selector` selects."""
    selector, namespace = label_selectors.parse(substrate.atelet_selector), substrate.atelet_namespace
    return [
        Gate(kube, namespace, found.metadata.name)
        async for found in kube.list(paths.DAEMON_SETS.within(namespace), DaemonSet)
        if live_atelet_template(found, selector)
    ]


class Gate:
    """The gate of one DaemonSet."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self.name = name
        self._kube = kube
        self._namespace = namespace
        self._pods = paths.PODS.within(namespace)
        self._path = paths.DAEMON_SETS.named(name, namespace)

    async def read(self) -> Json | None:
        """The DaemonSet; None when there is none."""
        try:
            return await self._kube.get(self._path, Json)
        except errors.NotFound:
            return None

    async def closed(self) -> bool:
        """Whether atelet runs on labelled nodes only."""
        found = await self.read()
        return found is not None and _gated(found)

    async def set(self, *, closed: bool) -> None:
        """Put it so; does nothing where it is so and nothing is left to be ended."""
        found = await self._turned(closed=closed)
        if found is None:
            return
        # Also where there is no strategy to go back to: the next step may take labels off nodes.
        if await self._observed(found) is None:
            return
        if before := _noted(found):
            await self._adopt(found, before["hash"])
            await self._restore(found, before["strategy"])

    async def _turned(self, *, closed: bool) -> Json | None:
        """The DaemonSet with its template as it should be. Its controller writes its status all the time, and the
        note must tell of what was there before: so it is read again then."""
        tries = TRIES
        while True:
            found = await self.read()
            if found is not None and _gated(found) != closed and not _noted(found):
                # Until then the newest revision is of an older template, and pods that wait for an update have it.
                found = await self._observed(found)
            if found is None or _gated(found) == closed:
                return found
            try:
                return await self._turn(found, closed=closed)
            except errors.Conflict:
                tries -= 1
                if not tries:
                    raise

    async def _turn(self, found: Json, *, closed: bool) -> Json:
        spec: Json = {"template": {"spec": {"nodeSelector": {names.NODE_LABEL: "true" if closed else None}}}}
        meta: Json = {"uid": found["metadata"]["uid"], "resourceVersion": found["metadata"]["resourceVersion"]}
        strategy = found["spec"].get("updateStrategy", {})
        note = _noted(found)
        if note:
            # A run that ended half way has given some pods the hash of what is current now.
            note["hash"] += f",{await self._revision(found)}"
        elif strategy.get("type") == "RollingUpdate":
            spec["updateStrategy"] = {"type": "OnDelete", "rollingUpdate": None}
            note = {"strategy": strategy, "hash": await self._revision(found)}
        if note:
            meta["annotations"] = {STRATEGY_NOTE: json.dumps(note)}
        return await self._kube.patch(self._path, {"metadata": meta, "spec": spec}, Json, query=names.FIELD_MANAGER)

    async def _observed(self, written: Json) -> Json | None:
        """Wait until the controller has seen it; the DaemonSet as it is then, None when it is gone."""
        loop = asyncio.get_running_loop()
        end = loop.time() + OBSERVE_SECONDS
        while loop.time() < end:
            found = await self.read()
            seen = found.get("status", {}).get("observedGeneration", 0) if found else None
            if seen is None or seen >= written["metadata"]["generation"]:
                return found
            await asyncio.sleep(POLL)
        raise AteplaceError("the DaemonSet controller does not react: is kube-controller-manager running?")

    async def _revision(self, found: Json) -> str:
        """The hash of the template that is current."""
        newest, value = -1, ""
        async for revision in self._kube.list(paths.CONTROLLER_REVISIONS.within(self._namespace), Json):
            owners = revision["metadata"].get("ownerReferences", ())
            if any(owner["uid"] == found["metadata"]["uid"] for owner in owners) and revision["revision"] > newest:
                newest, value = revision["revision"], revision["metadata"]["labels"][HASH]
        return value

    async def _adopt(self, found: Json, before: str) -> None:
        """Give pods with one of the hashes `before` (separated by commas) the current one."""
        after = await self._revision(found)
        labels = selectors.labelled_any(HASH, before.split(","))
        if labels is None:
            return
        async for pod in self._kube.list(self._pods, Json, query={"labelSelector": labels}):
            meta = pod["metadata"]
            owned = any(owner["uid"] == found["metadata"]["uid"] for owner in meta.get("ownerReferences", ()))
            if owned and "deletionTimestamp" not in meta:
                body = {"metadata": {"uid": meta["uid"], "labels": {HASH: after}}}
                try:
                    await self._kube.patch(
                        paths.PODS.named(meta["name"], self._namespace), body, Json, query=names.FIELD_MANAGER
                    )
                except (errors.NotFound, errors.Conflict):
                    log.debug("atelet has gone meanwhile", extra={"pod": meta["name"]})

    async def _restore(self, found: Json, strategy: Json) -> None:
        meta = {"uid": found["metadata"]["uid"], "annotations": {STRATEGY_NOTE: None}}
        body = {"metadata": meta, "spec": {"updateStrategy": strategy}}
        await self._kube.patch(self._path, body, Json, query=names.FIELD_MANAGER)


def _noted(found: Json) -> Json | None:
    """The strategy to go back to, and the hashes of the pods that were up to date; None when nothing is under way."""
    note = found["metadata"].get("annotations", {}).get(STRATEGY_NOTE)
    return json.loads(note) if note else None


def _gated(found: Json) -> bool:
    return names.NODE_LABEL in (found["spec"]["template"]["spec"].get("nodeSelector") or {})
