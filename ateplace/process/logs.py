"""Structured logs on the standard library's logging.

Use: `log = logging.getLogger(__name__)`, then `log.info("claim released", extra={"node": …, "pool": …})`. The
message is constant, what varies is a field: one can search for either. Bodies are never logged. What a field holds may
be foreign: it is cut, and escaped where it is not printable.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import IO, Final

from ateplace import settings
from ateplace.printable import LONGEST, printable, printable_lines

STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}
"""What every record has; anything else came in through `extra`."""


BURST: Final = 20
"""Lines of one warning before there is one a second."""
MESSAGES: Final = 1000
"""Different warnings that are told apart."""


def setup(options: settings.Log, stream: IO[str] | None = None) -> None:
    """Send all logs of this process to `stream` (standard error), in the format that the settings ask for."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    as_text = options.format == "text" or (options.format == "auto" and stream.isatty())
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    handler.addFilter(Repeats())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(options.level.upper())
    if options.level != "debug":
        for noisy in ("asyncio", "aiohttp", "httpx", "httpcore", "kubernetes"):
            logging.getLogger(noisy).setLevel(logging.WARNING)


class Repeats(logging.Filter):
    """Bounds what a stranger can make us write: of the same warning or error, `BURST` lines and then one a second. The
    next line that is written says how many were not (`suppressed`). Messages are constant, so there are few."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], list[float]] = {}
        """Logger and message to: when its burst is whole again, and how many lines were suppressed."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now, key = self._clock(), (record.name, str(record.msg))
        if len(self._seen) >= MESSAGES:
            self._seen = {key: seen for key, seen in self._seen.items() if seen[0] > now or seen[1]}
        if len(self._seen) >= MESSAGES:
            self._seen.clear()
        seen = self._seen.setdefault(key, [now, 0])
        if seen[0] > now + BURST - 1:
            seen[1] += 1
            return False
        seen[0] = max(seen[0], now) + 1
        if seen[1]:
            record.suppressed = int(seen[1])
            seen[1] = 0
        return True


def fields(record: logging.LogRecord) -> dict[str, object]:
    """What the caller passed as `extra`, ready for JSON."""
    return {key: _plain(value) for key, value in record.__dict__.items() if key not in STANDARD}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the fields, and `error` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        for key, value in fields(record).items():
            line.setdefault(key, value)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        written = json.dumps(line, ensure_ascii=False)
        return written if written.isprintable() else json.dumps(line)


class TextFormatter(logging.Formatter):
    """A line for people: `12:00:01.250 INFO  reconciler.claims.release: claim released  node=n1 pool=p`."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock}.{record.msecs:03.0f} {record.levelname:<5} {record.name}: {_message(record)}"
        extra = " ".join(f"{key}={_shown(value)}" for key, value in fields(record).items())
        if extra:
            line += "  " + extra
        if record.exc_info:
            line += "\n" + printable_lines(self.formatException(record.exc_info))
        return line


def _message(record: logging.LogRecord) -> str:
    return printable(record.getMessage().strip())


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1e6):06d}Z"


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)[:LONGEST]


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return json.dumps(text, ensure_ascii=False) if not text or any(c in text for c in ' "=') else text
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if quoted.isprintable() else json.dumps(text)
