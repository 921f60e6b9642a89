"""Claiming nodes: one merge patch per (node, pool), one at a time, acknowledged before anything is answered.

    open     a node that has no claim of the pool yet: patch it and, at the same time, read what other pods are there
    touch    the same patch on a lingering claim, or on one that another process wrote: its value changes, so that the
             reconciler's linger starts again
    ahead    open or touch without waiting, for the pods that come next

The patch carries the Node's uid, so that a Node recreated under its name is refused by the API server; it never
creates anything, and it is idempotent. A patch that opens a node carries the version in which it had no claim, so that
of two replicas only one opens it; where this process is to count the node's units (`extender.served`), the version in
which others had written nothing lately. When its outcome is unknown we read the Node: either our very value is there,
with the label, or it is sent again, as long as the caller's deadline allows.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Final, TypeVar

from msgspec import Struct

from ateplace import errors, names
from ateplace.cluster.claims import boottime, claim_metadata, claim_value
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import FINISHED
from ateplace.cluster.resources import Amounts, host_ports, pack, requests, total
from ateplace.cluster.state import Node, Reading
from ateplace.extender import metrics
from ateplace.kube import Kube, paths, selectors
from ateplace.kube.objects import Metadata, Pod
from ateplace.settings import Substrate

log = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPT_SECONDS: Final = 2.0
"""How long one patch may take before we look whether it went through."""
ATTEMPTS: Final = 4


class Written(Struct):
    """What we read of a Node after writing it."""

    metadata: Metadata


class ClaimWriter:
    """Loop-confined. `deadline` bounds every wait of a caller; a write under way is finished for the next one."""

    def __init__(self, kube: Kube, ledger: Ledger, substrate: Substrate, *, deadline: float) -> None:
        self._kube = kube
        self._ledger = ledger
        self._substrate = substrate
        self._deadline = deadline
        self._writes: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._reads: dict[str, asyncio.Task[None]] = {}

    async def open(
        self,
        node: Node,
        pool: str,
        *,
        write: bool,
        read: bool,
        until: float,
        also: Iterable[Node] = (),
        alone: bool = False,
    ) -> None:
        """Claim the node, read its pods, or both; raises KubeError when that failed, TimeoutError at `until`.

        `also` are claimed at the same time, and waited for as long. What becomes of them is in the ledger. `alone`: as
        long as no other process has written a claim since.
        """
        tasks = [*([self._write(node, pool, alone=alone)] if write else ()), *([self._read(node)] if read else ())]
        more = [self._write(one, pool, alone=alone) for one in also]
        async with asyncio.timeout_at(until):
            for task in tasks:
                await asyncio.shield(task)
        if more:
            await asyncio.wait(more, timeout=max(0.0, until - asyncio.get_running_loop().time()))

    def ahead(
        self, nodes: Iterable[Node], pool: str, *, read: Callable[[Node], bool], read_first: bool, alone: bool = False
    ) -> list[str]:
        """Begin to claim, and say which: a call that needs one meanwhile waits for the same write. `read_first`: a node
        that must be read is only read, and claimed when a pod needs it and it is known to have room."""
        claimed = []
        for node in nodes:
            unread = read(node)
            if unread:
                self._read(node)
            if read_first and unread:
                continue
            claimed.append(node.name)
            if (node.name, pool) not in self._writes:
                metrics.AHEAD.inc()
                self._write(node, pool, alone=alone)
        return claimed

    async def close(self) -> None:
        """Wait for what is under way: a write that was sent is better known than guessed."""
        tasks = [*self._writes.values(), *self._reads.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=self._deadline)
        for task in tasks:
            task.cancel()

    def _write(self, node: Node, pool: str, *, alone: bool) -> asyncio.Task[None]:
        record = node.record
        uid, version = (record.uid, record.version) if record else ("", 0)
        claimed = dict(record.claims) if record and alone and node.claim_count and not node.own else {}
        at_version = version if claimed or not node.claim_count else 0
        return _single(self._writes, (node.name, pool), lambda: self._patch(node.name, uid, pool, at_version, claimed))

    def _read(self, node: Node) -> asyncio.Task[None]:
        return _single(self._reads, node.name, lambda: self._list(node.name, node.record.uid if node.record else ""))

    async def _patch(self, name: str, uid: str, pool: str, at_version: int, claimed: Mapping[str, str]) -> None:
        """`at_version`: the version of the Node in which it has these claims and no others; the write is refused where
        another process has written one since, so that of two replicas only one opens it. 0: that does not matter."""
        opening = at_version > 0 and not claimed
        path = paths.NODES.named(name)
        within = min(ATTEMPT_SECONDS, self._deadline)
        value = claim_value()
        meta = claim_metadata(uid, (pool,), value)
        for attempt in range(ATTEMPTS):
            sent = boottime()
            body = {"metadata": {**meta, "resourceVersion": str(at_version)} if at_version else meta}
            self._ledger.claims.sending(name, pool, value)
            try:
                written = await self._kube.patch(path, body, Written, query=names.FIELD_MANAGER, deadline=within)
            except errors.TooManyRequests:
                metrics.CLAIMS.labels("throttled").inc()
                raise
            except (errors.Unavailable, TimeoutError) as error:
                metrics.CLAIMS.labels("unknown").inc()
                log.info(
                    "claim's outcome is unknown, looking", extra={"node": name, "pool": pool, "reason": str(error)}
                )
                written = await self._kube.get(path, Written, deadline=within)
                found = written.metadata
                there = found.uid == uid and found.annotation(names.claim_key(pool)) == value
                if not there or found.label(names.NODE_LABEL) != "true":
                    if attempt == ATTEMPTS - 1:
                        raise
                    continue
            except errors.Refused as error:
                if at_version and attempt < ATTEMPTS - 1 and isinstance(error, errors.Conflict):
                    # It has changed since: claimed by another replica, or by us for another pool, or in status only.
                    found = (await self._kube.get(path, Written, deadline=within)).metadata
                    fresh = {pool: value for pool, value in _claimed(found).items() if claimed.get(pool) != value}
                    if found.uid == uid and self._ledger.claims.is_ours(name, fresh):
                        opening = opening and not fresh
                        at_version = 0 if fresh and not claimed else int(found.resource_version or 0)
                        continue
                metrics.CLAIMS.labels("refused").inc()
                raise
            break
        metrics.CLAIMS.labels("written").inc()
        self._ledger.claims.acknowledge(
            name,
            uid,
            pool,
            value=value,
            version=int(written.metadata.resource_version or 0),
            sent=sent,
            now=time.monotonic(),
            opened=opening,
        )
        log.debug("claimed", extra={"node": name, "pool": pool})

    async def _list(self, name: str, uid: str) -> None:
        at = time.monotonic()
        found: dict[str, Amounts] = {}
        ports: set[tuple[str, int]] = set()
        query = {"fieldSelector": selectors.on_node(name), "resourceVersion": "0"}
        async for pod in self._kube.list(paths.PODS.everywhere, Pod, query=query):
            if self._counts(pod):
                found[pod.metadata.uid] = requests(pod.spec, pod.status)
                ports |= host_ports(pod.spec)
        metrics.READINGS.inc()
        self._ledger.others_read(
            name, uid, Reading(pack(total(found.values())), len(found), frozenset(ports), at, found)
        )

    def _counts(self, pod: Pod) -> bool:
        """Whether it is a stranger that takes room: ateoms and placeholders are watched, atelet is what room is for."""
        meta = pod.metadata
        if pod.status and pod.status.phase in FINISHED:
            return False
        if meta.is_mirror:
            return True  # whatever its labels say, it is in no watch of ours
        if meta.label(self._substrate.pool_label) or meta.label(names.PLACEHOLDER_LABEL):
            return False
        return not self._ledger.is_atelet(meta.uid) and not any(
            owner.uid in self._ledger.templates for owner in meta.owner_references or ()
        )


def _claimed(meta: Metadata) -> dict[str, str]:
    return {
        pool: value for key, value in (meta.annotations or {}).items() if (pool := names.claimed_pool(key)) is not None
    }


def _single(
    running: dict[T, asyncio.Task[None]], key: T, make: Callable[[], Coroutine[None, None, None]]
) -> asyncio.Task[None]:
    """The task under way for this key, or a new one."""
    task = running.get(key)
    if task is None:
        task = running[key] = asyncio.get_running_loop().create_task(make())

        def done(task: asyncio.Task[None]) -> None:
            del running[key]
            if not task.cancelled() and (error := task.exception()):
                log.info("claim failed", extra={"what": str(key), "reason": str(error)})

        task.add_done_callback(done)
    return task
