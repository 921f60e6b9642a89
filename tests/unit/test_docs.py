"""The pages that are read off the code are current, and what pages say about each other is true."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import ateplace
from tests.unit.exposition import generator, known

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_generated_pages_are_current() -> None:
    stale = [name for name, make in generator().PAGES.items() if (ROOT / "docs" / name).read_text() != make()]
    assert not stale, "run: python docs/generate.py"


def test_every_module_that_is_shipped_has_a_line() -> None:
    """In the list of modules, and so in the contract of layers that it is made from."""
    page = (ROOT / "docs" / "modules.md").read_text()
    modules = [
        module.name
        for module in pkgutil.walk_packages(ateplace.__path__, "ateplace.")
        if not (module.ispkg or module.name.endswith(".__main__") or module.name.startswith("ateplace.local"))
    ]
    assert len(modules) > 100
    missing = [name for name in modules if f"[{name}](" not in page and f"\n## {name}\n" not in page]
    assert not missing


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


REMEMBERED = {
    "ateplace.cluster.picks": ("EXPIRY", "UNSEEN", "REFUSED"),
    "ateplace.cluster.state": ("MAKING",),
    "ateplace.cluster.tables": ("READ",),
    "ateplace.extender.filter.claiming": ("FULL_SECONDS", "DENIED_SECONDS", "READ_FIRST_SECONDS"),
    "ateplace.extender.filter.handler": ("REPLAY_SECONDS",),
    "ateplace.extender.filter.nominate": ("LIST_SECONDS", "PAUSE_SECONDS", "FAILED_SECONDS"),
    "ateplace.extender.filter.refused_pods": ("SAME_SECONDS", "FIRST", "LAST"),
    "ateplace.extender.preempt.evict": ("FORBIDDEN_SECONDS",),
    "ateplace.extender.victims": ("SECONDS",),
    "ateplace.reconciler.claims.atelet_late": ("SAY_AGAIN",),
    "ateplace.reconciler.events": ("SAME_SECONDS",),
    "ateplace.reconciler.gating": ("FIRST_WAIT", "LONGEST_WAIT"),
    "ateplace.reconciler.pools": ("SAY_AGAIN",),
    "ateplace.reconciler.workqueue": ("FIRST_DELAY", "LONGEST_DELAY"),
    "ateplace.webhook.pools": ("MOMENT",),
}
"""For how long things are remembered: constants by module."""


def test_every_short_lived_memory_is_in_the_table_with_its_time() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("\n## What is remembered, for how long\n")[2].partition("\n## ")[0]
    rows = [row.split(" | ") for row in table.splitlines() if row.startswith("| ")][1:]
    for name, constants in REMEMBERED.items():
        module = importlib.import_module(name)
        path = str(Path(module.__file__ or "").resolve().relative_to(ROOT))
        said = " ".join(how_long for _, where, how_long, _ in rows if f"`{path}`" in where)
        for constant in constants:
            assert f" {getattr(module, constant):g} s" in f" {said}", (path, constant)
    listed = {one for _, where, *_ in rows for one in re.findall(r"`([\w/]+\.py)`", where)}
    files = [
        path
        for role in ("extender", "reconciler", "webhook", "ateplace/cluster")
        for path in (ROOT / role).rglob("*.py")
    ]
    forgetting = {str(path.relative_to(ROOT)) for path in files if re.search(r"= Expiring\(", path.read_text())}
    assert len(forgetting) >= 5
    assert forgetting <= listed
    assert all((ROOT / one).exists() for one in listed)


def test_every_test_that_security_names_exists() -> None:
    """A limit is only worth what its test proves: each row of the table has one, and it is there."""
    page = (ROOT / "docs" / "security.md").read_text()
    modules = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    table = page.partition("\n## Limits\n")[2].partition("\n## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ")][1:]
    assert rows
    for row in rows:
        proofs = row.split(" | ")[-1]
        assert re.search(r"`test_\w+\.py`", proofs), row
        for part in proofs.split(";"):
            # Functions are named after their module: `test_x.py`: `test_a`, `test_b`
            named = re.findall(r"`(?:[\w/]*/)?(test_\w+\.py)`", part)
            functions = re.findall(r"`(test_\w+)`", part)
            assert not functions or len(named) == 1, part
            for function in functions:
                assert re.search(rf"^ *(async )?def {function}\(", modules[named[0]], re.MULTILINE), (named, function)
    assert set(re.findall(r"`(?:[\w/]*/)?(test_\w+\.py)`", page)) <= set(modules)
