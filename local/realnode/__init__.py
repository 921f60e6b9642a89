"""Real nodes for a local control plane: kubelet, containerd, runc and real containers, in namespaces of their own.

    from ateplace.local import ControlPlane
    from ateplace.local.realnode import RealNode

    with ControlPlane(real_nodes=True) as plane, RealNode(plane) as node:
        plane.wait(node.ready, timeout=60)

Needs Linux, root and a few Debian packages; `unfit()` says in a sentence what is missing. docs/real-node.md has the
picture.
"""

from ateplace.local.realnode.fit import unfit
from ateplace.local.realnode.node import RealNode

__all__ = ["RealNode", "unfit"]
