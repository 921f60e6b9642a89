"""Curves as SVG, of our own: seconds over anything else (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bench.chart import BOTTOM, HEIGHT, LEFT, RIGHT, STYLE, TOP, WIDTH


@dataclass(frozen=True)
class Curve:
    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    """(what it is over, seconds)."""


def draw(title: str, curves: Sequence[Curve], unit: str, *, limit: float = 0.0) -> str:
    """`unit` stands behind the numbers of the horizontal axis; `limit` is drawn as a line when there is one."""
    right = max((at for curve in curves for at, _ in curve.points), default=1.0)
    left = min((at for curve in curves for at, _ in curve.points), default=0.0)
    top = max(limit, *(seconds for curve in curves for _, seconds in curve.points), 0.001) * 1.05

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at - left) / (right - left or 1.0)

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * seconds / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title, quote=True)}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="18">{escape(title)}</text>',
    ]
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0) if top / step <= 8)
    for tick in range(int(top / step) + 1):
        height = y(tick * step)
        parts.append(f'<path class="grid" d="M{LEFT} {height:.1f}H{x(right):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{tick * step:g}</text>')
    for tick in range(7):
        at = left + (right - left) * tick / 6
        parts.append(f'<text x="{x(at):.1f}" y="{HEIGHT - 18}" text-anchor="middle">{at:.0f}{escape(unit)}</text>')
    if limit:
        parts.append(f'<path class="mark" d="M{LEFT} {y(limit):.1f}H{x(right):.1f}"/>')
    for index, curve in enumerate(curves):
        path = "L".join(f"{x(at):.1f} {y(seconds):.1f}" for at, seconds in curve.points)
        height, start = TOP + 22 + 22 * index, WIDTH - RIGHT + 12
        parts.append(f'<path class="line" stroke="{curve.colour}" d="M{path}"/>')
        parts.append(f'<path class="line" stroke="{curve.colour}" d="M{start} {height}h22"/>')
        parts.append(f'<text x="{start + 28}" y="{height + 4}">{escape(curve.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
