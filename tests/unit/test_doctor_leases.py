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
        ((lease("a"),), "a"),
        ((None, lease("a")), "a"),
        ((lease(""), lease("a")), "a"),
        ((lease("a", age=3600), lease("a", age=3599)), "a"),
        ((lease("a", age=3600),), None),
    ],
    ids=["held", "not made yet", "given up a moment ago", "renewed by a clock that is behind", "abandoned"],
)
def test_a_holder_that_comes_within_half_a_duration_is_seen(states: tuple[Any, ...], holder: str | None) -> None:
    look: Any = SimpleNamespace(kube=Leases(*states), namespace="ateplace-system")
    assert asyncio.run(held(look, "ateplace-scheduler")) == holder
