"""A recording of the map as an SVG that plays for ever: no script, and the reader's light or dark theme.

Every look of a cell or a mark is an element of its own, visible in its spans of the loop.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ateplace.cli.map import wire
from ateplace.cli.map.history import apply

SECONDS = 22.0
"""How long it plays; the recording is played as fast as that takes."""
HOLD = 1.5
"""Seconds for which the end is shown."""
CELL, GAP, MARK, STEP, COLUMNS = 62, 6, 9, 10.5, 5
LIGHT = ("#4477aa", "#d9515f", "#228833", "#aa3377")
DARK = ("#77aadd", "#ee8866", "#44bb99", "#ffaabb")
STYLE = """
text { font: 11px system-ui, "DejaVu Sans", sans-serif; fill: #17212b }
.q { fill: #55626f } .b { font-size: 15px; font-weight: 600 } .page { fill: #fff }
.cold { fill: none; stroke: #c4cdd6 } .claimed { fill: #fff1d6; stroke: #8a6100; stroke-dasharray: 4 3 }
.warm { fill: #dcebf7; stroke: #4477aa }
"""
STYLE_DARK = """
text { fill: #e8eef4 } .q { fill: #a3b1be } .page { fill: #18212a } .cold { stroke: #37444f }
.claimed { fill: #3d3115; stroke: #e6b84c } .warm { fill: #1e3a54; stroke: #77aadd }
"""
TITLE = "A burst on the map: nodes are claimed, atelet comes, ateoms fill them, and the nodes are released again"

Span = tuple[float, float]


class Track:
    """What one thing looks like over time; the last look of a moment counts, and an empty one is none."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, str]] = [(0.0, "")]

    def look(self, at: float, value: str) -> None:
        if self._looks[-1][0] == at:
            self._looks.pop()
        if not self._looks or self._looks[-1][1] != value:
            self._looks.append((at, value))

    def looks(self, end: float) -> dict[str, list[Span]]:
        """Every look with the spans in which it is seen."""
        found: dict[str, list[Span]] = {}
        ends = [at for at, _ in self._looks[1:]] + [end]
        for (at, value), until in zip(self._looks, ends, strict=True):
            if value:
                found.setdefault(value, []).append((at, until))
        return found


@dataclass
class Film:
    """A placement that is brought forward, and what it has looked like."""

    placement: wire.Placement
    cells: dict[str, Track] = field(default_factory=dict)
    marks: dict[tuple[str, int], Track] = field(default_factory=dict)
    """By node and slot: a pod keeps its slot for as long as it is there."""
    caption: Track = field(default_factory=Track)
    colours: dict[str, int] = field(default_factory=dict)
    _slots: dict[str, list[str]] = field(default_factory=dict)

    def forward(self, change: wire.Change) -> None:
        apply(self.placement, change)
        for key, pod in change.pods.items():
            held = self._slots.setdefault(pod.node, []) if pod and pod.node else None
            if held is None or key in held:
                continue
            if "" in held:
                held[held.index("")] = key
            else:
                held.append(key)

    def draw(self, at: float) -> None:
        for name, node in self.placement.nodes.items():
            self.cells.setdefault(name, Track()).look(at, node.state)
        for name, held in self._slots.items():
            for index, key in enumerate(held):
                look = self._mark(name, key)
                if not look:
                    held[index] = ""
                self.marks.setdefault((name, index), Track()).look(at, look)
        now = self.placement.totals
        words = [
            f"{now.ready} ateoms ready, {now.waiting} waiting",
            f"{now.warm} warm nodes, {now.claimed} claimed, {now.cold} cold",
            f"{now.placeholders} placeholders",
        ]
        self.caption.look(at, " · ".join(words))

    def _mark(self, node: str, key: str) -> str:
        """The id of its symbol; empty when the pod is not there."""
        pod = self.placement.pods.get(key)
        if pod is None or pod.node != node:
            return ""
        kind = "p" if pod.placeholder else "r" if pod.ready and not pod.leaving else "s"
        return f"{kind}{self.colours.setdefault(pod.pool, len(self.colours) % len(LIGHT))}"


def animated(start: wire.Placement, changes: list[wire.Change]) -> str:
    """The recording from shortly before its first pod on."""
    film = Film(start)
    first = next((one.at for one in changes if one.pods), start.at) - 0.5
    speed = max(1.0, (changes[-1].at - first) / SECONDS)
    end = (changes[-1].at - first) / speed + HOLD
    film.draw(0.0)
    for change in changes:
        film.forward(change)
        film.draw(max(0.0, round((change.at - first) / speed, 1)))
    return _svg(film, end)


def _svg(film: Film, end: float) -> str:
    zones: dict[str, list[str]] = {}
    for name in sorted(film.placement.nodes):
        zones.setdefault(film.placement.nodes[name].zone, []).append(name)
    width = max(map(len, zones.values())) * (CELL + GAP) + 24
    height = 66 + len(zones) * (CELL + 30)
    parts = []
    for number, (zone, names) in enumerate(sorted(zones.items())):
        top = 62 + number * (CELL + 30)
        parts.append(f'<text class="q" x="14" y="{top - 6}">{zone}</text>')
        for column, name in enumerate(names):
            left = 14 + column * (CELL + GAP)
            parts += _uses(film.cells[name], left, top, end)
            for (node, index), track in film.marks.items():
                if node == name:
                    parts += _uses(track, left + 6 + index % COLUMNS * STEP, top + 6 + index // COLUMNS * STEP, end)
    for words, spans in film.caption.looks(end).items():
        parts.append(f'<text class="b" x="14" y="30" {_visible(spans, end, words)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{TITLE}"><title>{TITLE}</title>{_symbols(sorted(set(film.colours.values())))}'
        f'<rect class="page" width="{width}" height="{height}" rx="10"/>{"".join(parts)}</svg>\n'
    )


def _symbols(colours: list[int]) -> str:
    defs = [
        f'<rect id="{state}" class="{state}" width="{CELL}" height="{CELL}" rx="7" stroke-width="1.5"/>'
        for state in ("cold", "claimed", "warm")
    ]
    light, dark = [STYLE], [STYLE_DARK]
    for index in colours:
        for theme, palette in ((light, LIGHT), (dark, DARK)):
            theme.append(f".f{index} {{ fill: {palette[index]} }} .o{index} {{ fill: none; stroke: {palette[index]} }}")
        inner = f'x=".75" y=".75" width="{MARK - 1.5}" height="{MARK - 1.5}"'
        defs += [
            f'<rect id="r{index}" class="f{index}" width="{MARK}" height="{MARK}"/>',
            f'<path id="s{index}" class="f{index}" d="M0 0h{MARK}L0 {MARK}z" opacity=".7"/>',
            f'<rect id="p{index}" class="o{index}" {inner} stroke-width="1.5"/>',
        ]
    style = f"{' '.join(light)} @media (prefers-color-scheme: dark) {{{' '.join(dark)}}}"
    return f"<style>{style}</style><defs>{''.join(defs)}</defs>"


def _uses(track: Track, x: float, y: float, end: float) -> list[str]:
    return [
        f'<use href="#{look}" x="{x:g}" y="{y:g}" {_visible(spans, end)}</use>'
        for look, spans in track.looks(end).items()
    ]


def _visible(spans: Iterable[Span], end: float, inside: str = "") -> str:
    """The rest of an element that is seen only in these spans of the loop."""
    times, values = ["0"], ["hidden"]
    for begin, until in spans:
        if begin <= 0:
            values[0] = "visible"
        else:
            times.append(f"{begin / end:.4f}")
            values.append("visible")
        if until < end:
            times.append(f"{until / end:.4f}")
            values.append("hidden")
    if values == ["visible"]:
        return f">{inside}"
    loop = f'dur="{end:.1f}s" repeatCount="indefinite" calcMode="discrete"'
    steps = f'values="{";".join(values)}" keyTimes="{";".join(times)}"'
    return f'visibility="{values[0]}">{inside}<animate attributeName="visibility" {loop} {steps}/>'
