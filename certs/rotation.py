"""What to do next about the certificates: a pure decision from what there is.

    Steady ──new authority──> Publishing ──> Restarting ──> Switching ──> Dropping ──> Steady
                              both trusted   scheduler      leaves by     old one no
                              everywhere     reads both     the new one   longer trusted

The authorities' Secret holds the *current* one with its key, and the certificates of *previous* ones that are
still trusted; a previous key is destroyed as the change begins. Everything else follows from that by
comparison, so a leader may die between any two writes and the next one goes on where it was:

- Trust goes ahead of use. A leaf by the current authority is made only once every reader trusts it: ca.crt
  and caBundle hold both, this process has watched that stand for `settle` (longer than a kubelet takes to
  bring a Secret to its pods), and, for the extender's leaf, the scheduler has been restarted after that,
  because it reads its authorities once.
- Use ends before trust. A previous authority is dropped only once no leaf is signed by it, and that too has
  stood for `settle`.
- A leaf that cannot serve at all (absent, expired, damaged) is replaced at once, whatever the phase.

Every write carries the resourceVersion it was decided on. A leader that was deposed and wakes up late can
therefore still not write a leaf of an authority that has been dropped: to drop it, each leaf had to be
written after the late leader's read, so its write is refused.
"""

import hashlib
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum

Fingerprint = str


class Phase(StrEnum):
    MISSING = "Missing"
    PUBLISHING = "Publishing"
    RESTARTING = "Restarting"
    SWITCHING = "Switching"
    DROPPING = "Dropping"
    STEADY = "Steady"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf's Secret."""

    needs_renewal: str
    """Why a new one should be made, by `authority.needs_renewal`; empty when none should."""
    issuer: Fingerprint | None
    """Which of the trusted authorities signed it; None when it cannot serve at all."""
    bundle: frozenset[Fingerprint]
    """The authorities in its ca.crt."""
    for_scheduler: bool = False
    """Whether it is shown to the scheduler, which has to be restarted to trust another authority."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The scheduler, as far as it trusts us."""

    trusts: str
    """The `trust_mark` of what it read at its start; empty when that is not recorded."""
    running: bool
    """Whether every replica runs with that, and none without."""
    restartable: bool
    """Whether we can restart it; otherwise an administrator restarts it and says so."""
    waiting: bool = False
    """Whether it is ours and none of its pods has started yet: they wait for their Secret."""


