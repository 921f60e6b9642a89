"""A real Kubernetes control plane on loopback, and stand-ins for Agent Substrate.

    from ateplace.local import ControlPlane

    with ControlPlane(nodes=20) as plane:
        print(plane.kubectl("get", "nodes"))

Used by `make run`, the tests and the benchmarks alike; never part of the image.
"""

from ateplace.local.api import ApiError
from ateplace.local.plane import ControlPlane

__all__ = ["ApiError", "ControlPlane"]
