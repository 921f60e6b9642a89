"""A change of the authority with late readers, two leaders and stops in between: trust comes before use."""

from dataclasses import dataclass, field
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ateplace.certs.rotation import (
    DropPrevious,
    Inject,
    Issue,
    Leaf,
    Phase,
    Publish,
    RestartScheduler,
    Scheduler,
    Step,
    Stillness,
    Wait,
    World,
    phase,
    plan,
    standing,
    trust_mark,
)

SETTLE = 100.0
LATEST = 90.0
"""How late a reader may see a write: less than the settling time."""

LEAVES = ("webhook", "extender", "scheduler")


@dataclass
class Object:
    """Something in the API, every version of it, and when each was written."""

    versions: list[tuple[float, object]] = field(default_factory=list)

    def write(self, now: float, value: object) -> None:
        self.versions.append((now, value))


@dataclass
class Reader:
    """A reader that sees an object's versions late."""

    of: Object
    seen: int = 0

    def catch_up(self, now: float, wish: int = 0) -> None:
        bound = max(i for i, (when, _) in enumerate(self.of.versions) if i == 0 or when <= now - LATEST)
        self.seen = min(max(self.seen + wish, bound), len(self.of.versions) - 1)

    @property
    def value(self) -> object:
        return self.of.versions[self.seen][1]


@dataclass(frozen=True)
class Authorities:
    current: str
    previous: frozenset[str]


@dataclass(frozen=True)
class Secret:
    issuer: str
    bundle: frozenset[str]


@dataclass
class SchedulerPod:
    secret: Reader
    trusts: frozenset[str]
    mark: str


@dataclass
class Leader:
    stillness: Stillness = field(default_factory=lambda: Stillness(SETTLE))
    read: tuple[World, list[Step], dict[str, int]] | None = None