@dataclass(frozen=True, slots=True)
class World:
    """Everything the decision is made from, read at one moment."""

    current: Fingerprint | None
    previous: frozenset[Fingerprint]
    leaves: Mapping[str, Leaf]
    scheduler: Scheduler
    injected: bool
    """Whether our webhook configuration's caBundle holds exactly the trusted authorities (or there is none)."""
    flaw: str = ""
    """Why the current authority cannot sign."""
    due: str = ""
    """Why the current authority should be changed in time."""

    @property
    def trusted(self) -> frozenset[Fingerprint]:
        return self.previous | ({self.current} if self.current else frozenset())

    @property
    def published(self) -> bool:
        return self.injected and all(leaf.bundle == self.trusted for leaf in self.leaves.values())

    @property
    def switched(self) -> bool:
        return all(leaf.issuer == self.current for leaf in self.leaves.values())


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, and why."""

    why: str


class MakeAuthority(Step):
    """There is no usable authority: make one; the authorities that signed the leaves in use stay trusted."""


class ChangeAuthority(Step):
    """Make a new authority and keep the certificate of the one before as a previous one."""


class DropPrevious(Step):
    """Trust the current authority alone."""


class Inject(Step):
    """Put the trusted authorities into our webhook configuration."""


class RestartScheduler(Step):
    """Restart the scheduler so that it reads the trusted authorities."""


class Wait(Step):
    """Look again later."""


@dataclass(frozen=True, slots=True)
class Publish(Step):
    """Put the trusted authorities beside a leaf, which stays as it is."""

    leaf: str


@dataclass(frozen=True, slots=True)
class Issue(Step):
    """Make a new leaf by the current authority."""

    leaf: str


def phase(world: World) -> Phase:
    """Where the change of authority stands."""
    if world.current is None or world.flaw:
        return Phase.MISSING
    if not world.published:
        return Phase.PUBLISHING
    if not world.previous:
        return Phase.STEADY
    if world.switched:
        return Phase.DROPPING
    return Phase.SWITCHING if _restarted(world) else Phase.RESTARTING


def plan(world: World, *, settled: bool) -> list[Step]:
    """What can be done now, on objects of their own, so that one that fails does not hold up the others.

    Empty: everything is in step. `settled`: what `standing(world)` says has been so for the whole settling
    time.
    """
    if world.current is None or world.flaw:
        return [MakeAuthority(world.flaw or "there is no authority")]
    steps = [step for name, leaf in world.leaves.items() if (step := _mend(world, name, leaf))]
    if not world.injected:
        steps.append(Inject("the webhook configuration trusts something else"))
    if steps or not world.published:
        return steps
    if world.previous:
        return _carry_on(world, settled=settled)
    if step := _restart(world, settled=settled):
        return [step]
    return [ChangeAuthority(world.due)] if world.due else []


def standing(world: World) -> Hashable:
    """What has to stand still for the settling time; a change of it starts that time again.

    While leaves are being switched one after the other, the trust that they rest on does not change, so one
    switched leaf does not make the next one wait; once all are, waiting begins for the dropping.
    """
    return (world.current, world.previous, world.published, world.switched)


class Stillness:
    """How long something has stood still, as this process has seen it: no clocks are compared, a new leader waits
    again."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._standing: Hashable = None
        self._since = math.inf

    def observe(self, standing: Hashable, began: float, ended: float) -> bool:
        """Whether `standing`, read from `began` to `ended` (monotonic), has been so for the whole time."""
        if standing != self._standing:
            self._standing, self._since = standing, ended
        return began - self._since >= self._seconds


def trust_mark(trusted: frozenset[Fingerprint]) -> str:
    """A short name for a set of authorities."""
    return hashlib.sha256(",".join(sorted(trusted)).encode()).hexdigest()[:32]


def _mend(world: World, name: str, leaf: Leaf) -> Step | None:
    """What one leaf's Secret needs whatever else is going on."""
    if leaf.needs_renewal and leaf.issuer in {None, world.current}:
        return Issue(leaf.needs_renewal, name)
    if leaf.bundle != world.trusted:
        return Publish("its trusted authorities are others", name)
    return None


def _carry_on(world: World, *, settled: bool) -> list[Step]:
    """The change of authority, once both are published."""
    if world.switched and settled:
        return [DropPrevious("no leaf is signed by it any more")]
    if not settled:
        return [Wait("until every pod has its new leaf" if world.switched else "until every pod trusts both")]
    steps: list[Step] = [
        Issue("it is signed by the previous authority", name)
        for name, leaf in world.leaves.items()
        if leaf.issuer != world.current and (_restarted(world) or not leaf.for_scheduler)
    ]
    if step := _restart(world, settled=settled):
        steps.append(step)
    return steps


def _restarted(world: World) -> bool:
    return world.scheduler.running and world.scheduler.trusts == trust_mark(world.trusted)


def _restart(world: World, *, settled: bool) -> Step | None:
    """What has to happen to the scheduler; None when nothing has.

    One that was never marked is marked at once: what its pods have read is not known. While a single authority is
    trusted, a scheduler that is not ours to restart is left alone: it trusts that one already, and perhaps one more
    than it should.
    """
    scheduler = world.scheduler
    if scheduler.trusts == trust_mark(world.trusted):
        return None if scheduler.running or not world.previous else Wait("until the scheduler has restarted")
    if not scheduler.restartable:
        return Wait("until an administrator has restarted the scheduler and said so") if world.previous else None
    if settled or not scheduler.trusts:
        return RestartScheduler("it has read other authorities")
    return Wait("until every pod has the trusted authorities")
