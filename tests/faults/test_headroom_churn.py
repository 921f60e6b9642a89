"""Five minutes of churn under two schedulers: placeholders give way and come back, and nobody chases anybody."""

import random
import re
import time
from collections import Counter

import httpx
import pytest

from ateplace import names
from ateplace.local import ControlPlane, substrate
from ateplace.local.api import ApiError
from ateplace.local.burst import SLOT, Stage
from ateplace.local.pods import Installation
from ateplace.local.scene import OVERLAY
from ateplace.local.witness import Witness

SECONDS = 300.0
ORDINARY = 6
"""Most ordinary pods, of one slot each, that the default scheduler has to place."""


def preemptions(plane: ControlPlane, namespace: str) -> Counter[str]:
    """How often each pod was preempted, by name."""
    found: Counter[str] = Counter()
    for event in plane.api.list(f"/api/v1/namespaces/{namespace}/events", fieldSelector="reason=Preempted"):
        found[event["involvedObject"]["name"]] += (event.get("series") or {}).get("count", 1)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_but_placeholders_is_preempted_and_no_loop_starts() -> None:
    dice = random.Random(7)  # noqa: S311
    with ControlPlane(start_delay=0.2) as plane:
        substrate.install(plane)
        installed = Installation(plane, OVERLAY, reconciler__linger=20)
        installed.start()
        with Witness(plane) as witness:
            stage = Stage(plane, "churn")
            stage.set_up(headroom=8, free=24)
            came, ordinary, ateoms = 0, set[str](), 0
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                if dice.random() < 0.5:
                    wanted = dice.randrange(0, 17)
                    came += max(0, wanted - ateoms)
                    ateoms = wanted
                elif len(ordinary) < ORDINARY and dice.random() < 0.6:
                    name = f"other-{came}"
                    container = {"name": "c", "image": "registry.example/c:1", "resources": {"requests": SLOT}}
                    body = {"metadata": {"name": name}, "spec": {"containers": [container]}}
                    plane.api.post("/api/v1/namespaces/churn/pods", body)
                    ordinary.add(name)
                    came += 1
                elif ordinary:
                    name = ordinary.pop()
                    plane.api.delete(f"/api/v1/namespaces/churn/pods/{name}", {"gracePeriodSeconds": 0})
                stage.scale_and_wait(ateoms, timeout=60)
                time.sleep(dice.uniform(0.2, 2.0))
            stage.scale(0)
            for name in ordinary:
                plane.api.delete(f"/api/v1/namespaces/churn/pods/{name}", {"gracePeriodSeconds": 0})
            stage.wait(lambda seen: (seen.placeholders, seen.pending) == (8, 0), "all placeholders to be back")
            settled = gave_way(installed)
            quiet = {pod["metadata"]["uid"] for pod in placeholders(plane)}
            time.sleep(10)
            assert {pod["metadata"]["uid"] for pod in placeholders(plane)} == quiet
            assert gave_way(installed) == settled
            victims = preemptions(plane, "churn")
            print(f"\n{came} pods came, {settled:.0f} placeholders gave way, {len(victims)} of them to a scheduler")
            assert all(name.startswith("web-headroom-") for name in victims), victims
            assert 0 < settled <= came
            assert witness.violations() == []
            stage.tear_down()


def placeholders(plane: ControlPlane) -> list[dict[str, dict[str, str]]]:
    try:
        return plane.api.list("/api/v1/namespaces/churn/pods", labelSelector=names.PLACEHOLDER_LABEL)
    except ApiError as error:
        raise AssertionError(str(error)) from error


def gave_way(installed: Installation) -> float:
    """How many placeholders did: as the reconciler saw schedulers preempt them, and as the extender ended them."""
    found: list[str] = []
    for role in ("reconciler", "extender"):
        text = httpx.get(installed.pods[role].url("/metrics"), trust_env=False).text
        found += re.findall(r'^ateplace_placeholders_preempted_total\{pool="churn/web"\} (\S+)$', text, re.MULTILINE)
    return sum(map(float, found))
