"""What `bench.oom` measured, and what follows from it: costs, sizes, a report, a plot (pure)."""

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, structs

from bench.chart import Line, draw

MIB: Final = 2**20
COLOURS: Final = {"webhook": "#2ca02c", "extender": "#1f77b4", "reconciler": "#d62728"}
SIZES: Final = (1_000, 5_000, 10_000, 20_000, 50_000, 100_000)
"""Ateoms in the rows of the sizing table."""
SPARE: Final = 1.5
"""The limit that the table gives, over what is needed."""
ROUND: Final = 32
"""MiB to which limits are rounded up."""
TOP: Final = 8
FAR: Final = 20
"""So many times what was run is extrapolated, and no more."""
KINDS: Final = ("namespaces", "pools", "nodes", "ateoms", "others")
NAMES: Final = {"others": "pod that is not an ateom"} | {kind: kind.removesuffix("s") for kind in KINDS[:4]}


class Size(Struct, frozen=True):
    """How many there are of each."""

    namespaces: int = 0
    pools: int = 0
    nodes: int = 0
    ateoms: int = 0
    others: int = 0


class Step(Struct, frozen=True):
    """Memory that counts towards the limit, at rest, after one kind of object has become more."""

    kind: str
    """One of KINDS; "start" where a process began, whose memory is no growth."""
    turn: int
    size: Size
    used: dict[str, int]
    """Bytes by role."""


class Death(Struct, frozen=True):
    role: str
    limit: int
    size: Size
    again: bool
    """Whether it comes up again, at this size and under this limit."""


class Figures(Struct, frozen=True):
    machine: str
    limited_by: str
    step: int
    """Bytes by which limits were raised."""
    shipped: dict[str, int]
    """Limits of the manifests, in bytes."""
    steps: list[Step]
    deaths: list[Death]
    cold: dict[str, tuple[int, int]]
    """By role: most bytes that a start took, on the empty cluster and on the full one."""
    sites: dict[str, dict[str, int]]
    """By role, by line: bytes that were there at the end more than after the first batch."""

    @property
    def end(self) -> Size:
        return self.steps[-1].size

    def growth(self, role: str) -> dict[str, tuple[int, int]]:
        """By kind: bytes and objects that came, the first batch left out (caches that fill once)."""
        found = dict.fromkeys(KINDS, (0, 0))
        for before, after in zip(self.steps, self.steps[1:], strict=False):
            if after.kind in found and after.turn > 1 and role in before.used and role in after.used:
                more = getattr(after.size, after.kind) - getattr(before.size, after.kind)
                size, count = found[after.kind]
                found[after.kind] = (size + after.used[role] - before.used[role], count + more)
        return found

    def costs(self, role: str) -> dict[str, float]:
        """By kind: bytes for each object. What is negative is noise: memory that a later object found free."""
        return {kind: size / count if count else 0.0 for kind, (size, count) in self.growth(role).items()}

    def needed(self, role: str) -> float:
        """Bytes at the end: at rest, or while starting, whichever is more."""
        used = [step.used[role] for step in self.steps if role in step.used]
        return max(used[-1], self.cold[role][1])

    def for_each_ateom(self, role: str) -> float:
        """Bytes for an ateom with its share of everything else, in the proportions of the end: by the costs, or by the
        whole growth since the empty cluster, whichever is more: a role killed in a step has no cost there."""
        shares: dict[str, int] = structs.asdict(self.end)
        costs = self.costs(role)
        by_costs = sum(max(0.0, costs[kind]) * count for kind, count in shares.items())
        return max(by_costs, self.needed(role) - self.steps[0].used[role]) / self.end.ateoms

    def at(self, role: str, ateoms: int) -> float:
        """Bytes needed with so many ateoms, in the same proportions."""
        least = self.cold[role][0]
        return max(float(least), self.needed(role) + (ateoms - self.end.ateoms) * self.for_each_ateom(role))

    def dies_at(self, role: str, limit: int) -> int | None:
        """Ateoms at which a limit is reached; None: not by growing like this."""
        each = self.for_each_ateom(role)
        return None if each < 1 else self.end.ateoms + math.floor((limit - self.needed(role)) / each)


def limit(need: float) -> int:
    """MiB to give for so many bytes needed."""
    return math.ceil(need * SPARE / MIB / ROUND) * ROUND


def sizing(figures: Figures) -> str:
    """The sizing table, for the docs."""
    end = figures.end
    roles = tuple(figures.cold)
    lines = [
        "| ateoms | nodes | pools | " + " | ".join(f"{role}: needs, limit to give" for role in roles) + " | |",
        "|---|---|---|" + "---|" * len(roles) + "---|",
    ]
    for ateoms in SIZES:
        nodes, pools = (round(ateoms * getattr(end, kind) / end.ateoms) for kind in ("nodes", "pools"))
        cells = [f"{figures.at(role, ateoms) / MIB:.0f} MiB, {limit(figures.at(role, ateoms))}Mi" for role in roles]
        how = "within what was measured" if ateoms <= end.ateoms else "extrapolated"
        lines.append(f"| {ateoms:,} | {nodes:,} | {pools:,} | " + " | ".join(cells) + f" | {how} |")
    return "\n".join(lines) + "\n"


