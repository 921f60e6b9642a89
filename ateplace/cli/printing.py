"""The only way from a command to the terminal: no foreign text reaches it unless it is printable.

`text` makes a piece of a table or line, `say` prints a line, `print_json` data, `complain` an error; `console` draws.
What is drawn passes through a last check in any case, which lets rich's own styles through and nothing else that
controls a terminal. `tests/unit/test_printing.py` finds commands that print in another way.
"""

import json
import re
import sys
from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ateplace.printable import printable, printable_lines

_RAW: Final = re.compile(r"[^\x20-\x7e\n]")


class _PrintableConsole(Console):
    """Draws text as it is: a string is one line and no markup."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.replace("\n", "").isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **{**options, "markup": False, "emoji": False})


def console() -> Console:
    """For standard output."""
    return _PrintableConsole()


def text(foreign: object, style: str = "") -> Text:
    """One line of a table or a list, whatever it was made of."""
    return Text(printable(str(foreign)), style=style)


def say(line: str) -> None:
    """Print one line."""
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()


def complain(error: object, *, lines: bool = False) -> None:
    """Say on standard error why a command failed; `lines`: in a text of our own that has several."""
    sys.stderr.write(f"ateplace: {(printable_lines if lines else printable)(str(error))}\n")


def print_json(data: Any) -> None:
    """Indented, for people with jq and people without. What is not printable is escaped, which changes no value."""
    encoded = json.dumps(data, indent=2, ensure_ascii=False)
    sys.stdout.write(_RAW.sub(_escape, encoded) + "\n")
    sys.stdout.flush()


def _escape(match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]
