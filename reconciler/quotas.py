"""Namespaces' quotas, said: how many nodes each holds of those it may, and which pools wait because of it.

The extender refuses (`extender.rules`); this only tells. `look` is called for a pool when something about it changed.
"""

import logging

from ateplace.cluster.ledger import Ledger
from ateplace.cluster.state import Pool
from ateplace.reconciler import metrics
from ateplace.reconciler.events import Events, about_pool

log = logging.getLogger(__name__)


class Quotas:
    def __init__(self, ledger: Ledger, events: Events) -> None:
        self._ledger = ledger
        self._events = events
        self._said: dict[str, str] = {}
        """What was said about a pool, by its UID, until it is no longer so."""
        self._shown: set[str] = set()
        """Namespaces whose nodes are shown."""
        ledger.subscribe(namespace=self._show)

    def look(self, uid: str) -> None:
        pool = self._ledger.pools.get(uid)
        if pool is None:
            self._said.pop(uid, None)
            return
        if pool.namespace in self._ledger.quotas or pool.namespace in self._shown:
            self._show(pool.namespace)
        words = self._reached(pool)
        if not words:
            self._said.pop(uid, None)
        elif self._said.get(uid) != words and pool.record:
            self._said[uid] = words
            log.warning(
                "the namespace's quota keeps ateoms waiting", extra={"pool": f"{pool.namespace}/{pool.record.name}"}
            )
            self._events.warn(about_pool(pool.record), "QuotaReached", words)

    def forget(self) -> None:
        """At the end of a term."""
        self._said.clear()

    def _reached(self, pool: Pool) -> str:
        quota = self._ledger.quotas.get(pool.namespace)
        if quota is None or not pool.record:
            return ""
        if quota.wrong:
            return (
                f"The quota of namespace {pool.namespace} cannot be read, so its pools get nothing more: {quota.wrong}"
            )
        if quota.max_nodes is None or not pool.unbound:
            return ""
        held = len(self._ledger.held_nodes(pool.namespace))
        if held < quota.max_nodes:
            return ""
        return (
            f"Pods wait: the pools of namespace {pool.namespace} hold {held} nodes, its max-nodes is {quota.max_nodes}"
        )

    def _show(self, namespace: str) -> None:
        quota = self._ledger.quotas.get(namespace)
        if quota is None or quota.max_nodes is None:
            if namespace in self._shown:
                self._shown.discard(namespace)
                for state in ("held", "allowed"):
                    metrics.NAMESPACE_NODES.remove(namespace, state)
            return
        self._shown.add(namespace)
        metrics.NAMESPACE_NODES.labels(namespace, "held").set(len(self._ledger.held_nodes(namespace)))
        metrics.NAMESPACE_NODES.labels(namespace, "allowed").set(quota.max_nodes)
