"""Ateoms that wait for a pool which is gone, while another pool has its name.

A pod says with a label, which cannot be changed, for which pool it was made. A pool that is deleted with
`--cascade=orphan` and made again has another UID; so may a pool whose pods were made when the webhook's view was a
moment old. Such a pod is never placed: its pool is gone. It is deleted, so that its controller makes it anew, for
the pool that is there.

Deleted are only pods that have never been bound, have a controller, and whose name's pool, read now, is another and
lives. The deletion carries the version that was read, so that a pod which is bound meanwhile stays. Why not more:
docs/decisions/2026-11-18-ateoms-of-a-pool-made-again.md.
"""

import logging
from typing import Final

from ateplace import errors, names
from ateplace.cluster.ledger import Ledger
from ateplace.kube import Kube, paths, selectors
from ateplace.kube.objects import Bare, Metadata
from ateplace.reconciler.claims.unbound import Unbound

log = logging.getLogger(__name__)

LOOK_AGAIN: Final = 2.0
"""Seconds until a gone pool's waiting ateoms are looked at again. Without a pool of their name it costs no request."""
NOTHING_TO_DO: Final = 60.0
"""The same when none of them could be deleted."""


class Strays:
    """`look(uid)` after anything about a pool changed."""

    def __init__(self, kube: Kube, ledger: Ledger, unbound: Unbound, pool_label: str) -> None:
        self._kube = kube
        self._ledger = ledger
        self._unbound = unbound
        self._pool_label = pool_label

    async def look(self, uid: str) -> float | None:
        """When to look again; None when no ateom waits for a pool that is gone."""
        pool = self._ledger.pools.get(uid)
        if pool is None or pool.record is not None:
            return None
        waiting = {(pod.namespace, pod.pool) for pod in self._unbound.waiting(uid) if not pod.placeholder}
        if not waiting:
            return None
        again = LOOK_AGAIN
        for namespace, name in waiting:
            if self._ledger.owners.pool_named(namespace, name) and not await self._replace(uid, namespace, name):
                again = NOTHING_TO_DO
        return again

    async def _replace(self, uid: str, namespace: str, name: str) -> int:
        """Delete what waits for the pool with this UID, if another has its name; how many."""
        labels = selectors.both(
            selectors.labelled(names.POOL_UID_LABEL, uid), selectors.labelled(self._pool_label, name)
        )
        if labels is None:
            return 0
        try:
            there = (await self._kube.get(paths.POOLS.named(name, namespace), Bare)).metadata
        except errors.NotFound:
            return 0
        if there.uid == uid or there.deletion_timestamp is not None:
            return 0
        query = {"labelSelector": labels, "fieldSelector": selectors.on_node("")}
        found = [pod.metadata async for pod in self._kube.list(paths.PODS.within(namespace), Bare, query=query)]
        return sum([await self._delete(meta) for meta in found if _made_anew(meta)])

    async def _delete(self, meta: Metadata) -> bool:
        path = paths.PODS.named(meta.name, meta.namespace)
        try:
            await self._kube.delete(path, uid=meta.uid, resource_version=meta.resource_version)
        except (errors.NotFound, errors.Conflict):
            return False
        log.info(
            "deleted an ateom of a pool that is gone: its controller makes a new one",
            extra={"pod": f"{meta.namespace}/{meta.name}"},
        )
        return True


def _made_anew(meta: Metadata) -> bool:
    """Whether a controller replaces the pod once it is gone."""
    owned = any(owner.controller for owner in meta.owner_references or ())
    return owned and meta.deletion_timestamp is None and not meta.is_mirror
