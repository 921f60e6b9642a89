"""Nominations: the pods behind one that was just placed are decided too, and their scheduler is told before it asks.

kube-scheduler tries `status.nominatedNodeName` before it looks at any other node, and asks us about that node alone. On
a cluster of thousands of nodes, looking at all of them for every pod is what a burst waits for.

    filter is asked ──────> for pods like this one that wait: choose, count the pick, patch their status; where many
                            wait, the answer waits until the first of these patches are acknowledged
    the scheduler asks ───> the pick is there: that node, if it is among those sent and will still do; else decide anew

The wait is what makes it work: a scheduler is quicker than writes to a busy API server, and takes one pod after the
other before their nominations have reached it. While it waits for one answer it takes none.

A nomination is a hint, never a promise, and safety does not rest on it: the node is answered by the reply rule when the
scheduler asks, as any other. Only pods that wait behind another are nominated, so that a trickle costs nothing; only
nodes that could be answered now; never a pod that is nominated already. Nothing is withdrawn by us: when the scheduler
cannot use a nomination, because the node is gone, full or refused, it takes it back itself.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from math import inf
from typing import Final

from msgspec import structs

from ateplace import errors, names
from ateplace.cluster.expiring import Expiring
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import PodRecord
from ateplace.cluster.state import Node
from ateplace.extender import metrics
from ateplace.extender.context import Case, Context, TryAgain
from ateplace.extender.demand import Demand
from ateplace.extender.filter.choose import choose
from ateplace.extender.fit import answerable, must_read
from ateplace.extender.protocol import Names
from ateplace.kube import Kube, paths
from ateplace.kube.objects import Bare

log = logging.getLogger(__name__)

TAKEN: Final = 1
"""So many of those that wait longest has the scheduler taken before it could hear of a nomination."""
MOST: Final = 256
"""Pods that are nominated and not asked about yet."""
WRITES: Final = 32
"""Patches under way at once."""
FIRST: Final = 16
"""So many nominations are waited for, where more pods than that wait."""
HOLD_SECONDS: Final = 0.5
"""For so long at most."""
WRITE_SECONDS: Final = 2.0
LIST_SECONDS: Final = 30.0
"""For how long the nodes that a scheduler sent for one pod are taken for those of the next."""
LISTS: Final = 8
PAUSE_SECONDS: Final = 60.0
"""After a nomination was forbidden."""
FAILED_SECONDS: Final = 5.0
"""After one had no answer: an API server that is so slow is not given more to do, and not waited for."""


class Nominator:
    """`least`: on clusters of so many nodes; 0: never. `claim` begins to claim nodes; `excluded` are not tried."""

    def __init__(
        self,
        kube: Kube,
        context: Context,
        ledger: Ledger,
        *,
        least: int,
        claim: Callable[[Case, Iterable[Node]], object],
        excluded: Collection[str],
    ) -> None:
        self._kube = kube
        self._context = context
        self._ledger = ledger
        self._least = least or inf
        self._claim = claim
        self._excluded = excluded
        self._lists: Expiring[tuple[str, str], Names] = Expiring(LIST_SECONDS, LISTS)
        """What was sent for the last pod of a pool and template that was not asked about alone."""
        self._writing = asyncio.Semaphore(WRITES)
        self._tasks: dict[asyncio.Task[None], None] = {}
        """Nominations that are not acknowledged yet, the oldest first."""
        self._paused_until = -inf

    async def hold(self, case: Case, sent: Names) -> bool:
        """The scheduler has looked at all these nodes for this pod. Where many wait behind it, return only when the
        first of them are nominated; whether time has passed."""
        pool = self._ledger.pools.get(case.demand.pool)
        if not (self._concerns(case) and sent.several and pool):
            return False
        if pool.pending + self._ledger.picks.nominated <= FIRST:
            return False
        self._remember(case, sent)
        self._nominate(case.demand, skip=0)
        writes = tuple(islice(self._tasks, FIRST))
        if writes:
            await asyncio.wait(writes, timeout=HOLD_SECONDS)
        return bool(writes)

    def placed(self, case: Case, sent: Names) -> None:
        """This pod is answered a node: nominate those behind it, once the answer is on its way."""
        if self._concerns(case):
            if sent.several:
                self._remember(case, sent)
            self._lists.expire(case.now)
            asyncio.get_running_loop().call_soon(self._nominate, case.demand)

    def _concerns(self, case: Case) -> bool:
        """Whether pods like this one are nominated. A pod's own preferences, and what atelet serves, are for a call
        that sends all nodes."""
        wanted = case.demand
        if wanted.placeholder or wanted.choosy or case.served or not wanted.template:
            return False
        return len(self._ledger.nodes) >= self._least

    def _remember(self, case: Case, sent: Names) -> None:
        self._lists.put((case.demand.pool, case.demand.template), sent, case.now)

    def close(self) -> None:
        """Nominate no more."""
        self._paused_until = inf
        for task in self._tasks:
            task.cancel()

    def _nominate(self, wanted: Demand, skip: int = TAKEN) -> None:
        """Nominate those that wait, but for the first few and the pod itself."""
        sent = self._lists.get((wanted.pool, wanted.template))
        pool = self._ledger.pools.get(wanted.pool)
        if sent is None or pool is None or time.monotonic() < self._paused_until or not self._context.may_claim(wanted):
            return
        for uid in tuple(islice(pool.waiting, skip, skip + MOST - self._ledger.picks.nominated)):
            pod = self._ledger.pods[uid]
            alike = pod.template == wanted.template and pod.shape == wanted.shape and not pod.terminating
            if (
                alike
                and not pod.nominated
                and uid != wanted.uid
                and not self._decide(pod, structs.replace(wanted, uid=uid, version=""), sent)
            ):
                return

    def _decide(self, pod: PodRecord, wanted: Demand, sent: Names) -> bool:
        """Whether it was nominated: to a node that could be answered now."""
        try:
            case = self._context.case(wanted)
        except TryAgain:
            return False
        choice = choose(case, sent, excluded=self._excluded, full=False)
        if choice is None:
            return False
        node = choice.node
        ready = answerable(case, node) and not must_read(case, node)
        self._claim(case, choice.ahead if ready else (node, *choice.ahead))
        if ready:
            self._ledger.picks.assume(wanted.uid, wanted.pool, node.name, wanted.shape, nominated=True, now=case.now)
            task = asyncio.get_running_loop().create_task(self._write(pod, node.name))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)
        return ready

    async def _write(self, pod: PodRecord, node: str) -> None:
        body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
        try:
            async with self._writing:
                if not self._is_nominated(pod.uid):
                    return  # the scheduler was quicker
                path = paths.PODS.status(pod.name, pod.namespace)
                await self._kube.patch(path, body, Bare, query=names.FIELD_MANAGER, deadline=WRITE_SECONDS)
        except (errors.KubeError, TimeoutError) as error:
            refused = isinstance(error, errors.Refused)
            if isinstance(error, errors.Forbidden):
                self._pause(PAUSE_SECONDS)
                log.warning("nominating is forbidden", extra={"pod": pod.key, "reason": str(error)})
            elif not refused:
                self._pause(FAILED_SECONDS)
            metrics.NOMINATIONS.labels("refused" if refused else "failed").inc()
            if self._is_nominated(pod.uid):
                self._ledger.picks.forget(pod.uid)
        else:
            metrics.NOMINATIONS.labels("written").inc()

    def _pause(self, seconds: float) -> None:
        self._paused_until = max(self._paused_until, time.monotonic() + seconds)

    def _is_nominated(self, uid: str) -> bool:
        attempt = self._ledger.picks.attempts.get(uid)
        return attempt is not None and attempt.nominated
