"""The versions of Kubernetes that are said to be tested were tested, and what a run came to is counted."""

import json

from ateplace.cli.doctor.versions import TESTED, minor
from ateplace.local.versions import SUPPORTED
from bench.versions import RESULTS, Run, tally

REPORT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.control_plane.test_rbac" name="test_a" time="1.0" />
<testcase classname="tests.control_plane.test_rbac" name="test_b[x]"><failure message="no">trace</failure></testcase>
<testcase classname="tests.control_plane.test_kube" name="test_c"><error message="setup">trace</error></testcase>
<testcase classname="tests.control_plane.test_kube" name="test_d"><skipped message="not here" /></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_by_outcome_and_failures_are_named() -> None:
    found = Run("v1.40.1", "v3.9.0", "2026-11-18")
    tally(found, REPORT)
    assert (found.passed, found.failed, found.skipped) == (1, 2, 1)
    assert found.failures == ["test_rbac::test_b[x]", "test_kube::test_c"]


def test_a_run_without_a_report_has_failed() -> None:
    found = Run("v1.40.1", "v3.9.0", "2026-11-18")
    tally(found, "")
    assert (found.passed, found.failed) == (0, 1)


def test_doctor_calls_tested_what_a_green_run_is_kept_of() -> None:
    runs = json.loads(RESULTS.read_text())
    assert {minor for minor, run in runs.items() if run["kubernetes"] != SUPPORTED[minor].kubernetes} == set(), "stale"
    assert set(TESTED) == {minor(run["kubernetes"]) for run in runs.values() if not run["failed"]}
