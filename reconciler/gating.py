"""Gates atelet DaemonSets that come later: on a gated cluster a new version's arrives without our label.

Agent Substrate's upgrade begins with a second DaemonSet that has no pods, because no node carries its version yet. To
put our label into its nodeSelector then restarts nothing. A DaemonSet that has pods is left alone, because a change of
its template would replace them one by one: an Event, and `doctor`, say to run `ateplace migrate`, which restarts none.

    seen, ungated ── its controller has looked, and wants no pod ── one patch, on the version that was read ── gated
                  └─ it wants some ── an Event

If another manager takes the label out again, the next patch waits longer each time: we do not fight.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from ateplace import errors, names
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import AteletTemplate, atelet_template
from ateplace.kube import Kube, paths
from ateplace.kube.objects import DaemonSet
from ateplace.reconciler.events import About, Events
from ateplace.settings import Settings

log = logging.getLogger(__name__)

POLL: Final = 1.0
FIRST_WAIT, LONGEST_WAIT = 10.0, 600.0
"""Seconds until a DaemonSet that was patched, or spoken about, is looked at again; doubled each time."""


class Gating:
    def __init__(
        self,
        kube: Kube,
        ledger: Ledger,
        settings: Settings,
        events: Events,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._ledger = ledger
        self._namespace = settings.substrate.atelet_namespace
        self._policy = settings.reconciler.gate
        self._events = events
        self._clock = clock
        self._waits: dict[str, tuple[float, float]] = {}
        """By UID: when to look again, and the wait after that."""

    async def run(self) -> None:
        """For ever, while this process leads."""
        while True:
            await self.round()
            await asyncio.sleep(POLL)

    async def round(self) -> None:
        """Look at every DaemonSet that is due."""
        for template in self._due():
            try:
                done = await self._look(template)
            except errors.KubeError as error:
                log.warning("cannot gate atelet", extra={"daemonset": template.name, "reason": str(error)})
                done = True
            if done:
                _, wait = self._waits.get(template.uid, (0.0, FIRST_WAIT))
                self._waits[template.uid] = (self._clock() + wait, min(2 * wait, LONGEST_WAIT))

    def forget(self) -> None:
        """At the end of a term."""
        self._waits.clear()

    def _due(self) -> list[AteletTemplate]:
        """DaemonSets that should be gated and are not, and are to be looked at now."""
        templates = list(self._ledger.templates)
        self._waits = {uid: wait for uid, wait in self._waits.items() if uid in self._ledger.templates}
        wanted = self._policy == "always" or (self._policy == "follow" and any(one.gated for one in templates))
        now = self._clock()
        return [one for one in templates if wanted and not one.gated and self._waits.get(one.uid, (now, 0))[0] <= now]

    async def _look(self, template: AteletTemplate) -> bool:
        """Whether something was done or said; if not, it may be looked at again soon."""
        path = paths.DAEMON_SETS.named(template.name, self._namespace)
        try:
            found = await self._kube.get(path, DaemonSet)
            meta, status = found.metadata, found.status
            if meta.uid != template.uid or atelet_template(found).gated:
                return False
            if status is None or status.observed_generation < meta.generation:
                return False
            about = About("apps/v1", "DaemonSet", meta.namespace, meta.name, meta.uid)
            pods = max(status.desired_number_scheduled, status.current_number_scheduled, status.number_misscheduled)
            if pods:
                says = f"it runs on {pods} nodes without {names.NODE_LABEL} in its nodeSelector"
                self._events.warn(about, "NotGated", f"{says}: `ateplace migrate` adds it, and restarts no atelet")
                return True
            selector = {"nodeSelector": {names.NODE_LABEL: "true"}}
            preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
            body = {"metadata": preconditions, "spec": {"template": {"spec": selector}}}
            await self._kube.patch(path, body, DaemonSet, query=names.FIELD_MANAGER)
        except errors.NotFound:
            return False
        except errors.Conflict:
            return False
        log.info("atelet gated", extra={"daemonset": meta.name})
        self._events.say(about, "Gated", f"{names.NODE_LABEL} was added to its nodeSelector before it had pods")
        return True
