"""Flame pictures as SVG, of our own: where CPU time goes, callers above those that they call (pure)."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Final
from zlib import crc32

WIDTH, ROW, TOP, SIDE = 1000, 17, 56, 8
LEAST: Final = 0.01
"""The least share of all samples that is drawn."""
DEEPEST: Final = 34
"""Rows; what is below is left out."""
LETTER: Final = 6.3
"""The width of one, at the size that is used."""
COLOURS: Final = ("#e8833a", "#e69f4c", "#d9743f", "#efb45c", "#dd8f57", "#f0a04b")
STYLE: Final = """
  text { font: 11px ui-monospace, monospace; fill: #1f2328 }
  .title { font: 600 14px system-ui, sans-serif; fill: #57606a }
  .note { font: 12px system-ui, sans-serif; fill: #57606a }
  @media (prefers-color-scheme: dark) { .title, .note { fill: #9da7b3 } }
"""


@dataclass
class Frame:
    """A function as called along one path."""

    count: int = 0
    calls: dict[str, "Frame"] = field(default_factory=dict)


def draw(title: str, note: str, stacks: Mapping[tuple[str, ...], int]) -> str:
    """One picture; widths are shares of all samples, and hovering over a box shows its whole name and share."""
    root = tree(stacks)
    boxes: list[str] = []
    rows = _boxes(root, root.count, 0, 0.0, boxes)
    height = TOP + ROW * rows + SIDE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-label="{escape(title, quote=True)}">',
            f"<style>{STYLE}</style>",
            f'<text class="title" x="{SIDE}" y="20">{escape(title)}</text>',
            f'<text class="note" x="{SIDE}" y="40">{escape(note)}</text>',
            *boxes,
            "</svg>",
            "",
        ]
    )


def tree(stacks: Mapping[tuple[str, ...], int]) -> Frame:
    """All stacks joined at their outermost functions."""
    root = Frame()
    for stack, count in stacks.items():
        root.count += count
        at = root
        for name in stack[:DEEPEST]:
            at = at.calls.setdefault(name, Frame())
            at.count += count
    return root


def without(stacks: Mapping[tuple[str, ...], int], left_out: re.Pattern[str]) -> Counter[tuple[str, ...]]:
    """Without the functions of such names; what they call is then called by their callers."""
    found: Counter[tuple[str, ...]] = Counter()
    for stack, count in stacks.items():
        found[tuple(name for name in stack if not left_out.search(name))] += count
    return found


def trimmed(stacks: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
    """Without the functions that all of them begin with, which say nothing, such as those that start a program."""
    first, *rest = stacks or [()]
    depth = 0
    while depth < len(first) and all(stack[: depth + 1] == first[: depth + 1] for stack in rest):
        depth += 1
    found: Counter[tuple[str, ...]] = Counter()
    for stack, count in stacks.items():
        found[stack[depth:]] += count
    return found


def hottest(stacks: Mapping[tuple[str, ...], int], most: int) -> list[tuple[str, float]]:
    """The functions that themselves take the largest share."""
    own: Counter[str] = Counter()
    for stack, count in stacks.items():
        if stack:
            own[stack[-1]] += count
    whole = sum(stacks.values()) or 1
    return [(name, count / whole) for name, count in own.most_common(most)]


def share(stacks: Mapping[tuple[str, ...], int], *parts: str) -> float:
    """The share of samples that have one of these words in the name of a function on their stack."""
    whole = sum(stacks.values()) or 1
    inside = (count for stack, count in stacks.items() if any(part in name for name in stack for part in parts))
    return sum(inside) / whole


def _boxes(frame: Frame, whole: int, depth: int, left: float, boxes: list[str]) -> int:
    """Draw what a function calls, the largest first; how many rows there are so far."""
    rows, scale = depth, (WIDTH - 2 * SIDE) / max(whole, 1)
    for name, called in sorted(frame.calls.items(), key=lambda each: (-each[1].count, each[0])):
        if called.count < LEAST * whole:
            continue
        x, y, width = SIDE + left * scale, TOP + ROW * depth, called.count * scale
        colour = COLOURS[crc32(name.encode()) % len(COLOURS)]
        letters = int((width - 4) / LETTER)
        word = short(name)
        word = word if len(word) <= letters else word[: letters - 1] + "…" if letters > 3 else ""
        label = f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(word)}</text>' if word else ""
        boxes.append(
            f'<g><title>{escape(name)}: {called.count / (whole or 1):.1%}</title><rect x="{x:.1f}" y="{y}" '
            f'width="{max(width - 0.5, 0.5):.1f}" height="{ROW - 1}" rx="1" fill="{colour}"/>{label}</g>'
        )
        rows = max(rows, depth + 1, _boxes(called, whole, depth + 1, left, boxes))
        left += called.count
    return rows


def short(name: str) -> str:
    """Without the path of a Go package: `framework.(*runtime).Filter`."""
    return name if " (" in name else name.rpartition("/")[2]
