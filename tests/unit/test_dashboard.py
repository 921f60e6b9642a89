"""The dashboard: real Grafana JSON, every query about metrics that exist with labels that they have."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.exposition import known, labels_of

PATH = Path(__file__).parents[2] / "deploy" / "components" / "grafana" / "dashboard.json"
DASHBOARD: dict[str, Any] = json.loads(PATH.read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
SCRAPED = frozenset({"job", "namespace", "pod", "instance", "le"})
"""Labels that Prometheus adds, and a histogram's own."""
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}


def test_it_can_be_imported() -> None:
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["uid"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in PANELS:
        assert panel["targets"], panel["title"]
        assert {"h", "w", "x", "y"} <= set(panel["gridPos"])
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_a_query_names_metrics_that_exist_with_labels_that_they_have(title: str, query: str) -> None:
    bare = re.sub(r'"[^"]*"', '""', query)
    used = set(re.findall(r"\b(?:ateplace|process)_\w+", bare))
    assert used, title
    assert used <= known() | PROCESS
    allowed = SCRAPED.union(*(labels_of(name) for name in used - PROCESS))
    named = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", bare))
    for grouped in re.findall(r"\b(?:by|without) \(([^)]*)\)", bare):
        named |= {label.strip() for label in grouped.split(",")}
    assert named <= allowed


def test_a_sum_of_sums_is_shown_before_all_of_them_have_been_counted() -> None:
    """To add nothing to a number gives nothing."""
    for title, query in QUERIES:
        if ") + " in query:
            assert query.count("or vector(0)") == query.count(") + ") + 1, title


def test_a_share_of_none_is_nothing_and_a_share_of_nothing_is_not_shown() -> None:
    """A counter that was never counted is missing: divided it gives no value, where 0 is meant. And 0 / 0 is NaN."""
    for title, query in QUERIES:
        share, division, whole = query.partition(" / ")
        if division:
            assert share.endswith("or vector(0))"), title
            assert whole.endswith("> 0)"), title


def test_every_query_has_balanced_brackets_and_a_range_for_each_rate() -> None:
    for title, query in QUERIES:
        for opening, closing in ("()", "[]", "{}"):
            assert query.count(opening) == query.count(closing), title
        assert len(re.findall(r"\b(?:rate|increase)\(", query)) == query.count("["), title
