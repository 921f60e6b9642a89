"""Foreign text on a terminal: escapes, line breaks and bidirectional controls arrive as text."""

import ast
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from ateplace import settings
from ateplace.cli import explain, findings, printing, status, tables
from ateplace.cli.printing import complain, console, print_json, say, text
from ateplace.cli.snapshot import NodeRow, Picture, PoolRow
from ateplace.printable import LONGEST, printable, printable_lines
from ateplace.process import logs

CLI = Path(printing.__file__).parent
HOSTILE = {
    "clear the screen": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "eight-bit control": "\x9b31m",
    "line break": "fine\nok    everything is fine",
    "carriage return": "fail\rok",
    "backspace": "fail\b\b\b\bok",
    "right to left": "\u202eko\u202c",
    "isolate": "\u2066x\u2069",
    "line separator": "a\u2028b",
    "zero width": "o\u200bk",
    "tag": "\U000e0041",
    "surrogate": "\ud800",
    "nul": "a\0b",
}


@pytest.mark.parametrize("foreign", HOSTILE.values(), ids=HOSTILE)
def test_what_is_not_printable_is_shown_as_its_escape(foreign: str) -> None:
    shown = printable(foreign)
    assert shown.isprintable()
    assert shown.encode("ascii").decode("unicode_escape") == foreign


def test_ordinary_text_of_any_language_stays_as_it_is() -> None:
    for plain in ("a pod", "größer → 5 × ●", "日本語", "שלום", "C:\\n"):
        assert printable(plain) == plain
    assert printable_lines("one\ntwo\x1b") == "one\ntwo\\x1b"


