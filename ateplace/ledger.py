"""The ledger: who is where, which claims exist and in which state, what is in flight.

Pure: no I/O, no clock (every verb that needs the time is given a monotonic one), confined to one event loop. It is
filled by `ateplace.view` from the watches, by the extender with its picks and by whoever writes a claim with the API
server's acknowledgement. It can be rebuilt from the API at any time; only picks in flight are memory of our own.

The life of one claim (one pool on one node):

               acknowledge / node_seen               pod_seen there             last pod_gone
      NONE ------------------------------> FRESH ----------------> HELD -----------------------> LINGERING
       ^                                     |                      ^   acknowledge (a touch)      |
       |                                     |                      +------- then pod_seen --------+
       +---- node_seen without the key ------+------------------------------------------------------+

The life of one pick (one unbound pod that was answered with a node):

      assume -----> counted against the node's room and its pool's pending pods
        |   pod_seen bound, here or elsewhere ....... the pod itself counts from now on
        |   pod_gone, or pod_seen finished .......... dropped
        |   forget .................................. dropped (we could not answer after all)
        |   failed .................................. dropped; the node is remembered as the last choice for this pod
        +-- EXPIRY seconds later .................... dropped (the scheduler gives up binding after 600 s); sooner
                                                      (UNSEEN) if the watch has never shown the pod: it may be gone

Rules that everything else leans on:

- A pod holds its pool's claim on its node from the moment our watch shows it bound there until the object is gone;
  Succeeded and Failed ones hold nothing, Terminating ones do. A placeholder holds it only while its pool is known to
  be there and `warm`.
- A pod without our UID label belongs to the pool that has its namespace and name now, or to none. One with the label of
  a pool in another namespace is forged, and belongs to none: pools are nobody's outside their namespace.
- A node's events are ordered by resourceVersion, so an event older than an acknowledged write cannot undo it; another
  uid under the same name is another node, about which nothing that was written or read before is true.
- A node is our own while this process opened it and every claim on it is one that this process wrote. Others keep off
  such a node until its atelet is there (`extender.rules`), so all that is on its way to it is among our picks.
- Every verb is O(1) in the number of nodes, pods and pools, except those about a whole node or pool (node_gone,
  pool_seen, pool_gone), which are linear in what that node or pool has. Entries go when nothing speaks for them.
"""

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Final

from ateplace.entries import Attempt, Node, Pool, Reading, State, Tenant
from ateplace.records import AteletRecord, NodeRecord, PodRecord, PoolRecord
from ateplace.resources import Shape

EXPIRY: Final = 600.0
UNSEEN: Final = 60.0
REFUSED: Final = 300.0
"""The scheduler itself tries a refused pod again after five minutes, whatever happens."""
READ: Final = 60.0
"""For how long what was read of a node's other pods is believed, and kept."""
AVOIDED: Final = 8
"""How many nodes that failed a pod are remembered for it."""


Listener = Callable[[str], None]


