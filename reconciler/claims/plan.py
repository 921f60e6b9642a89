"""What should become of one node's claims: a pure decision from the ledger.

    claim there, unused                claim there, used             no claim, used
    -----------------------------      ------------------------      --------------------
    idle < linger: look again then     keep; a value that is no      add it, with the label,
    a pod of the pool may be bound       time is written anew          once the pool is known
      any moment (`unbound`): look
      again soon, for `unbound_wait`
    else: release, after a read that proves it (`reconciler.claims.release`)

The label is there exactly while a claim is, and it is not taken from under ateoms, whosever they are.

A claim is added only for a WorkerPool that is there: every client that may create pods can write any UID on them. A
claim that is there stays for its pods also when the pool is gone.

A claim lingers from its last use, or from its last change if that is later. Where a pool cannot get another pod (it was
seen to go, or is being deleted and its pods are all gone), only the last change counts: no pod needs the node any more,
but an extender whose view is old does not know that, and may answer by what it wrote lately (`claims.answerable`).
While a pool being deleted still has pods, a Deployment may still replace them; and a pool that we have never seen may
be new, and our watch of pools behind that of nodes.

A claim of a pool that is gone also stays while ateoms without an owner are on the node: pods without our UID label
whose pool was deleted and its pods orphaned. Nothing says that they were that pool's, and nothing says that not.
"""

import re
from math import inf
from typing import Final

from msgspec import Struct

from ateplace import names
from ateplace.cluster.claims import ANNOTATION_BYTES, CLAIM_BYTES
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import NodeRecord
from ateplace.cluster.state import Node, Pool, PoolOnNode
from ateplace.reconciler.claims.unbound import Unbound
from ateplace.settings import Reconciler, Settings

UNBOUND_LOOK: Final = 2.0
"""Seconds between looks at a claim that only waits for unbound pods."""

TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


class Release(Struct, frozen=True):
    pool_uid: str
    value: str
    patient: bool
    """Whether unbound pods of the pool hold it back,"""
    answers: float
    """those that were not refused after this moment: the last at which an extender may have answered by it,"""
    never: frozenset[str] = frozenset()
    """and that ask for none of these: resources that the node was given up for."""


class Plan(Struct, frozen=True):
    """What to write to one Node, as it was at `version`."""

    uid: str
    version: int
    add: tuple[str, ...] = ()
    """Pools whose claim is missing or unreadable."""
    release: tuple[Release, ...] = ()
    label: bool | None = None
    """True: set it; False: remove it; None: it is right. What adding and releasing brings along is not said here."""
    last: bool = False
    """Whether no claim is left after `release`, so that the label goes too."""
    no_room: str = ""
    """Why claims that are missing cannot be added."""
    again: float | None = None
    """Seconds until something may be due."""


def decide(ledger: Ledger, unbound: Unbound, name: str, now: float, settings: Settings) -> Plan | None:
    """None when there is no such Node."""
    node = ledger.nodes.get(name)
    if node is None or node.record is None:
        return None
    times = settings.reconciler
    add: list[str] = []
    release: list[Release] = []
    again = inf
    homeless = _homeless(node)
    for uid, tenant in node.pools.items():
        pool = ledger.pools[uid]
        if ledger.claims.live(name, uid):
            missing = tenant.value is None or not readable(tenant.value)
            if missing and pool.record is not None and names.can_be_claimed_for(uid):
                add.append(uid)
        elif tenant.value is not None and not (pool.record is None and homeless):
            idle = now - max(tenant.changed, tenant.unused)
            left = linger(pool, tenant, now, times)
            patient = idle < times.linger + times.unbound_wait
            answers, never = tenant.changed + times.linger, _never_served(node, now, settings)
            if left > 0:
                again = min(again, left)
            elif patient and unbound.may_bind(pool, answers, never):
                again = min(again, UNBOUND_LOOK)
            else:
                release.append(Release(uid, tenant.value, patient, answers, never))
    no_room = ""
    if add and node.record.annotation_bytes + CLAIM_BYTES * len(add) > ANNOTATION_BYTES:
        no_room = f"its annotations hold {node.record.annotation_bytes} of {ANNOTATION_BYTES} bytes"
        add.clear()
    return Plan(
        uid=node.record.uid,
        version=node.record.version,
        add=tuple(add),
        release=tuple(release),
        label=_label(node, node.record, adding=bool(add)),
        last=bool(release) and not (add or homeless) and len(release) == node.claim_count,
        no_room=no_room,
        again=None if again == inf else again,
    )


def _never_served(node: Node, now: float, settings: Settings) -> frozenset[str]:
    """Resources that atelet would serve and this node does not have. A node is answered to a pod that asks for one only
    while it advertises it, so such a pod is not on its way here."""
    patience = settings.extender.atelet_unready_seconds
    return frozenset(name for name in settings.substrate.served if node.never_serves(name, patience, now))


def linger(pool: Pool, there: PoolOnNode, now: float, settings: Reconciler) -> float:
    """Seconds for which an unused claim of the pool still stays."""
    over = pool.gone or (pool.record is not None and pool.record.deleting and not pool.pods)
    since = there.changed if over else max(there.changed, there.unused)
    return settings.linger - (now - since)


def readable(value: str) -> bool:
    """Whether a claim's value is one that we, or agent-substrate #134, would write."""
    return not value or TIME.fullmatch(value) is not None


def _label(node: Node, record: NodeRecord, *, adding: bool) -> bool | None:
    if node.claim_count or adding:
        return None if record.labelled else True
    if names.NODE_LABEL in record.labels and not node.ateoms:
        return False
    return None


def _homeless(node: Node) -> int:
    """Ateoms here that belong to no pool we know of; at most so many, where placeholders belong to none either."""
    strangers = (
        node.ateoms
        + node.placeholders
        - sum(tenant.ateoms + tenant.placeholders + tenant.picks for tenant in node.pools.values())
    )
    return min(node.ateoms, strangers)
