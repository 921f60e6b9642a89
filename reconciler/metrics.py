"""What the reconciler counts."""

from typing import Final

from ateplace.process import metrics

CLAIMS_ADDED: Final = metrics.counter("claims_added_total", "Claims that the reconciler added to nodes.")
CLAIMS_RELEASED: Final = metrics.counter("claims_released_total", "Claims that the reconciler removed from nodes.")
CLAIMS_REFUSED: Final = metrics.counter(
    "claims_refused_total", "Claims that a node has no room for in its annotations."
)
LABELS_REPAIRED: Final = metrics.counter(
    "node_labels_repaired_total", "Node labels set or removed because another client had changed them."
)
NODES_CLAIMED: Final = metrics.gauge("nodes_claimed", "Nodes with at least one claim.")
ATELET_LATE: Final = metrics.gauge(
    "nodes_atelet_late", "Nodes with ateoms on which atelet has not been Ready for longer than reconciler.atelet_late."
)
RECONCILES: Final = metrics.counter("reconciles_total", "Nodes and pools reconciled, by outcome.", ("queue", "outcome"))
RECONCILE_SECONDS: Final = metrics.histogram(
    "reconcile_seconds",
    "How long one reconcile of a node or pool took.",
    (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0),
    ("queue",),
)
QUEUE_DEPTH: Final = metrics.gauge("queue_depth", "Nodes and pools waiting to be reconciled.", ("queue",))
MISSED: Final = metrics.counter(
    "missed_changes_total",
    "Differences that a full comparison found and no event had announced; anything but 0 is a bug.",
    ("what",),
)
for _what in ("watch", "nodes", "pools"):
    MISSED.labels(_what)  # from 0, or the first one would be no increase
COMPARED: Final = metrics.counter("full_comparisons_total", "Full comparisons made.")
LEADER: Final = metrics.gauge("leader", "Whether this process leads (1) or stands by (0).")
DELETIONS_WAITING: Final = metrics.gauge(
    "pool_deletions_waiting", "WorkerPools being deleted, by what they wait for.", ("awaited",)
)
DELETION_OLDEST: Final = metrics.gauge(
    "pool_deletion_oldest_seconds",
    "For how long this leader has seen the oldest deletion of a WorkerPool wait for this. Draining: for pods within "
    "their grace.",
    ("awaited",),
)
DELETION_SECONDS: Final = metrics.histogram(
    "pool_deletion_seconds",
    "From seeing a WorkerPool's deletion to removing its finalizer.",
    (0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0),
)
EVENTS_SENT: Final = metrics.counter("events_sent_total", "Kubernetes Events written.")
EVENTS_DROPPED: Final = metrics.counter("events_dropped_total", "Kubernetes Events not written.", ("reason",))
UNREADABLE_RULES: Final = metrics.gauge(
    "pools_with_unreadable_rules", "Pools none of whose ateoms are placed because a rule in an annotation is invalid."
)
NAMESPACE_NODES: Final = metrics.gauge(
    "namespace_nodes",
    "Nodes that the pools of a namespace (tenant: Prometheus has a namespace label of its own) hold together, and may "
    "hold: state held or allowed, where it has a quota.",
    ["tenant", "state"],
)