def plot(figures: Figures) -> str:
    """Memory of each role against the number of ateoms, as SVG."""
    lines = []
    for role in figures.cold:
        points = [(float(step.size.ateoms), step.used[role] / MIB) for step in figures.steps if role in step.used]
        lines.append(Line(role, COLOURS[role], points))
    marks = [(float(death.size.ateoms), f"{death.role} † {death.limit / MIB:.0f} MiB") for death in figures.deaths]
    title = "Memory by role, MiB, as the cluster grows"
    return draw(title, lines, marks, float(figures.end.ateoms), unit=" ateoms", slopes=True)


def report(figures: Figures) -> str:
    """The whole story, as Markdown."""
    end = figures.end
    counts = ", ".join(
        f"{count:,} {'other pods' if kind == 'others' else kind}" for kind, count in structs.asdict(end).items()
    )
    parts = [
        "# Memory: when would a role die, and of what?",
        "",
        "Written by `make reproduce-oom`; every figure is in [figures.json](figures.json). A cluster on loopback grew",
        f"batch by batch to {counts}",
        f"({figures.machine}). Each role ran as a process of its own",
        f"under a memory limit ({figures.limited_by}), {figures.step / MIB:.0f} MiB above what it took at rest,",
        "which was raised by as much each time that it had killed the process. Memory is what counts",
        "towards the limit and cannot be reclaimed. Twins without a limit, whose allocations were traced, say what the",
        "growth consists of.",
        "",
        "![Memory of each role as the cluster grows](memory.svg)",
        "",
        "## What each object costs, in bytes",
        "",
        "Measured: growth at rest, all batches but the first. Below zero is noise of the allocator. The last column is",
        "the sum of the others, or the whole growth since the empty cluster if that is more.",
        "",
        "| role | " + " | ".join(NAMES[kind] for kind in KINDS) + " | an ateom with its share of all |",
        "|---|" + "---|" * (len(KINDS) + 1),
    ]
    for role in figures.cold:
        costs, growth = figures.costs(role), figures.growth(role)
        each = " | ".join(f"{costs[kind]:,.0f}" if growth[kind][1] else "killed each time" for kind in KINDS)
        parts.append(f"| {role} | {each} | {figures.for_each_ateom(role):,.0f} |")
    parts += ["", "## Deaths", ""]
    if figures.deaths:
        parts += [
            "| role | limit | killed with | comes up again under that limit | the costs above say |",
            "|---|---|---|---|---|",
        ]
        for death in figures.deaths:
            said = figures.dies_at(death.role, death.limit)
            model = "never" if said is None else f"{max(0, said):,} ateoms"
            again = "yes" if death.again else "no: a crash loop"
            size = death.size
            held = f"{size.ateoms:,} ateoms, {size.nodes:,} nodes, {size.pools:,} pools"
            parts.append(f"| {death.role} | {death.limit / MIB:.1f} MiB | {held} | {again} | {model} |")
        parts.append("")
    alive = [role for role in figures.cold if all(death.role != role for death in figures.deaths)]
    if alive:
        parts += [f"Not killed in this run: {', '.join(alive)}.", ""]
    parts += [
        "## What the growth consists of",
        "",
        "By line of code, between the first batch and the end.",
        "",
        "| role | KiB | line |",
        "|---|---|---|",
    ]
    for role, sites in figures.sites.items():
        most = sorted(sites.items(), key=lambda each: -each[1])[:TOP]
        parts += [f"| {role} | {size / 1024:,.0f} | `{line}` |" for line, size in most]
    parts += [
        "",
        "## Under the limits that we ship",
        "",
        "Extrapolated: the need at the end (at rest or while starting, whichever is more), and from there the cost of",
        "an ateom with its share of everything else. Nothing of that size was run.",
        "",
        "| role | start on the empty cluster | on the full one | limit shipped | reached with |",
        "|---|---|---|---|---|",
    ]
    for role, shipped in figures.shipped.items():
        said = figures.dies_at(role, shipped)
        empty, full = figures.cold[role]
        far = FAR * figures.end.ateoms
        reached = (
            f"about {said:,} ateoms" if said and said <= far else f"more than {far:,} ateoms, {FAR} × what was run"
        )
        parts.append(f"| {role} | {empty / MIB:.0f} MiB | {full / MIB:.0f} MiB | {shipped / MIB:.0f} MiB | {reached} |")
    parts += [
        "",
        "## Sizing",
        "",
        f"What a role needs, and a limit {SPARE} times that, rounded up to {ROUND} MiB: processes above were killed",
        "before the costs say, so a limit without room to spare is too low. This is growth only: what hostile clients",
        "and fat objects can make a role take comes on top ([security.md](../security.md)), and is what the limits",
        "that we ship have room for.",
        "",
        sizing(figures),
    ]
    return "\n".join(parts)


def summary(figures: Figures) -> Mapping[str, object]:
    """For the line of JSON."""
    return {
        role: {
            "needed_mib": round(figures.needed(role) / MIB, 1),
            "bytes_per_ateom_with_its_share": round(figures.for_each_ateom(role)),
            "bytes_per_other": round(figures.costs(role)["others"]),
            "deaths": [round(death.limit / MIB, 1) for death in figures.deaths if death.role == role],
            "shipped_limit_reached_at_ateoms": figures.dies_at(role, figures.shipped[role]),
        }
        for role in figures.cold
    }
