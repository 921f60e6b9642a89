"""Log lines, as a collector and as a person read them."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from ateplace.printable import LONGEST
from ateplace.process import logs
from ateplace.settings import Log


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


def lines(options: Log) -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    logs.setup(options, stream)
    return logging.getLogger("test.log"), stream


def test_json_has_constant_message_and_variable_fields() -> None:
    log, stream = lines(Log(format="json"))
    log.info("claim released", extra={"node": "n1", "pods": 3, "pools": ["a", "b"], "why": None})
    line = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("time"))
    assert line == {
        "level": "info",
        "logger": "test.log",
        "message": "claim released",
        "node": "n1",
        "pods": 3,
        "pools": ["a", "b"],
        "why": None,
    }


def test_a_field_cannot_pose_as_another_and_is_cut() -> None:
    log, stream = lines(Log(format="json"))
    log.info("seen", extra={"level": "forged", "long": "x" * 10_000, "odd": object})
    line = json.loads(stream.getvalue())
    assert line["level"] == "info"
    assert len(line["long"]) == LONGEST
    assert line["odd"] == "<class 'object'>"


def test_a_line_is_one_line_whatever_comes_in() -> None:
    log, stream = lines(Log(format="text"))
    log.warning("seen", extra={"name_": 'a"b\nlevel=error', "empty": ""})
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.rstrip().endswith(r'WARNING test.log: seen  name_="a\"b\nlevel=error" empty=""')


def test_an_exception_comes_with_its_traceback() -> None:
    log, stream = lines(Log(format="json"))
    log.error("failed", exc_info=RuntimeError("broken on purpose"))
    assert "RuntimeError: broken on purpose" in json.loads(stream.getvalue())["error"]


def test_levels_are_obeyed() -> None:
    log, stream = lines(Log(format="text", level="warning"))
    log.info("quiet")
    log.error("loud")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


def test_auto_means_json_unless_a_terminal_reads() -> None:
    log, stream = lines(Log(format="auto"))
    log.info("seen")
    assert json.loads(stream.getvalue())["message"] == "seen"


def test_a_warning_that_is_repeated_is_written_once_a_second_and_says_how_many_were_not() -> None:
    now = 0.0
    repeats = logs.Repeats(lambda: now)

    def written(message: str = "client refused", level: int = logging.WARNING) -> logging.LogRecord | None:
        record = logging.makeLogRecord({"name": "x", "msg": message, "levelno": level})
        return record if repeats.filter(record) else None

    assert [written() is not None for _ in range(1000)].count(True) == logs.BURST
    assert written("another") is not None
    assert all(written(level=logging.INFO) for _ in range(1000))
    for _ in range(5):
        now += 1
        found = written()
        assert found is not None and logs.fields(found)["suppressed"] in {1000 - logs.BURST, 9}
        assert [written() for _ in range(9)] == [None] * 9
    now += 3600
    assert [written() is not None for _ in range(100)].count(True) == logs.BURST


def test_messages_that_are_never_the_same_fill_no_memory() -> None:
    repeats = logs.Repeats(lambda: 0.0)
    for number in range(3 * logs.MESSAGES):
        repeats.filter(logging.makeLogRecord({"name": "x", "msg": f"{number}", "levelno": logging.ERROR}))
    assert len(repeats._seen) <= logs.MESSAGES
