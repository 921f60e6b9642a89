"""The alert rules: valid, about metrics that exist, documented, and each fires when it should and only then."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ateplace.extender.fit import ANNOTATIONS
from tests.promtool import promtool
from tests.unit.exposition import known, labels_of

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy" / "components" / "prometheus" / "rules.yaml"
CASES = Path(__file__).parent / "alerts.yaml"
GROUPS: list[dict[str, Any]] = yaml.safe_load(SHIPPED.read_text())["spec"]["groups"]
OTHERS = {"kube_deployment_status_replicas_available", "kube_deployment_spec_replicas"}
"""What kube-state-metrics tells: kube-scheduler's own metrics want a token."""
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """The rules as Prometheus reads them, without the operator's wrapping, and the cases beside them."""
    (tmp_path / "cases.yaml").write_text(CASES.read_text())
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": GROUPS}))
    return path


def run(*arguments: str, cwd: Path) -> None:
    done = subprocess.run([promtool(), *arguments], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules(rules: Path) -> None:
    run("check", "rules", rules.name, cwd=rules.parent)


def test_every_alert_fires_when_it_should_and_only_then(rules: Path) -> None:
    run("test", "rules", "cases.yaml", cwd=rules.parent)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = [case for group in yaml.safe_load(CASES.read_text())["tests"] for case in group["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == set(ALERTS)
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == set(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_names_metrics_that_exist_with_labels_that_they_have(name: str) -> None:
    expression = ALERTS[name]["expr"]
    used = set(re.findall(r"\b(?:ateplace|kube)_\w+", re.sub(r'"[^"]*"', '""', expression)))
    assert used
    assert used <= known() | OTHERS
    for metric, selector in re.findall(r"\b(ateplace_\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*[=!]", selector)) <= labels_of(metric) | {"job", "namespace", "pod", "le"}


def test_the_alert_about_full_nodes_knows_the_extenders_reason() -> None:
    assert f'reason="{ANNOTATIONS}"' in ALERTS["AteplaceNodeAnnotationsFull"]["expr"]


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_a_severity_a_sentence_and_a_paragraph(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["summary"].endswith(".")
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
