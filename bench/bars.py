"""Stacked horizontal bars as SVG, of our own: where time goes, one row a case (pure)."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from bench.chart import STYLE

WIDTH, LEFT, RIGHT, TOP, ROW = 860, 190, 60, 40, 44
COLOURS: Final = ("#1f77b4", "#ff7f0e", "#8c8c8c", "#9467bd", "#d62728", "#e377c2", "#2ca02c", "#17becf", "#bcbd22")


def draw(title: str, parts: Sequence[str], rows: Mapping[str, Mapping[str, float]]) -> str:
    """`rows`: seconds of each part, by case; parts that a case lacks take no room."""
    end = max(sum(row.values()) for row in rows.values()) * 1.02
    scale = (WIDTH - LEFT - RIGHT) / end
    bottom = TOP + ROW * len(rows)
    legend = [(index % 3, index // 3) for index in range(len(parts))]
    height = bottom + 40 + 22 * (legend[-1][1] + 1)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title, quote=True)}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="12" y="20">{escape(title)}</text>',
    ]
    step = next(step for step in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0) if end / step <= 12)
    for tick in range(int(end / step) + 1):
        x = LEFT + tick * step * scale
        out.append(f'<path class="grid" d="M{x:.1f} {TOP - 6}V{bottom}"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick * step:.1f} s</text>')
    for index, (name, row) in enumerate(rows.items()):
        y, x = TOP + ROW * index, float(LEFT)
        out.append(f'<text x="{LEFT - 10}" y="{y + 20}" text-anchor="end">{escape(name)}</text>')
        for part, colour in zip(parts, COLOURS, strict=False):
            width = row.get(part, 0.0) * scale
            out.append(f'<rect x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="24" fill="{colour}"/>')
            x += width
        out.append(f'<text x="{x + 6:.1f}" y="{y + 20}">{sum(row.values()):.2f} s</text>')
    for (column, line), part, colour in zip(legend, parts, COLOURS, strict=False):
        x, y = 12 + 280 * column, bottom + 34 + 22 * line
        out.append(f'<rect x="{x}" y="{y}" width="14" height="14" fill="{colour}"/>')
        out.append(f'<text x="{x + 20}" y="{y + 11}">{escape(part)}</text>')
    return "\n".join([*out, "</svg>", ""])
