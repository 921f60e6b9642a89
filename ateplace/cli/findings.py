"""What a look at something found: a level, a sentence, and what to do about it."""

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct
from rich.table import Table

from ateplace.cli.printing import text

Level = Literal["ok", "warn", "fail"]
STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


class Finding(Struct, frozen=True):
    level: Level
    says: str
    fix: str = ""
    """What to do, a command where there is one; empty when there is nothing to do."""
    check: str = ""
    """Which check of `doctor` says so."""

    def as_data(self) -> dict[str, Any]:
        return {"check": self.check, "level": self.level, "says": self.says, "fix": self.fix}


APPLY = (
    "apply the overlay that you installed again "
    "(the default one: kubectl apply --server-side --force-conflicts -k deploy/overlays/second-scheduler)"
)
"""Which one that is cannot be seen from here, and another one would change the installation. A field that another
manager has changed is that manager's until it is taken back by force."""


def ok(says: str) -> Finding:
    return Finding("ok", says)


def warn(says: str, fix: str) -> Finding:
    return Finding("warn", says, fix)


def fail(says: str, fix: str) -> Finding:
    return Finding("fail", says, fix)


def count(number: int, what: str) -> str:
    """`1 ateom`, `2 ateoms`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def verb(number: int, plural: str) -> str:
    """`are` or `is`, `wait` or `waits`."""
    return plural if number != 1 else {"are": "is", "have": "has"}.get(plural, f"{plural}s")


def some(names: Iterable[str], most: int = 3) -> str:
    """A few of many names: `a, b, c and 4 more`."""
    listed = sorted(names)
    rest = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {rest} more" if rest > 0 else "")


def table(findings: Iterable[Finding], *, checks: bool = True) -> Table:
    """A line each; the fix below its finding."""
    grid = Table(box=None, pad_edge=False, show_header=False)
    grid.add_column(no_wrap=True)
    if checks:
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for finding in findings:
        said = text(finding.says)
        if finding.fix:
            said.append("\n").append_text(text(f"→ {finding.fix}", "bold"))
        cells = [text(finding.level, STYLES[finding.level]), finding.check, said]
        grid.add_row(*(cells if checks else (cells[0], cells[2])))
    return grid
