"""Nodes that do not take our writes, or that others write to all the time."""

import contextlib
import itertools
import threading
import uuid
from collections.abc import Callable, Iterator

from ateplace.local import ApiError, ControlPlane


@contextlib.contextmanager
def untouchable(plane: ControlPlane, node: str) -> Iterator[None]:
    """Somebody's policy refuses every change of this Node's annotations."""
    kind = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
    expression = "object.metadata.?annotations == oldObject.metadata.?annotations"
    spec = {
        "matchConstraints": {"resourceRules": [{**rule, "resourceNames": [node]}]},
        "validations": [{"expression": expression, "message": "hands off"}],
    }
    binding = {"policyName": node, "validationActions": ["Deny"]}
    plane.api.post(f"{kind}ies", {"metadata": {"name": node}, "spec": spec})
    plane.api.post(f"{kind}ybindings", {"metadata": {"name": node}, "spec": binding})
    try:

        def refused() -> bool:
            try:
                note = {"metadata": {"annotations": {"example.com/try": uuid.uuid4().hex}}}
                plane.api.patch(f"/api/v1/nodes/{node}", note, dryRun="All")
            except ApiError:
                return True
            return False

        plane.wait(refused, why="the policy to be in force")
        yield
    finally:
        plane.api.delete(f"{kind}ybindings/{node}")
        plane.api.delete(f"{kind}ies/{node}")


@contextlib.contextmanager
def meddling(plane: ControlPlane, node: str) -> Iterator[Callable[[], int]]:
    """Somebody writes to the Node as fast as the API server lets them; how often so far."""
    count, stop = itertools.count(1), threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            number = next(count)
            note = {"metadata": {"annotations": {"example.com/stamp": str(number)}}}
            plane.api.patch(f"/api/v1/nodes/{node}", note)
            written = number

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: written
    finally:
        stop.set()
        for thread in threads:
            thread.join()
