"""Resources that atelet itself serves (`ate.dev/kvm`): where a pod that asks for one may go (pure).

A cold node advertises none of them, and atelet, which would, comes only where there is a claim. So our scheduler
ignores these resources, and filter counts their units: a node is answered only while it advertises a free
one (a kubelet drops a request for what its node does not know, and starts the pod without the device). Where none does,
nodes that may have the device are claimed and refused; the Node's update, once atelet serves it, brings the pod back.

    cold, may have it ── claimed ── atelet Ready ── advertised ── answered
                                         └── nothing for too long: it has none, remembered for as long as we run;
                                             the reconciler releases the claim, which brings the pod back to be told

The scheduler does not count these units, so two replicas could both give the last one. A replica that does not know all
picks of a node (it did not open it, and another one has written a claim there within a linger) gives a unit only if
there are as many as all pods could take that it knows of and has not picked a node for. Else it leaves the node to the
other replica, writes nothing, and answers an error, after which the scheduler tries again.

Which nodes may have it: those that `substrate.served_nodes` selects; without that setting those of an instance type of
which some node has advertised it; else those with the label or taint `ate.dev/sandboxClass`.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from ateplace.cluster.resources import Amounts
from ateplace.cluster.state import Node
from ateplace.label_selectors import LabelSelector

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
SANDBOX_CLASS: Final = "ate.dev/sandboxClass"
SHARED: Final = "another replica may have given its units away"
"""Passes by itself: with the pods that are on their way, or a linger after the other one's last claim."""
NOTHING: Final[Mapping[str, int]] = {}


class Service(enum.Enum):
    FREE = "free"
    """It advertises enough."""
    FULL = "full"
    AWAITED = "awaited"
    """It may have it, once its atelet is there."""
    NONE = "none"
    """Its atelet was Ready for long, and served nothing."""
    UNLIKELY = "unlikely"
    """Nothing says that it has it."""
    SHARED = "shared"
    """It has some, but another replica may have given them away."""


class Wanted(Struct, frozen=True, gc=False):
    """What a pod asks for of these resources, and what is known about where they are."""

    amounts: Amounts
    selector: LabelSelector | None
    kinds: frozenset[str]
    """Instance types of which a node has advertised all of them."""
    patience: float
    """Seconds that a Ready atelet may take."""


def wanted(requests: Amounts, names: frozenset[str], selector: LabelSelector | None, patience: float,
           nodes: Iterable[Node]) -> Wanted | None:  # fmt: skip
    """None when the pod asks for none of these resources."""
    amounts = tuple((name, amount) for name, amount in requests if name in names)
    if not amounts:
        return None
    asked = {name for name, _ in amounts}
    kinds = frozenset(
        kind
        for node in nodes
        if asked <= node.advertised and node.record and (kind := node.record.labels.get(INSTANCE_TYPE))
    )
    return Wanted(amounts, selector, kinds, patience)


def judge(
    want: Wanted, node: Node, *, picked: bool, now: float, alone: bool = True, unpicked: Mapping[str, int] = NOTHING
) -> tuple[Service, str]:
    """`picked`: the pod itself is counted there already; `alone`: so is everything that is on its way there, else
    what is `unpicked` may be. The reason is empty when the node will do."""
    for name, amount in want.amounts:
        units = node.room.get(name, 0)
        if units:
            taken = node.used.get(name, 0) + (0 if picked else amount)
            if taken > units:
                return Service.FULL, f"no {name} is free"
            if not alone and taken + unpicked.get(name, 0) > units:
                return Service.SHARED, SHARED
        elif node.never_serves(name, want.patience, now):
            return Service.NONE, f"atelet was Ready there, and served no {name}"
        elif name in node.advertised or _likely(want, node):
            return Service.AWAITED, f"claimed, and waits for atelet to serve {name}" if node.claim_count else _cold(
                name
            )
        else:
            return Service.UNLIKELY, f"nothing says that it has {name}"
    return Service.FREE, ""


def _cold(name: str) -> str:
    return f"serves no {name} yet"


def _likely(want: Wanted, node: Node) -> bool:
    record = node.record
    if record is None:
        return False
    if want.selector is not None:
        return want.selector.matches(record.labels)
    if record.labels.get(INSTANCE_TYPE) in want.kinds:
        return True
    return SANDBOX_CLASS in record.labels or any(key == SANDBOX_CLASS for key, _, _ in record.taints)
