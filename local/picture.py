"""The cluster as a person wants to see it, read with the plane's own client; the rest is `ateplace status`'s."""

import msgspec

from ateplace import names
from ateplace.cli.snapshot import Picture, changes, compose
from ateplace.cli.tables import draw
from ateplace.kube.objects import Node, Pod, WorkerPool
from ateplace.local.api import Api

__all__ = ["Picture", "changes", "draw", "take"]


def take(api: Api) -> Picture:
    """Read the cluster."""
    pods = msgspec.convert(api.list("/api/v1/pods"), list[Pod])
    return compose(
        msgspec.convert(api.list("/api/v1/nodes"), list[Node]),
        pods,
        [
            pod
            for pod in pods
            if pod.metadata.namespace == names.ATELET_NAMESPACE and pod.metadata.label("app") == "atelet"
        ],
        msgspec.convert(api.list("/apis/ate.dev/v1alpha1/workerpools"), list[WorkerPool]),
    )
