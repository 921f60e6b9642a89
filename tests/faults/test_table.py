"""The table in README.md says which file shows which fault; the names of the tests say it too."""

import ast
import re
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
ROWS = range(27, 45)


def numbered() -> dict[int, set[str]]:
    """By row: the files with a test that has its number."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in HERE.glob("test_*.py"):
        for item in ast.parse(path.read_text("utf-8")).body:
            if isinstance(item, ast.FunctionDef) and (match := re.match(r"test((?:_\d\d)+)_", item.name)):
                for number in match[1].strip("_").split("_"):
                    found[int(number)].add(path.name)
    return dict(found)


def test_every_row_is_shown_where_the_table_says() -> None:
    table: dict[int, set[str]] = defaultdict(set)
    for numbers, cell in re.findall(
        r"^\| ([\d, ]+) \|.*\| ([^|]+) \|$", (HERE / "README.md").read_text(), re.MULTILINE
    ):
        for number in numbers.split(","):
            table[int(number)] |= set(re.findall(r"`(test_\w+\.py)`", cell))
    assert table == numbered()
    assert sorted(table) == list(ROWS)
