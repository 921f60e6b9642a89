"""A chart as SVG, of our own: lines over seconds or a count, with marks, for light and dark pages (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH, HEIGHT = 860, 330
LEFT, RIGHT, TOP, BOTTOM = 46, 180, 42, 40
APART: Final = 1.5
"""Lines of the same value are drawn so far from each other."""
STYLE: Final = """
  text { font: 12px system-ui, sans-serif; fill: #57606a }
  .title { font-size: 14px; font-weight: 600 }
  .grid { stroke: #8884; stroke-width: 1 }
  .mark { stroke: #57606a; stroke-width: 1; stroke-dasharray: 3 3 }
  .line { fill: none; stroke-width: 2.5; stroke-linejoin: round }
  @media (prefers-color-scheme: dark) { text { fill: #9da7b3 } .mark { stroke: #9da7b3 } }
"""


@dataclass(frozen=True)
class Line:
    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    """(seconds, value): the value holds until the next point, or grows towards it where the chart has slopes."""
    dashed: bool = False


def draw(
    title: str,
    lines: Sequence[Line],
    marks: Sequence[tuple[float, str]],
    end: float,
    *,
    unit: str = " s",
    slopes: bool = False,
) -> str:
    """The chart from 0 to `end` seconds, or whatever its unit is. `slopes`: points are joined by straight lines, and
    what marks say is written at the bottom, where lines far above 0 leave room; otherwise lines are steps."""
    top = max((value for line in lines for _, value in line.points), default=1.0) + 1

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / end

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title, quote=True)}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="18">{escape(title)}</text>',
    ]
    for value in range(0, int(top) + 1, _step(top, (2, 5, 10, 20, 50, 100))):
        parts.append(f'<path class="grid" d="M{LEFT} {y(value):.1f}H{x(end):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
    apart = _step(end, (1, 2, 5, 10, 20, 30, 60, 120, 600, 1000, 2000, 5000, 10000))
    parts += [
        f'<text x="{x(tick):.1f}" y="{HEIGHT - 18}" text-anchor="middle">{tick:,}{unit if unit == " s" else ""}</text>'
        for tick in range(0, int(end) + 1, apart)
    ]
    if unit != " s":
        parts.append(f'<text x="{x(end):.1f}" y="{HEIGHT - 4}" text-anchor="end">{escape(unit.strip())}</text>')
    for number, (seconds, words) in enumerate(marks):
        parts.append(f'<path class="mark" d="M{x(seconds):.1f} {TOP - 8}V{HEIGHT - BOTTOM}"/>')
        at = HEIGHT - BOTTOM - 6 - 14 * (number % 9) if slopes else TOP + 14 * (number % 3)
        parts.append(f'<text x="{x(seconds) + 4:.1f}" y="{at}">{escape(words)}</text>')
    for number, line in enumerate(lines):
        shift = (number - len(lines) / 2) * APART
        step = "L{:.1f} {:.1f}" if slopes else "H{:.1f}V{:.1f}"
        path = "".join(
            (step if index else "M{:.1f} {:.1f}").format(x(at), y(value) + shift)
            for index, (at, value) in enumerate(line.points)
        )
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        parts.append(f'<path class="line" stroke="{line.colour}"{dash} d="{path}H{x(end):.1f}"/>')
    for index, line in enumerate(lines):
        height = TOP + 22 + 22 * index
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        start = WIDTH - RIGHT + 12
        parts.append(f'<path class="line" stroke="{line.colour}"{dash} d="M{start} {height}h22"/>')
        parts.append(f'<text x="{start + 28}" y="{height + 4}">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _step(end: float, steps: Sequence[int]) -> int:
    """Between two ticks, so that there are twelve at most."""
    return next((step for step in steps if end / step <= 12), steps[-1])
