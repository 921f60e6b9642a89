"""`make reproduce-oom`: where a limit can be had, what follows from figures, and that what is published does."""

from pathlib import Path

import msgspec
import pytest

from ateplace.local.realnode.cgroups import Hierarchy
from bench import oom_report
from bench.limits import parent
from bench.oom_report import MIB, Figures, Size, Step

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def published() -> Figures:
    return msgspec.json.decode((DOCS / "memory" / "figures.json").read_bytes(), type=Figures)


def test_the_published_report_and_plot_are_those_of_the_published_figures(published: Figures) -> None:
    assert (DOCS / "memory" / "README.md").read_text() == oom_report.report(published)
    assert (DOCS / "memory" / "memory.svg").read_text() == oom_report.plot(published)


def test_the_sizing_table_of_the_docs_comes_from_the_report(published: Figures) -> None:
    assert oom_report.sizing(published) in (DOCS / "operations.md").read_text()


def test_costs_are_the_growth_of_all_batches_but_the_first_and_no_restart_is_growth() -> None:
    steps = [
        Step("start", 0, Size(), {"extender": 40 * MIB}),
        Step("ateoms", 1, Size(ateoms=1000), {"extender": 50 * MIB}),
        Step("ateoms", 2, Size(ateoms=2000), {"extender": 52 * MIB}),
        Step("start", 2, Size(ateoms=2000), {"extender": 60 * MIB}),
        Step("ateoms", 3, Size(ateoms=3000), {}),
        Step("start", 3, Size(ateoms=3000), {"extender": 61 * MIB}),
        Step("ateoms", 4, Size(ateoms=4000), {"extender": 65 * MIB}),
    ]
    figures = Figures("m", "l", MIB, {"extender": 512 * MIB}, steps, [], {"extender": (45 * MIB, 64 * MIB)}, {})
    assert figures.costs("extender")["ateoms"] == 6 * MIB / 2000
    each = 25 * MIB / 4000
    assert figures.for_each_ateom("extender") == each, "the whole growth is more"
    assert figures.needed("extender") == 65 * MIB
    assert figures.at("extender", 14_000) == 65 * MIB + 10_000 * each
    assert figures.dies_at("extender", 512 * MIB) == 4000 + int(447 * MIB / each)


def test_a_cgroup_is_made_only_where_nothing_has_to_be_changed_for_it(tmp_path: Path) -> None:
    old, bare, new = tmp_path / "memory", tmp_path / "bare", tmp_path / "new"
    for directory in (old, bare, new):
        directory.mkdir()
    (bare / "cgroup.subtree_control").write_text("cpu pids\n")
    (new / "cgroup.subtree_control").write_text("cpu memory pids\n")
    assert parent([Hierarchy(bare, "", "/")]) is None
    assert parent([Hierarchy(tmp_path, "cpu", "/")]) is None
    assert parent([Hierarchy(bare, "", "/"), Hierarchy(old, "memory", "/")]) == old
    assert parent([Hierarchy(new, "", "/")]) == new
