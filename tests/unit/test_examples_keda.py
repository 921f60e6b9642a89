"""The KEDA recipe's query: about a metric that we expose, and what it comes to, as promtool evaluates it."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ateplace.reconciler.headroom.warm_slots import WarmSlots
from tests.promtool import promtool
from tests.unit.exposition import known, labels_of

RECIPE = list(yaml.safe_load_all((Path(__file__).parents[2] / "examples" / "keda.yaml").read_text()))
POOL, SCALED = (next(one for one in RECIPE if one["kind"] == kind) for kind in ("WorkerPool", "ScaledObject"))
(TRIGGER,) = SCALED["spec"]["triggers"]
QUERY: str = TRIGGER["metadata"]["query"]
SLOTS = "ateplace_warm_slots"


def test_its_query_names_a_metric_that_we_expose_with_labels_and_values_that_it_has() -> None:
    assert set(re.findall(r"\bateplace_\w+", QUERY)) == {SLOTS} <= known()
    selected = dict(re.findall(r'(\w+)=~?"([^"]*)"', QUERY))
    assert set(selected) <= labels_of(SLOTS)
    meta = POOL["metadata"]
    assert selected["pool"] == f"{meta['namespace']}/{meta['name']}"
    assert set(selected["state"].split("|")) <= set(WarmSlots.__struct_fields__)


def test_its_threshold_makes_the_queried_number_the_number_of_ateoms() -> None:
    """A HorizontalPodAutoscaler divides by the threshold, for AverageValue not by the replicas that there are."""
    assert TRIGGER["metricType"] == "AverageValue" and TRIGGER["metadata"]["threshold"] == "1"
    target = SCALED["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("WorkerPool", POOL["metadata"]["name"])


def series(pod: str, state: str, value: int, pool: str = "example-keda/web") -> dict[str, str]:
    return {"series": f'{SLOTS}{{pod="{pod}", pool="{pool}", state="{state}"}}', "values": str(value)}


@pytest.mark.parametrize(
    ("shown", "value"),
    [
        ([series("r1", "used", 2), series("r1", "free", 5), series("r1", "placeholder", 3)], 7),
        ([series("r1", "used", 2), series("r1", "free", 5), series("r2", "used", 3), series("r2", "free", 4)], 8),
        ([series("r1", "used", 2, "example-keda/other")], None),
    ],
    ids=["placeholders are left out", "a leader and the one before", "no value for another pool"],
)
def test_it_comes_to_used_and_free(tmp_path: Path, shown: list[dict[str, str]], value: int | None) -> None:
    samples: list[dict[str, Any]] = [] if value is None else [{"labels": "{}", "value": value}]
    case = {"input_series": shown, "promql_expr_test": [{"expr": QUERY, "eval_time": "0m", "exp_samples": samples}]}
    (tmp_path / "case.yaml").write_text(yaml.safe_dump({"tests": [{"interval": "1m", **case}]}))
    command = [promtool(), "test", "rules", "case.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