class Change(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.names = (f"ca{number}" for number in count())
        first = next(self.names)
        one = frozenset({first})
        self.authorities = Object([(0.0, Authorities(first, frozenset()))])
        self.secrets = {name: Object([(0.0, Secret(first, one))]) for name in LEAVES}
        self.configuration = Object([(0.0, one)])
        self.mark = Object([(0.0, trust_mark(one))])
        self.api_servers = [Reader(self.configuration) for _ in range(2)]
        self.webhooks = [Reader(self.secrets["webhook"]) for _ in range(2)]
        self.extenders = [Reader(self.secrets["extender"]) for _ in range(2)]
        nodes = [Reader(self.secrets["scheduler"]) for _ in range(2)]
        self.schedulers = [SchedulerPod(node, one, trust_mark(one)) for node in nodes]
        self.leaders = [Leader(), Leader()]
        self.eager: set[int] = set()

    @initialize(eager=st.sets(st.integers(0, 7)))
    def some_readers_see_everything_at_once(self, eager: set[int]) -> None:
        self.eager = eager

    def objects(self) -> dict[str, Object]:
        return {
            "": self.authorities,
            "configuration": self.configuration,
            "mark": self.mark,
            **self.secrets,
        }

    def look(self, leader: Leader) -> None:
        authorities = self.authorities.versions[-1][1]
        assert isinstance(authorities, Authorities)
        trusted = authorities.previous | {authorities.current}
        leaves = {}
        for name, secret in self.secrets.items():
            value = secret.versions[-1][1]
            assert isinstance(value, Secret)
            known = value.issuer if value.issuer in trusted else None
            reason = "" if known else "it is signed by an unknown authority"
            leaves[name] = Leaf(reason, known, value.bundle, for_scheduler=name == "extender")
        mark = str(self.mark.versions[-1][1])
        running = all(pod.mark == mark for pod in self.schedulers)
        injected = self.configuration.versions[-1][1] == trusted
        seen = World(authorities.current, authorities.previous, leaves, Scheduler(mark, running, True), injected)
        settled = leader.stillness.observe(standing(seen), self.now, self.now)
        versions = {name: len(each.versions) for name, each in self.objects().items()}
        leader.read = (seen, plan(seen, settled=settled), versions)

    def act(self, leader: Leader, most: int) -> None:
        if leader.read is None:
            return
        seen, steps, versions = leader.read
        leader.read = None
        assert seen.current is not None
        for step in steps[:most]:
            match step:
                case Issue(leaf=name):
                    target, value = name, Secret(seen.current, seen.trusted)
                case Publish(leaf=name):
                    issuer = seen.leaves[name].issuer
                    assert issuer is not None
                    target, value = name, Secret(issuer, seen.trusted)
                case Inject():
                    target, value = "configuration", seen.trusted  # type: ignore[assignment]
                case RestartScheduler():
                    target, value = "mark", trust_mark(seen.trusted)  # type: ignore[assignment]
                case DropPrevious():
                    target, value = "", Authorities(seen.current, frozenset())  # type: ignore[assignment]
                case Wait():
                    continue
                case _:
                    raise AssertionError(step)
            if len(self.objects()[target].versions) == versions[target]:
                self.objects()[target].write(self.now, value)
                self.hurry()

    @rule(which=st.integers(0, 1))
    def a_leader_reads(self, which: int) -> None:
        self.look(self.leaders[which])

    @rule(which=st.integers(0, 1), most=st.integers(0, 5))
    def a_leader_acts_on_what_it_read(self, which: int, most: int) -> None:
        self.act(self.leaders[which], most)

    @rule(which=st.integers(0, 1))
    def a_leader_reads_and_acts(self, which: int) -> None:
        self.look(self.leaders[which])
        self.act(self.leaders[which], 10)

    @rule(which=st.integers(0, 1))
    def a_leader_is_replaced(self, which: int) -> None:
        self.leaders[which] = Leader()

    @rule()
    def somebody_asks_for_a_new_authority(self) -> None:
        authorities = self.authorities.versions[-1][1]
        assert isinstance(authorities, Authorities)
        if not authorities.previous:
            fresh = Authorities(next(self.names), frozenset({authorities.current}))
            self.authorities.write(self.now, fresh)

    @rule(seconds=st.sampled_from([1.0, 30.0, 60.0, 120.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for reader in self.readers():
            reader.catch_up(self.now)

    @rule(which=st.integers(0, 7), wish=st.integers(1, 3))
    def a_reader_sees_something_newer(self, which: int, wish: int) -> None:
        self.readers()[which].catch_up(self.now, wish)

    @rule(which=st.integers(0, 1))
    def a_scheduler_pod_is_replaced(self, which: int) -> None:
        pod = self.schedulers[which]
        secret = pod.secret.value
        assert isinstance(secret, Secret)
        self.schedulers[which] = SchedulerPod(pod.secret, secret.bundle, str(self.mark.versions[-1][1]))

    def hurry(self) -> None:
        for which in self.eager:
            self.readers()[which].catch_up(self.now, 1000)
            self.every_call_succeeds()

    def readers(self) -> list[Reader]:
        return [*self.api_servers, *self.webhooks, *self.extenders, *(pod.secret for pod in self.schedulers)]

    @invariant()
    def every_call_succeeds(self) -> None:
        for server in self.api_servers:
            for webhook in self.webhooks:
                assert webhook.value.issuer in server.value  # type: ignore[attr-defined,operator]
        for pod in self.schedulers:
            for extender in self.extenders:
                assert extender.value.issuer in pod.trusts  # type: ignore[attr-defined]
                assert pod.secret.value.issuer in extender.value.bundle  # type: ignore[attr-defined]

    def teardown(self) -> None:
        """Whatever has happened, one leader that is left alone brings it to an end."""
        leader = self.leaders[0]
        for _ in range(60):
            self.look(leader)
            assert leader.read is not None
            steps = leader.read[1]
            if not steps:
                break
            self.act(leader, 10)
            self.every_call_succeeds()
            for which in range(2):
                self.a_scheduler_pod_is_replaced(which)
                self.every_call_succeeds()
            self.time_passes(SETTLE / 2 if all(isinstance(step, Wait) for step in steps) else 1.0)
            self.every_call_succeeds()
        assert phase(leader.read[0]) is Phase.STEADY  # type: ignore[index]


Change.TestCase.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
test_no_call_fails_during_a_change_of_authority = Change.TestCase
