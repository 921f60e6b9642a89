"""Every name that ateplace shares with a cluster, in one place.

They are compatible with agent-substrate #134. The ones an installation may have to change are defaults of
`ateplace.settings.Substrate`; the rest are constants.
"""

import re
from typing import Final

GROUP: Final = "ate.dev"
POOL_VERSION: Final = "v1alpha1"
POOL_KIND: Final = "WorkerPool"
POOL_PLURAL: Final = "workerpools"

POOL_LABEL: Final = "ate.dev/worker-pool"
"""On every ateom pod, set upstream: the name of its WorkerPool."""
POOL_UID_LABEL: Final = "ate.dev/worker-pool-uid"
"""On every ateom pod, set by our webhook from the live WorkerPool."""
PLACEHOLDER_LABEL: Final = "ateplace.ate.dev/placeholder"
"""On every placeholder pod: the name of its WorkerPool."""

NODE_LABEL: Final = "ate.dev/atelet"
"""On a Node, with the value "true", exactly while it carries at least one claim."""
CLAIM_PREFIX: Final = "ate.dev/claim."
"""A Node's annotation `ate.dev/claim.<WorkerPool UID>`; its value is an RFC 3339 time, or empty."""
FINALIZER: Final = "ate.dev/release-node-claims"
FIELD_MANAGER: Final = {"fieldManager": "ateplace"}
"""As a query: the owner of the fields that we write."""
ZONE_LABEL: Final = "topology.kubernetes.io/zone"

HEADROOM_ANNOTATION: Final = "ateplace.ate.dev/headroom"
HEADROOM_WARM_ANNOTATION: Final = "ateplace.ate.dev/headroom-warm"
MIN_NODES_ANNOTATION: Final = "ateplace.ate.dev/min-nodes"
MAX_PER_NODE_ANNOTATION: Final = "ateplace.ate.dev/max-per-node"
SAME_ANNOTATION: Final = "ateplace.ate.dev/same"
"""On a WorkerPool (`ateplace.cluster.pool_rules`)."""
MAX_NODES_ANNOTATION: Final = "ateplace.ate.dev/max-nodes"
MAX_HEADROOM_ANNOTATION: Final = "ateplace.ate.dev/max-headroom"
"""On a Namespace (the same module)."""

INIT_CONTAINER: Final = "wait-for-atelet"
ATELET_NAMESPACE: Final = "ate-system"
ATELET_PORT: Final = 8085
KVM: Final = "ate.dev/kvm"
"""The extended resource that microvm ateoms ask for, and atelet serves."""

NAMESPACE: Final = "ateplace-system"
ATEOM_PRIORITY_CLASS: Final = "ateplace-ateom"
PLACEHOLDER_PRIORITY_CLASS: Final = "ateplace-placeholder"
SCHEDULER: Final = "ateplace-scheduler"
WEBHOOK_CONFIGURATION: Final = "ateplace"
WEBHOOK_SERVICE: Final = "ateplace-webhook"
EXTENDER_SERVICE: Final = "ateplace-extender"
EXTENDER_CLIENT: Final = "ateplace-scheduler"
"""The common name, and the DNS name, of the client certificate that the extender accepts."""

CA_CERTIFICATE: Final = "ateplace-ca"
"""The Secret with the authority's key, for the reconciler's leader alone; each of the others is mounted by its role."""
WEBHOOK_CERTIFICATE: Final = "ateplace-webhook-tls"
EXTENDER_CERTIFICATE: Final = "ateplace-extender-tls"
SCHEDULER_CERTIFICATE: Final = "ateplace-scheduler-client"
TRUST_ANNOTATION: Final = "ateplace.ate.dev/trusts"
"""On the scheduler's pod template: which authorities it has read. A change of it restarts the scheduler."""


CLAIM_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,55}[A-Za-z0-9])?", re.ASCII)
"""A pool UID that can be part of an annotation's key: with "claim." it has at most 63 characters."""


def can_be_claimed_for(pool_uid: str) -> bool:
    """Whether the API would take a claim of this pool. It refuses the whole patch for one key that it does not take."""
    return CLAIM_NAME.fullmatch(pool_uid) is not None


def claim_key(pool_uid: str) -> str:
    """The annotation that says, on a Node, that the pool with this UID needs atelet there."""
    return CLAIM_PREFIX + pool_uid


def claimed_pool(annotation: str) -> str | None:
    """The pool UID of a claim annotation's key; None when the key is not a claim."""
    return annotation[len(CLAIM_PREFIX) :] if annotation.startswith(CLAIM_PREFIX) else None
