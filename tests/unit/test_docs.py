"""The pages that are read off the code are current, and what pages say about each other is true."""

import re
from pathlib import Path

import pytest

from tests.unit.exposition import generator, known

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("name", ["settings.md", "metrics.md", "cli.md", "../README.md"])
def test_a_generated_page_is_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == generator().PAGES[name](), "run: python docs/generate.py"


def test_every_metric_has_a_meaning_and_the_page_names_no_other() -> None:
    rows = [row for rows in generator().metrics_by_package().values() for row in rows]
    assert all(meaning.endswith(".") for *_, meaning in rows)
    page = (ROOT / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"\bateplace_\w+", page))
    assert named == {name for name, *_ in rows}
    assert {name for name, kind, *_ in rows if kind != "histogram"} <= known()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path) if path else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}, target
