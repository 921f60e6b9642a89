"""A real Kubernetes control plane on loopback, and stand-ins for Agent Substrate.

    from local import ControlPlane

    with ControlPlane(nodes=20) as plane:
        print(plane.kubectl("get", "nodes"))

Used by `make run`, the tests and the benchmarks alike; never part of the image.
"""

from local.api import ApiError
from local.plane import ControlPlane

__all__ = ["ApiError", "ControlPlane"]
