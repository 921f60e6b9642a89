"""Leader election by a Lease: one process works, the others stand by with a warm view.

    standing by ── the lease is free, or has not changed for its whole duration ──> leading ── stop: hand it back
         ^                                                                             |
         +── it is another's, gone, or was not renewed in two thirds of its time ──────+

Clocks are never compared: a follower counts, on its own monotonic clock, from when it saw the last change; a leader
from before it sent the last renewal that was acknowledged. So a leader that cannot renew stops before
another may follow it. A leader that was frozen and does not know it yet is fenced by what its writes carry (uid and
resourceVersion), not by this lease.

Why not the client library's election: docs/decisions/2026-11-16-leader-election.md.
"""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from ateplace import errors
from ateplace.kube import Kube, paths
from ateplace.kube.backoff import Backoff
from ateplace.kube.objects import Lease, LeaseSpec
from ateplace.kube.watch import Watch
from ateplace.reconciler import metrics

log = logging.getLogger(__name__)

NAME: Final = "ateplace-reconciler"
RELEASE_SECONDS: Final = 2.0
"""How long handing the lease back may take; otherwise it runs out by itself."""


class Term(Struct, frozen=True):
    """What a lease says."""

    uid: str
    version: str
    holder: str
    seconds: float
    transitions: int


def term(lease: Lease) -> Term:
    spec = lease.spec or LeaseSpec()
    return Term(
        uid=lease.metadata.uid,
        version=lease.metadata.resource_version,
        holder=spec.holder_identity or "",
        seconds=float(spec.lease_duration_seconds or 0),
        transitions=spec.lease_transitions or 0,
    )


class Election:
    """`run(lead)` runs `lead()` whenever, and for as long as, this process holds the lease."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        identity: str,
        *,
        seconds: float,
        name: str = NAME,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._collection = paths.LEASES.within(namespace)
        self._path = paths.LEASES.named(name, namespace)
        self._name = name
        self._identity = identity
        self._seconds = seconds
        self._clock = clock
        self._seen: Term | None = None
        self._seen_at = -math.inf
        self._changed = asyncio.Event()
        self._renewed = -math.inf
        self._watch = Watch(
            kube, self._collection, Lease, term, self._on_change, field_selector=f"metadata.name={name}", name="lease"
        )

    @property
    def holder(self) -> str:
        """Who leads, as far as we know; empty when no process does."""
        return self._seen.holder if self._seen else ""

    @property
    def leading(self) -> bool:
        """Whether the lease is ours, by all we know, and was renewed lately: asked before every piece of work."""
        return self.holder == self._identity and self._time() > 0

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """For ever; cancelled, it stops the work first and then hands the lease back. What `lead` raises ends it."""
        watching = asyncio.ensure_future(self._watch.run())
        try:
            while True:
                await self._acquire()
                log.info("leading", extra={"identity": self._identity})
                metrics.LEADER.set(1)
                work = asyncio.ensure_future(lead())
                try:
                    await self._keep(work)
                finally:
                    metrics.LEADER.set(0)
                    work.cancel()
                    await asyncio.wait({work})
                    await self._hand_back()
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    def _on_change(self, _key: str, _old: Term | None, new: Term | None) -> None:
        self._observe(new)

    def _observe(self, seen: Term | None) -> None:
        """Remember a newer term; the clock starts again with each."""
        if seen is None:
            self._seen, self._seen_at = None, -math.inf
        elif self._seen is None or self._seen.uid != seen.uid or int(seen.version) > int(self._seen.version):
            self._seen, self._seen_at = seen, self._clock()
        self._changed.set()

    async def _acquire(self) -> None:
        """Return once the lease is ours."""
        backoff = Backoff()
        while True:
            self._changed.clear()
            left = self._left()
            if left > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left)
                continue
            try:
                if await self._try():
                    return
                backoff.reset()
            except errors.Conflict:
                log.debug("another replica was quicker")
            except errors.KubeError as error:
                log.warning("cannot reach the lease", extra={"error": str(error)})
                await asyncio.sleep(backoff.delay())

    def _left(self) -> float:
        """Seconds until the lease may be ours for the taking, as far as we know."""
        if self._seen is None or not self._seen.holder:
            return 0.0
        return self._seen_at + self._seen.seconds - self._clock()

    async def _try(self) -> bool:
        sent = self._clock()
        known = self._seen  # before the look: the watch may tell us of a renewal while it is under way
        try:
            now = term(await self._kube.get(self._path, Lease))
        except errors.NotFound:
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}}
            created = await self._kube.create(self._collection, body | {"spec": self._spec(0)}, Lease)
            self._observe(term(created))
            self._renewed = sent
            return True
        self._observe(now)
        if now.holder and (known is None or known.version != now.version):
            return False  # it has changed since we began to count
        await self._write(now, self._spec(now.transitions + 1), deadline=self._seconds / 3)
        return True

    def _time(self) -> float:
        """Seconds for which a leader may go on working without another renewal."""
        return self._renewed + self._seconds * 2 / 3 - self._clock()

    async def _keep(self, work: "asyncio.Future[None]") -> None:
        """Renew until the lease is lost, or `work` ends (and then raise what it raised)."""
        while True:
            pause = self._seconds / 5 * random.uniform(0.8, 1.0)  # noqa: S311 - no secret
            done, _ = await asyncio.wait({work}, timeout=max(0.0, min(pause, self._time())))
            if done:
                await work
                raise RuntimeError("the work of a leader has no end")
            if self._time() <= 0:
                log.warning("lease lost: it could not be renewed in time")
                return
            try:
                async with asyncio.timeout(self._time()):
                    if not await self._renew():
                        log.warning("lease lost to another replica", extra={"holder": self.holder})
                        return
            except (errors.KubeError, TimeoutError) as error:
                log.warning("cannot renew the lease yet", extra={"error": str(error)})

    async def _renew(self) -> bool:
        """False when another replica has it, or none: a Lease that is gone can be made anew by any of them."""
        held = self._seen
        try:
            for _ in range(2):  # over what we know of, then over what there is
                if held is None or held.holder != self._identity:
                    held = term(await self._kube.get(self._path, Lease, deadline=self._seconds / 4))
                    self._observe(held)
                    if held.holder != self._identity:
                        return False
                try:
                    await self._write(held, self._spec(None), deadline=self._seconds / 4)
                    break
                except errors.Conflict:
                    held = None
        except errors.NotFound:
            return False
        return True

    async def _write(self, over: Term, spec: dict[str, object], deadline: float) -> None:
        sent = self._clock()
        body = {"metadata": {"uid": over.uid, "resourceVersion": over.version}, "spec": spec}
        written = await self._kube.patch(self._path, body, Lease, deadline=deadline)
        self._observe(term(written))
        self._renewed = sent

    def _spec(self, transitions: int | None) -> dict[str, object]:
        """Ours from now on; `transitions` None: still ours."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, object] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._seconds),
            "renewTime": now,
        }
        return spec if transitions is None else spec | {"acquireTime": now, "leaseTransitions": transitions}

    async def _hand_back(self) -> None:
        """Let a standby begin at once; no harm when it does not work out."""
        held, self._renewed = self._seen, -math.inf
        if held and held.holder == self._identity:
            try:
                await self._write(held, {"holderIdentity": "", "leaseDurationSeconds": 1}, deadline=RELEASE_SECONDS)
                log.info("lease handed back")
            except errors.KubeError as error:
                log.info("lease not handed back, it will expire", extra={"error": str(error)})
            self._renewed = -math.inf