def test_no_text_is_longer_than_a_screen() -> None:
    assert len(printable("x" * 100_000)) == LONGEST
    assert len(printable("\x1b" * 100_000)) <= 4 * LONGEST


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrapped, and rich styles as it does on a terminal."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("FORCE_COLOR", "1")


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was printed, without the styles that rich makes of ours; nothing else may control a terminal."""
    said = capsys.readouterr()
    printed = Text.from_ansi(said.out + said.err)
    assert all(line.isprintable() for line in (said.out + said.err).replace("\x1b[", "").split("\n"))
    return [line.rstrip() for line in printed.plain.split("\n") if line.strip()]


@pytest.mark.parametrize("foreign", HOSTILE.values(), ids=HOSTILE)
def test_every_way_to_the_terminal_is_clean(capsys: pytest.CaptureFixture[str], foreign: str) -> None:
    shown = printable(foreign)
    table = Table("a", box=None, pad_edge=False, show_header=False)
    table.add_row(foreign)
    for drawn in (foreign, text(foreign, "red"), table):
        console().print(drawn)
        assert lines(capsys) == [shown]
    say(foreign)
    assert lines(capsys) == [shown]
    complain(foreign)
    assert lines(capsys) == [f"ateplace: {shown}"]


def test_what_got_past_the_front_door_is_stopped_at_the_back(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(Text("\x1b[2J\u202eko"))
    assert lines(capsys) == ["\\x1b[2J\\u202eko"]


def test_markup_and_links_in_foreign_text_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    foreign = "[red]x[/red] [link=https://registry.example]y[/link] :smile:"
    console().print(foreign)
    assert lines(capsys) == [foreign]


@pytest.mark.parametrize("foreign", HOSTILE.values(), ids=HOSTILE)
def test_json_holds_the_value_and_controls_nothing(capsys: pytest.CaptureFixture[str], foreign: str) -> None:
    print_json({foreign: [foreign, "größer"]})
    said = capsys.readouterr().out
    assert said.replace("\n", "").isprintable() and "größer" in said
    assert json.loads(said) == {foreign: [foreign, "größer"]}


@pytest.mark.parametrize("foreign", HOSTILE.values(), ids=HOSTILE)
def test_explain_shows_events_decisions_and_notes_as_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, foreign: str
) -> None:
    found = explain.Explanation(
        kind="pod",
        name=foreign,
        findings=[findings.fail(foreign, foreign)],
        decisions=[explain.Decision("2026-11-18T00:00:00.000Z", foreign, foreign, [foreign], foreign)],
        events=[explain.Event(foreign, foreign, foreign)],
        notes=[foreign],
    )
    monkeypatch.setattr(explain, "connected", lambda *_: found)
    explain.pod("ns/p", flags=[], extender_urls=[])
    shown = printable(foreign)
    words = [line.split() for line in lines(capsys)]
    expected = [
        f"pod {shown}",
        f"fail {shown}",
        f"→ {shown}",
        "What the extenders decided",
        f"00:00:00.000 {shown} {shown} {shown}",
        shown,
        "Events",
        f"{shown}: {shown}",
        f"! {shown}",
    ]
    assert words == [line.split() for line in expected]


def test_status_and_doctor_show_names_and_notes_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    foreign = "\x1b[2Jfine\nok"
    picture = Picture(
        nodes={foreign: NodeRow(foreign, labelled=True, atelet=foreign)},
        pools={},
        rows={foreign: PoolRow(foreign, "u")},
        waiting=0,
    )
    console().print(status.screen(status.Status(picture, {foreign: (1, 1)}, [foreign]), idle=True))
    console().print(tables.draw(picture))
    console().print(findings.table([findings.warn(foreign, foreign)]))
    shown = printable(foreign)
    said = lines(capsys)
    assert sum(shown in line for line in said) == 7
    assert not any(line.startswith("ok") for line in said)


def test_a_commands_error_is_one_line(tmp_path: Path) -> None:
    """Run for real: the setting's name comes from the command line, and is in the complaint."""
    command = [sys.executable, "-m", "ateplace.cli", "status", "--set", "cluster.kubeconfig=/\x1b[2J\u202e"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode
    assert done.stderr.replace("\n", "").isprintable() and "\\x1b[2J\\u202e" in done.stderr


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("foreign", HOSTILE.values(), ids=HOSTILE)
def test_a_log_line_is_one_printable_line(form: str, foreign: str) -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        logs.setup(settings.Log(format=form, level="info"), stream)
        logging.getLogger("x").warning("event", extra={"reason": foreign})
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    if form == "json":
        assert json.loads(line)["reason"] == foreign


PRINTING = {"print", "Console", "rprint"}
WRITING = {"echo", "secho", "write", "writelines", "print_exception"}


def prints(tree: ast.AST) -> Iterator[str]:
    """Calls that bring something to a terminal past `printing`, or make a Text of what is not constant."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in PRINTING:
            yield ast.unparse(node)
        if isinstance(called, ast.Attribute) and called.attr in WRITING | {"Console"}:
            yield ast.unparse(node)
        constant = all(isinstance(argument, ast.Constant) for argument in node.args)
        makes_text = isinstance(called, ast.Name) and called.id == "Text"
        styled = isinstance(called, ast.Attribute) and called.attr == "append" and bool(node.keywords)
        from_markup = isinstance(called, ast.Attribute) and called.attr in {"from_markup", "from_ansi"}
        if (makes_text and not constant) or (styled and not constant) or from_markup:
            yield ast.unparse(node)


def test_the_finder_finds() -> None:
    calls = (
        "print(x)",
        "Console().print(x)",
        "sys.stdout.write(x)",
        "typer.echo(x)",
        "Text(x)",
        "t.append(x, style=y)",
    )
    assert [len(list(prints(ast.parse(call)))) for call in calls] == [1] * len(calls)
    assert list(prints(ast.parse('Text("a"); items.append(x)'))) == []


def test_no_command_prints_past_the_one_place_that_does() -> None:
    paths = sorted(path for path in CLI.rglob("*.py") if path.name != "printing.py")
    assert len(paths) > 20
    found = {str(path.relative_to(CLI)): list(prints(ast.parse(path.read_text("utf-8")))) for path in paths}
    assert {path: calls for path, calls in found.items() if calls} == {}
