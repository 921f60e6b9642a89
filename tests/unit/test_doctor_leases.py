"""Doctor looks at a Lease more than once: right after an installation it may have no holder for a moment."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from ateplace.cli.doctor.ours import held
from ateplace.errors import NotFound
from ateplace.kube.objects import Lease, LeaseSpec, Metadata


class Leases:
    """Answers with one state after another; the last one stays."""

    def __init__(self, *states: LeaseSpec | None) -> None:
        self._states = list(states)

    async def get(self, *_: Any) -> Lease:
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if state is None:
            raise NotFound("no such Lease")
        return Lease(metadata=Metadata(name="ateplace-scheduler"), spec=state)


def lease(holder: str, age: float = 0.0, duration: int = 2) -> LeaseSpec:
    renewed = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    return LeaseSpec(holder_identity=holder, renew_time=renewed, lease_duration_seconds=duration)


@pytest.mark.parametrize(
    ("states", "holder"),
    [
        ((("a", 0),), "a"),
        ((None, ("a", 0)), "a"),
        ((("", 0), ("a", 0)), "a"),
        ((("a", 3600), ("a", 3599)), "a"),
        ((("a", 3600),), None),
    ],
    ids=["held", "not made yet", "given up a moment ago", "renewed by a clock that is behind", "abandoned"],
)
def test_a_holder_that_comes_within_half_a_duration_is_seen(states: tuple[Any, ...], holder: str | None) -> None:
    leases = Leases(*(lease(*state) if state else None for state in states))
    look: Any = SimpleNamespace(kube=leases, namespace="ateplace-system")
    assert asyncio.run(held(look, "ateplace-scheduler")) == holder
