"""Foreign text, made safe for a terminal and a log: one printable line of bounded length.

Events, conditions, API errors and other replicas' answers hold whatever their authors wrote: terminal escapes, line
breaks that forge further lines, bidirectional controls that reverse what is read.
"""

import re
from typing import Final

LONGEST: Final = 2000
"""Characters of one text."""

_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")


def printable(text: str) -> str:
    """What is not printable becomes its escape, such as `\\x1b` or `\\u202e`; what is too long is cut."""
    if len(text) > LONGEST:
        text = text[: LONGEST - 1] + "…"
    return text if text.isprintable() else _UNPRINTABLE.sub(_escape, text)


def printable_lines(text: str) -> str:
    """The same for a text of our own that has several lines."""
    return "\n".join(map(printable, text.split("\n")))


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
