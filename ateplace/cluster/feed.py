"""The cluster as the roles see it: eight watches that fill one ledger.

One view per process, shared by whatever roles run in it (`View.of(runtime)`). It is good to decide from when `reason()`
is empty: every watch has delivered a full list, none has been silent for longer than `cluster.stale_after`, and neither
has the API server left a consistent read unanswered for so long. Bookmarks alone do not say that it still hears etcd.
How old the view is decides how good an answer is; that no released node is answered does not depend on it
(`ateplace.cluster.claims.answerable`).
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import Struct

from ateplace import errors, label_selectors, names
from ateplace.cluster import records
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import (
    AteletRecord,
    AteletTemplate,
    LimitRangeRecord,
    NamespaceRecord,
    NodeRecord,
    PodRecord,
    PoolRecord,
    admitted,
)
from ateplace.cluster.resources import Amounts, largest
from ateplace.kube import Kube, paths
from ateplace.kube.objects import Bare, DaemonSet, LimitRange, Node, Pod, WorkerPool
from ateplace.kube.watch import Watch
from ateplace.process import metrics
from ateplace.process.runtime import Runtime
from ateplace.settings import Settings

R = TypeVar("R", PodRecord, AteletRecord, AteletTemplate, PoolRecord)
PodListener = Callable[[PodRecord | None, PodRecord | None], None]

CONSISTENT_READS: Final = 5
"""How often within `stale_after` something is read consistently."""

UNREADABLE: Final = metrics.gauge(
    "watch_unreadable_objects", "Objects that cannot be read now; what was known of them before stays.", ["watch"]
)

log = logging.getLogger(__name__)


class Nothing(Struct):
    """What we want to know of the answer: that there is one."""


LINGER: Final = metrics.gauge(
    "linger_seconds",
    "The setting reconciler.linger that this process runs with: extenders and reconcilers must agree on it.",
)


class View:
    """`ledger` is kept up to date from the moment the watches run."""

    def __init__(self, kube: Kube, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.ledger = Ledger()
        LINGER.set(settings.reconciler.linger)
        self._kube = kube
        self._clock = clock
        self._consistent = clock()
        """When the API server last answered a consistent read."""
        self._on_pod: list[PodListener] = []
        self._stale_after = settings.cluster.stale_after
        self._distrusted = ""
        substrate = settings.substrate
        namespace = substrate.atelet_namespace
        ledger = self.ledger
        pod = partial(records.pod_record, pool_label=substrate.pool_label)
        self.nodes = Watch(kube, paths.NODES.everywhere, Node, records.node_record, self._node, name="nodes")
        self.ateoms = Watch(
            kube, paths.PODS.everywhere, Pod, pod, self._pod, label_selector=substrate.pool_label, name="ateoms"
        )
        self.placeholders = Watch(
            kube,
            paths.PODS.everywhere,
            Pod,
            pod,
            self._pod,
            label_selector=names.PLACEHOLDER_LABEL,
            name="placeholders",
        )
        self.pools = Watch(
            kube,
            paths.POOLS.everywhere,
            WorkerPool,
            records.pool_record,
            partial(self._object, ledger.pool_seen, ledger.pool_gone),
            name="workerpools",
            may_be_absent=True,  # uninstalled in the wrong order: there are no pools, and claims must not stay for it
        )
        self.atelets = Watch(
            kube,
            paths.PODS.within(namespace),
            Pod,
            records.atelet_record,
            self._atelet,
            label_selector=substrate.atelet_selector,
            name="atelets",
        )
        self.daemonsets = Watch(
            kube,
            paths.DAEMON_SETS.within(namespace),
            DaemonSet,
            partial(records.live_atelet_template, selector=label_selectors.parse(substrate.atelet_selector)),
            self._daemonset,
            name="atelet-daemonsets",
        )
        self.limit_ranges = Watch(
            kube,
            paths.LIMIT_RANGES.within(namespace),
            LimitRange,
            records.limit_range_record,
            self._limit_range,
            name="atelet-limit-ranges",
        )
        self.namespaces = Watch(
            kube,
            paths.NAMESPACES.everywhere,
            Bare,
            records.namespace_record,
            self._namespace,
            name="namespaces",
        )
        self._live_requests: dict[str, Amounts] = {}
        """By a DaemonSet's UID: the most that pods of its current template were admitted with."""
        self.watches: tuple[Watch[Any, Any], ...] = (
            self.pools,
            self.namespaces,
            self.limit_ranges,
            self.daemonsets,
            self.nodes,
            self.atelets,
            self.ateoms,
            self.placeholders,
        )

    @classmethod
    def of(cls, runtime: Runtime) -> "View":
        """This process's view; the first to ask starts its watches."""

        def start(runtime: Runtime) -> View:
            view = cls(runtime.kube, runtime.settings)
            for watch in view.watches:
                runtime.spawn(watch.run(), f"watch {watch.name}")
                UNREADABLE.labels(watch.name).set_function(partial(getattr, watch, "unreadable"))
            runtime.spawn(view.read_consistently(), "consistent reads")
            runtime.health.add("view", view.reason)
            return view

        return runtime.shared(cls, start)

    def distrust(self, reason: str) -> None:
        """Let nothing be decided from this view any more."""
        self._distrusted = reason

    def reason(self) -> str:
        """Why nothing may be decided from the ledger now; empty when it may."""
        if self._distrusted:
            return self._distrusted
        for watch in self.watches:
            age = watch.staleness()
            if age > self._stale_after:
                if not watch.synced.is_set():
                    return f"the watch of {watch.name} has not synced yet"
                return f"the watch of {watch.name} has been silent for {age:.0f} s"
        age = self._clock() - self._consistent
        if age > self._stale_after:
            return f"the API server has answered no consistent read for {age:.0f} s"
        return ""

    async def read_consistently(self) -> None:
        """For ever, ask now and then for one Node as etcd has it: an API server that cannot say should not be believed
        in anything else."""
        while True:
            try:
                await self._kube.get(paths.NODES.everywhere, Nothing, query={"limit": "1"})
                self._consistent = self._clock()
            except (errors.KubeError, TimeoutError) as error:
                log.warning("no consistent read", extra={"reason": str(error)})
            await asyncio.sleep(self._stale_after / CONSISTENT_READS)

    async def synced(self) -> None:
        """Return once every watch has delivered a full list."""
        for watch in self.watches:
            await watch.synced.wait()

    def follow_pods(self, listener: PodListener) -> None:
        """Call it with the record of an ateom or a placeholder before and after each change, once the ledger has it."""
        self._on_pod.append(listener)

    def _pod(self, key: str, old: PodRecord | None, new: PodRecord | None) -> None:
        if old and new is None:
            # A pod with both labels is in both watches: one that loses a label has left one of them, and lives.
            other = self.ateoms.store.get(key) or self.placeholders.store.get(key)
            new = other if other and other.uid == old.uid else None
        self._object(self.ledger.pod_seen, self.ledger.pod_gone, key, old, new)
        for listener in self._on_pod:
            listener(old, new)

    def _object(
        self,
        seen: Callable[[R, float], None],
        gone: Callable[[str, float], None],
        _: str,
        old: R | None,
        new: R | None,
    ) -> None:
        now = self._clock()
        if old and (new is None or new.uid != old.uid):
            gone(old.uid, now)
        if new:
            seen(new, now)

    def _atelet(self, key: str, old: AteletRecord | None, new: AteletRecord | None) -> None:
        self._object(self.ledger.atelet_seen, self.ledger.atelet_gone, key, old, new)
        template = self._template(new.daemonset) if new else None
        if new and template:
            known = self._live_requests.get(new.daemonset, template.requests)
            learnt = largest((known, new.requests))
            if learnt != known:
                self._live_requests[new.daemonset] = learnt
                self._need(template)

    def _daemonset(self, key: str, old: AteletTemplate | None, new: AteletTemplate | None) -> None:
        if old:
            self._live_requests.pop(old.uid, None)  # another template, other pods
        made = self._admitted(new) if new else None
        self._object(self.ledger.daemonset_seen, self.ledger.daemonset_gone, key, old, made)

    def _namespace(self, _: str, old: NamespaceRecord | None, new: NamespaceRecord | None) -> None:
        if record := new or old:
            self.ledger.quota_seen(record.name, new.quota if new else None)

    def _limit_range(self, _: str, __: LimitRangeRecord | None, ___: LimitRangeRecord | None) -> None:
        for template in self.daemonsets.store.values():
            self._need(template)

    def _template(self, uid: str) -> AteletTemplate | None:
        return next((one for one in self.daemonsets.store.values() if one.uid == uid), None)

    def _admitted(self, template: AteletTemplate) -> AteletTemplate:
        return admitted(template, self.limit_ranges.store.values(), self._live_requests)

    def _need(self, template: AteletTemplate) -> None:
        self.ledger.daemonset_seen(self._admitted(template), self._clock())

    def _node(self, _: str, old: NodeRecord | None, new: NodeRecord | None) -> None:
        if new is not None:
            self.ledger.node_seen(new, self._clock())
        elif old is not None:
            self.ledger.node_gone(old.name, self._clock())