class Ledger:
    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.pools: dict[str, Pool] = {}
        self.pods: dict[str, PodRecord] = {}
        """Live pods by UID."""
        self.claimed: dict[str, Node] = {}
        """Nodes with at least one claim."""
        self.attempts: dict[str, Attempt] = {}
        """By pod UID, oldest first."""
        self.generation = 0
        """Changes with everything that a decision about a pod can depend on, but for the time."""
        self.adrift = Node("")
        """What unbound pods without a pick of ours count for: another process may have answered any of them."""
        self._named: dict[tuple[str, str], str] = {}
        self._unlabelled: dict[tuple[str, str], set[str]] = {}
        self._adopted: dict[str, str] = {}
        self._unproven: dict[str, set[str]] = {}
        """Pool UID to the pods that carry it and came before the pool itself."""
        self._unseen: dict[str, float] = {}
        """When pods that the watch has not shown were picked a node, oldest first."""
        self._next_look = -inf
        self._refused: dict[str, float] = {}
        """When unbound pods were last refused all nodes, oldest first."""
        self._read: dict[str, float] = {}
        """When nodes were read, oldest first."""
        self._forged: set[str] = set()
        self._atelets: dict[str, str] = {}
        self._on_node: list[Listener] = []
        self._on_pool: list[Listener] = []

    def subscribe(self, *, node: Listener | None = None, pool: Listener | None = None) -> None:
        """Call `node` with a node's name, `pool` with a pool's UID, after anything about it changed."""
        if node:
            self._on_node.append(node)
        if pool:
            self._on_pool.append(pool)

    # What the watches show.

    def node_seen(self, record: NodeRecord, now: float) -> None:
        self.expire(now)
        node = self._node(record.name)
        if node.record is None or not _same_node(node.record, record):
            self.generation += 1
        if node.record is None:
            self._forgive(inf)  # it may be what they waited for
        if node.record and node.record.uid != record.uid:
            self._disown(node, now)
        node.record = record
        node.room = dict(record.allocatable)
        if node.own and not self.is_ours(record.name, record.claims):
            self._share(node)
        for pool, tenant in list(node.tenants.items()):
            if pool not in record.claims:
                if tenant.value is not None and record.version >= tenant.version:
                    self._set_claim(node, pool, tenant, None, now)
            elif not record.labelled and record.version >= tenant.version:
                tenant.sent = -inf
        for pool, value in record.claims.items():
            tenant = self._tenant(node, pool)
            if tenant.value != value and record.version >= tenant.version:
                self._set_claim(node, pool, tenant, value, now)
        node.weigh()
        self._tell_node(record.name)

    def node_gone(self, name: str, now: float) -> None:
        node = self.nodes.get(name)
        if node:
            self.generation += 1
            self._disown(node, now)
            node.record = None
            node.weigh()
            self._drop_node(node)
            self._tell_node(name)

    def pod_seen(self, record: PodRecord, now: float) -> None:
        self.expire(now)
        self._unseen.pop(record.uid, None)
        old = self.pods.get(record.uid)
        if old and not record.finished and _same_place(old, record):
            self.pods[record.uid] = record
            return
        if old:
            self._unfile(old, now)
        attempt = self.attempts.get(record.uid)
        if attempt and (record.node or record.finished):
            self._unpick(record.uid, attempt)
        if not record.finished:
            self._file(record)

    def pod_gone(self, uid: str, now: float) -> None:
        record = self.pods.get(uid)
        if record:
            self._unfile(record, now)
        attempt = self.attempts.get(uid)
        if attempt:
            self._unpick(uid, attempt)

    def pool_seen(self, record: PoolRecord, now: float) -> None:
        self.generation += 1
        pool = self._pool(record.uid)
        if pool.record is None:
            self._disbelieve(record, now)
            pool = self._pool(record.uid)
        was_warm, pool.record = pool.warm, record
        key = (record.namespace, record.name)
        if self._named.get(key) != record.uid:
            self._named[key] = record.uid
            self._readopt(key, now)
        if was_warm and not pool.warm:
            self._cool(pool, now)
        if was_warm != pool.warm:
            for name in tuple(pool.nodes):
                self._tell_node(name)
        self._tell_pool(record.uid)

    def pool_gone(self, uid: str, now: float) -> None:
        pool = self.pools.get(uid)
        if not pool or not pool.record:
            return
        self.generation += 1
        key = (pool.record.namespace, pool.record.name)
        if pool.warm:
            self._cool(pool, now)
        pool.record = None
        if self._named.get(key) == uid:
            del self._named[key]
            self._readopt(key, now)
        for name in tuple(pool.nodes):
            self._tell_node(name)
        self._tell_pool(uid)
        self._drop_pool(pool)

    def atelet_seen(self, record: AteletRecord, now: float) -> None:
        self.generation += 1
        before = self._atelets.get(record.uid)
        if before is not None and before != record.node:
            self.atelet_gone(record.uid, now)
        self._atelets[record.uid] = record.node
        node = self._node(record.node)
        node.atelets[record.uid] = record
        node.review_atelets(now)
        self._tell_node(record.node)

    def atelet_gone(self, uid: str, now: float) -> None:
        name = self._atelets.pop(uid, None)
        if name is not None:
            self.generation += 1
            node = self.nodes[name]
            del node.atelets[uid]
            node.review_atelets(now)
            self._tell_node(name)
            self._drop_node(node)

    # What we did.

    def sending(self, name: str, pool_uid: str, value: str, *, opening: bool) -> None:
        """This process is about to write a claim: what it says, to tell it from what others write.

        `opening`: the write is refused unless the node has no claim of anybody's.
        """
        node = self.nodes.get(name)
        if node and (opening or node.own):
            node.wrote[pool_uid] = value

    def acknowledge(
        self,
        name: str,
        node_uid: str,
        pool_uid: str,
        *,
        value: str,
        version: int,
        sent: float,
        now: float,
        opened: bool = False,
    ) -> None:
        """The API server took a write of the claim (and the label) that was sent at `sent`. `opened`: there was no
        claim on the node before it."""
        node = self.nodes.get(name)
        if node is None or node.record is None or node.record.uid != node_uid:
            return
        if node.record.version >= version and not (node.record.labelled and pool_uid in node.record.claims):
            return  # the watch was quicker, and shows that somebody has undone it since
        self.generation += 1
        tenant = self._tenant(node, pool_uid)
        if tenant.version <= version:
            if tenant.value != value and node.record.version < version:
                self._set_claim(node, pool_uid, tenant, value, now)
            tenant.sent, tenant.version = max(tenant.sent, sent), version
        if opened and (node.record.version < version or self.is_ours(name, node.record.claims)):
            node.own = True
        self._tell_node(name)

    def read(self, name: str, node_uid: str, reading: Reading) -> None:
        """Somebody listed the pods of a node."""
        node = self.nodes.get(name)
        if node and node.record and node.record.uid == node_uid:
            self.generation += 1
            node.reading = reading
            self._read.pop(name, None)
            self._read[name] = reading.at

    def unread(self, name: str) -> None:
        """What was read about a node is about to change: somebody is preempted there."""
        node = self.nodes.get(name)
        if node:
            self.generation += 1
            node.reading = None

    def assume(
        self,
        pod_uid: str,
        pool_uid: str,
        name: str,
        shape: Shape,
        *,
        placeholder: bool = False,
        version: str = "",
        now: float,
    ) -> None:
        """Count this pod on that node until the watch knows better. A pod has one pick at most."""
        self.expire(now)
        self._unseen.pop(pod_uid, None)
        attempt = self.attempts.pop(pod_uid, None)
        if attempt:
            self._uncount(pod_uid, attempt)
        pod = self.pods.get(pod_uid)
        if pod and pod.node:
            return
        self.generation += 1
        avoid = attempt.avoid if attempt else ()
        attempt = Attempt(pool_uid, name, shape, placeholder, version, now, avoid)
        self.attempts[pod_uid] = attempt
        node = self._node(name)
        self._tenant(node, pool_uid).picks += 1
        self._pool(pool_uid).picks += 1
        node.load(shape, placeholder=placeholder, times=1)
        if pod:
            self._pardon(pod_uid)
            self._drift(pod, -1)
            self._expect(pod, self._owner(pod), -1)
        else:
            self._unseen[pod_uid] = now

    def refused(self, pod_uid: str, now: float) -> None:
        """The pod was refused all nodes: nothing need be opened for it until something changes."""
        pod = self.pods.get(pod_uid)
        if pod and self.is_adrift(pod_uid):
            if self._refused.pop(pod_uid, None) is None:
                self._expect(pod, self._owner(pod), -1)
            self._refused[pod_uid] = now

    def expire(self, now: float) -> None:
        """Drop the picks that nobody has spoken of for too long, and what was read long ago. Costs a look at the
        oldest, once a second."""
        if now < self._next_look:
            return
        self._next_look = now + 1.0
        self._forgive(now)
        self._unlearn(now)
        while self._unseen:
            pod_uid, at = next(iter(self._unseen.items()))
            if now - at < UNSEEN:
                break
            del self._unseen[pod_uid]
            if attempt := self.attempts.get(pod_uid):
                self._unpick(pod_uid, attempt)
        while self.attempts:
            pod_uid, oldest = next(iter(self.attempts.items()))
            if now - oldest.at < EXPIRY:
                return
            self._unpick(pod_uid, oldest)

    def forget(self, pod_uid: str) -> None:
        """The pick was not answered after all."""
        attempt = self.attempts.get(pod_uid)
        if attempt and attempt.avoid:
            self._uncount(pod_uid, attempt)
            attempt.node = ""
        elif attempt:
            self._unpick(pod_uid, attempt)

    def failed(self, pod_uid: str) -> None:
        """The pod came back unbound: its last node did not work out and becomes its last choice."""
        attempt = self.attempts.get(pod_uid)
        if attempt and attempt.node:
            attempt.avoid = (*(name for name in attempt.avoid if name != attempt.node), attempt.node)[-AVOIDED:]
            self._uncount(pod_uid, attempt)
            attempt.node = ""

    # Questions.

    def pool_named(self, namespace: str, name: str) -> Pool | None:
        """The live pool of that name."""
        uid = self._named.get((namespace, name))
        return self.pools[uid] if uid else None

    def pool_of(self, record: PodRecord) -> str:
        """The UID of the pool that a pod belongs to; empty when none is known."""
        if not record.pool_uid:
            return self._named.get((record.namespace, record.pool), "")
        if record.uid in self._forged:
            return ""
        pool = self.pools.get(record.pool_uid)
        known = pool.record if pool else None
        return "" if known and known.namespace != record.namespace else record.pool_uid

    def is_ours(self, name: str, claims: Mapping[str, str]) -> bool:
        """Whether each of a node's claims says what this process wrote there, last or (while it is ours) before."""
        node = self.nodes.get(name)
        return node is not None and all(
            value == node.wrote.get(pool) or (node.own and pool in node.tenants and value == node.tenants[pool].value)
            for pool, value in claims.items()
        )

    def is_adrift(self, pod_uid: str) -> bool:
        """Whether the pod is one of those that `adrift` counts."""
        pod = self.pods.get(pod_uid)
        return pod is not None and not pod.node and not self._picked(pod_uid)

    def in_flight(self) -> int:
        """How many pods have a pick: attempts that failed have none."""
        return sum(pool.picks for pool in self.pools.values())

    def waits(self, pool_uid: str, shape: Shape, *, placeholder: bool) -> bool:
        """Whether such a pod of the pool was refused all nodes lately. Linear in the pods that were."""
        refused = (self.pods[uid] for uid in self._refused)
        return any(
            pod.shape == shape and pod.placeholder is placeholder and self._owner(pod) == pool_uid for pod in refused
        )

    def live(self, name: str, pool_uid: str) -> int:
        """How many pods hold (or would hold) this pool's claim on that node."""
        pool = self.pools.get(pool_uid)
        tenant = pool.nodes.get(name) if pool else None
        return tenant.holders(warm=pool.warm) if pool and tenant else 0

    def state(self, name: str, pool_uid: str) -> State:
        pool = self.pools.get(pool_uid)
        tenant = pool.nodes.get(name) if pool else None
        if pool is None or tenant is None or tenant.value is None:
            return State.NONE
        if tenant.holders(warm=pool.warm):
            return State.HELD
        return State.LINGERING if tenant.unused > tenant.changed else State.FRESH

    def idle(self, name: str, pool_uid: str, now: float) -> float | None:
        """Seconds that the claim has been unused *and* unchanged, as this process watched it; None when it is in use
        or there is none."""
        if self.state(name, pool_uid) not in {State.FRESH, State.LINGERING}:
            return None
        tenant = self.pools[pool_uid].nodes[name]
        return now - max(tenant.changed, tenant.unused)

    def answerable(self, name: str, pool_uid: str, now: float, window: float) -> bool:
        """The reply rule: the claim is Held with the label in place, or this process wrote it within `window`.

        Why the cached state is good enough: a Held claim was held at most `stale_after` ago (else the view is stale
        and nothing is answered), and the reconciler takes an unheld claim away only after a linger that is longer,
        and not while a pod of the pool is unbound. A write of our own is timed from before it was sent, and the
        linger runs from after it, so within half a linger it is still there.
        """
        node = self.nodes.get(name)
        tenant = node.tenants.get(pool_uid) if node else None
        if node is None or tenant is None or tenant.value is None or node.record is None:
            return False
        if now - tenant.sent < window:
            return True
        return node.record.labelled and pool_uid in node.record.claims and self.live(name, pool_uid) > 0

    def missing(self, name: str) -> Iterator[str]:
        """Pools that have live pods on a node and no claim there."""
        node = self.nodes.get(name)
        for uid, tenant in node.tenants.items() if node else ():
            if tenant.value is None and tenant.holders(warm=self.pools[uid].warm):
                yield uid

    # Inside.

    def _node(self, name: str) -> Node:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name)
        return node

    def _pool(self, uid: str) -> Pool:
        pool = self.pools.get(uid)
        if pool is None:
            pool = self.pools[uid] = Pool(uid)
        return pool

    def _tenant(self, node: Node, pool_uid: str) -> Tenant:
        tenant = node.tenants.get(pool_uid)
        if tenant is None:
            tenant = node.tenants[pool_uid] = self._pool(pool_uid).nodes[node.name] = Tenant()
        return tenant

    def _drop_tenant(self, node: Node, pool_uid: str, tenant: Tenant) -> None:
        if tenant.empty():
            del node.tenants[pool_uid]
            pool = self.pools[pool_uid]
            del pool.nodes[node.name]
            self._drop_pool(pool)
            self._drop_node(node)

    def _drop_pool(self, pool: Pool) -> None:
        if not (pool.record or pool.nodes or pool.pods or pool.picks):
            self.pools.pop(pool.uid, None)

    def _drop_node(self, node: Node) -> None:
        if not (node.record or node.tenants or node.atelets or node.pods):
            self.nodes.pop(node.name, None)

    def _set_claim(self, node: Node, pool_uid: str, tenant: Tenant, value: str | None, now: float) -> None:
        node.claims += (value is not None) - (tenant.value is not None)
        tenant.value, tenant.changed = value, now
        if value is None:
            tenant.sent, tenant.version = -inf, 0
            self._drop_tenant(node, pool_uid, tenant)
        if node.claims:
            self.claimed[node.name] = node
        else:
            self.claimed.pop(node.name, None)
            self._share(node)
            node.review_atelets(now)
        self._tell_pool(pool_uid)

    def _disown(self, node: Node, now: float) -> None:
        """The Node object is gone: its claims, our writes to it and what we read about it went with it."""
        node.reading = None
        self._share(node)
        for pool, tenant in list(node.tenants.items()):
            if tenant.value is not None:
                self._set_claim(node, pool, tenant, None, now)

    def _file(self, record: PodRecord) -> None:
        self.generation += 1
        self.pods[record.uid] = record
        pool_uid = self.pool_of(record)
        if record.pool_uid and not pool_uid:
            self._forged.add(record.uid)
        elif record.pool_uid and (pool_uid not in self.pools or self.pools[pool_uid].record is None):
            self._unproven.setdefault(pool_uid, set()).add(record.uid)
        if not record.pool_uid:
            self._unlabelled.setdefault((record.namespace, record.pool), set()).add(record.uid)
            self._adopted[record.uid] = pool_uid
        if record.node:
            self._node(record.node).load(record.shape, placeholder=record.placeholder, times=1)
        elif not self._picked(record.uid):
            self._drift(record, 1)
        self._join(record, pool_uid)

    def _unfile(self, record: PodRecord, now: float) -> None:
        self.generation += 1
        del self.pods[record.uid]
        pool_uid = self._owner(record)
        self._forged.discard(record.uid)
        if unproven := self._unproven.get(record.pool_uid):
            unproven.discard(record.uid)
            if not unproven:
                del self._unproven[record.pool_uid]
        if not record.pool_uid:
            key = (record.namespace, record.pool)
            self._unlabelled[key].discard(record.uid)
            if not self._unlabelled[key]:
                del self._unlabelled[key]
            del self._adopted[record.uid]
        self._leave(record, pool_uid, now)
        self._refused.pop(record.uid, None)
        if record.node:
            node = self.nodes[record.node]
            node.load(record.shape, placeholder=record.placeholder, times=-1)
            self._drop_node(node)
        elif not self._picked(record.uid):
            self._drift(record, -1)

    def _join(self, record: PodRecord, pool_uid: str) -> None:
        if not pool_uid:
            self._tell_node(record.node)
            return
        pool = self._pool(pool_uid)
        pool.pods += 1
        if not record.node:
            pool.unbound += 1
            pool.unbound_placeholders += record.placeholder
            if not self._picked(record.uid):
                self._expect(record, pool_uid, 1)
        else:
            tenant = self._tenant(self._node(record.node), pool_uid)
            if record.placeholder:
                tenant.placeholders += 1
            else:
                tenant.ateoms += 1
            self._tell_node(record.node)
        self._tell_pool(pool_uid)

    def _leave(self, record: PodRecord, pool_uid: str, now: float) -> None:
        if not pool_uid:
            self._tell_node(record.node)
            return
        pool = self.pools[pool_uid]
        pool.pods -= 1
        if not record.node:
            pool.unbound -= 1
            pool.unbound_placeholders -= record.placeholder
            if not self._picked(record.uid):
                self._expect(record, pool_uid, -1)
        else:
            node = self.nodes[record.node]
            tenant = node.tenants[pool_uid]
            held = tenant.holders(warm=pool.warm)
            if record.placeholder:
                tenant.placeholders -= 1
            else:
                tenant.ateoms -= 1
            if held and not tenant.holders(warm=pool.warm):
                tenant.unused = now
            self._drop_tenant(node, pool_uid, tenant)
            self._tell_node(record.node)
        self._tell_pool(pool_uid)
        self._drop_pool(pool)

    def _cool(self, pool: Pool, now: float) -> None:
        """Its placeholders hold nothing from now on."""
        for tenant in pool.nodes.values():
            if tenant.placeholders and not tenant.ateoms:
                tenant.unused = now

    def _readopt(self, key: tuple[str, str], now: float) -> None:
        """Another pool has this name now, or none: pods without the UID label move."""
        for uid in self._unlabelled.get(key, ()):
            record = self.pods[uid]
            self._leave(record, self._adopted[uid], now)
            self._adopted[uid] = self.pool_of(record)
            self._join(record, self._adopted[uid])

    def _disbelieve(self, pool: PoolRecord, now: float) -> None:
        """A pool that pods spoke of is seen at last: those in other namespaces lied."""
        for uid in self._unproven.pop(pool.uid, ()):
            record = self.pods[uid]
            if record.namespace != pool.namespace:
                self._leave(record, pool.uid, now)
                self._forged.add(record.uid)
                self._join(record, "")

    def _unpick(self, pod_uid: str, attempt: Attempt) -> None:
        del self.attempts[pod_uid]
        self._unseen.pop(pod_uid, None)
        self._uncount(pod_uid, attempt)

    def _uncount(self, pod_uid: str, attempt: Attempt) -> None:
        if not attempt.node:
            return
        self.generation += 1
        pod = self.pods.get(pod_uid)
        if pod and not pod.node:
            self._drift(pod, 1)
            self._expect(pod, self._owner(pod), 1)
        node = self.nodes[attempt.node]
        pool = self.pools[attempt.pool]
        tenant = node.tenants[attempt.pool]
        tenant.picks -= 1
        pool.picks -= 1
        node.load(attempt.shape, placeholder=attempt.placeholder, times=-1)
        self._drop_tenant(node, attempt.pool, tenant)
        self._drop_pool(pool)
        self._drop_node(node)

    def _picked(self, pod_uid: str) -> bool:
        attempt = self.attempts.get(pod_uid)
        return attempt is not None and bool(attempt.node)

    def _owner(self, pod: PodRecord) -> str:
        """The UID of the pool that a filed pod is counted for; empty when it is none."""
        if pod.uid in self._forged:
            return ""
        return pod.pool_uid or self._adopted[pod.uid]

    def _expect(self, pod: PodRecord, pool_uid: str, times: int) -> None:
        """Count an unbound pod without a pick among those that nodes are opened for, or no longer."""
        if pool_uid and not pod.placeholder and pod.uid not in self._refused:
            self.pools[pool_uid].pending += times

    def _pardon(self, pod_uid: str) -> None:
        if self._refused.pop(pod_uid, None) is not None:
            pod = self.pods[pod_uid]
            self._expect(pod, self._owner(pod), 1)

    def _forgive(self, now: float) -> None:
        """Those that were refused long enough ago are expected again."""
        while self._refused:
            pod_uid, at = next(iter(self._refused.items()))
            if now - at < REFUSED:
                return
            self._pardon(pod_uid)

    def _unlearn(self, now: float) -> None:
        """What was read long ago, an entry for every pod of a node, is believed no more."""
        while self._read:
            name, at = next(iter(self._read.items()))
            if now - at < READ:
                return
            del self._read[name]
            if node := self.nodes.get(name):
                node.reading = None

    def _drift(self, pod: PodRecord, times: int) -> None:
        self.adrift.load(pod.shape, placeholder=pod.placeholder, times=times)

    def _share(self, node: Node) -> None:
        node.own = False
        node.wrote.clear()

    def _tell_node(self, name: str) -> None:
        if name:
            for listener in self._on_node:
                listener(name)

    def _tell_pool(self, uid: str) -> None:
        for listener in self._on_pool:
            listener(uid)


def _same_node(old: NodeRecord, new: NodeRecord) -> bool:
    """Whether an update, a heartbeat for instance, changed nothing but the version."""
    return (
        old.uid == new.uid
        and old.labelled is new.labelled
        and old.claims == new.claims
        and old.labels == new.labels
        and old.taints == new.taints
        and old.allocatable == new.allocatable
        and old.slots == new.slots
        and old.annotation_bytes == new.annotation_bytes
        and old.deleting is new.deleting
    )


def _same_place(old: PodRecord, new: PodRecord) -> bool:
    """Whether an update changed nothing that is counted."""
    return (
        old.node == new.node
        and old.pool_uid == new.pool_uid
        and old.pool == new.pool
        and old.shape is new.shape
        and old.placeholder is new.placeholder
    )
