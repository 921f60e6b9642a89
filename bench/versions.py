"""Which versions of Kubernetes ateplace works on: the tests that are marked `versions`, and the journey, on each.

    make test-versions                       every minor version that the local plane can be of
    make test-versions ARGS="1.33 1.37"      these
    make test-versions ARGS="--core 1.33"    two minutes of it, and nothing is written down

What came out is kept in docs/versions.json, one entry for each minor version, and the README's table is written from it
(`docs/generate.py`). The binaries of a version that was never built take about six minutes.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct, to_builtins

from ateplace.local.progress import say
from ateplace.local.versions import SUPPORTED, VARIABLE

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "versions.json"
JOURNEY = "the journey (ateplace up --once)"
TESTS = "tests/control_plane"
CORE = (f"{TESTS}/test_deploy.py", f"{TESTS}/test_watch.py")
"""What is left of it where time is short: the manifests are taken, lists and watches work."""

SIDE_BY_SIDE = ("-n", "2", "--dist", "loadfile")
"""As `make test` does: most tests wait for a control plane."""


class Run(Struct):
    """What came out on one version."""

    kubernetes: str
    etcd: str
    date: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: int = 0
    failures: list[str] = []

    def count(self, name: str, *, outcome: str) -> None:
        setattr(self, outcome, getattr(self, outcome) + 1)
        if outcome == "failed":
            self.failures.append(name)


def run(minor: str, *, core: bool = False) -> Run:
    """Everything on one version; raises CalledProcessError when there is no control plane to run it on."""
    versions = SUPPORTED[minor]
    environment = os.environ | {VARIABLE: minor}
    subprocess.run([sys.executable, "-m", "ateplace.local"], cwd=ROOT, env=environment, check=True)
    found = Run(versions.kubernetes, versions.etcd, datetime.now(UTC).date().isoformat())
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "versions", *SIDE_BY_SIDE, f"--junitxml={report}"]
        subprocess.run([*command, *(CORE if core else (TESTS,))], cwd=ROOT, env=environment)
        tally(found, report.read_text("utf-8") if report.exists() else "")
    journey = subprocess.run([sys.executable, "-m", "ateplace.cli", "up", "--once"], cwd=ROOT, env=environment)
    found.count(JOURNEY, outcome="failed" if journey.returncode else "passed")
    found.seconds = round(time.monotonic() - begun)
    return found


def tally(found: Run, report: str) -> None:
    """Add what pytest's report says; no report means that it failed as a whole."""
    if not report:
        found.count("pytest made no report", outcome="failed")
        return
    for case in ET.fromstring(report).iter("testcase"):  # noqa: S314 - written by our own pytest
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        bad = case.find("failure") is not None or case.find("error") is not None
        left = case.find("skipped") is not None
        found.count(name, outcome="failed" if bad else "skipped" if left else "passed")


def keep(minor: str, found: Run) -> None:
    """Write one version's entry."""
    known: dict[str, object] = {}
    with contextlib.suppress(FileNotFoundError):
        known = json.loads(RESULTS.read_text("utf-8"))
    known[minor] = to_builtins(found)
    ordered = {minor: known[minor] for minor in SUPPORTED if minor in known}
    RESULTS.write_text(json.dumps(ordered, indent=2) + "\n", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minors", nargs="*", metavar="MINOR", help=f"of {', '.join(SUPPORTED)}; all if none is named")
    parser.add_argument("--core", action="store_true", help="two minutes of it, and keep no result")
    options = parser.parse_args()
    if unknown := set(options.minors) - set(SUPPORTED):
        parser.error(f"the local plane cannot be of Kubernetes {', '.join(sorted(unknown))}")
    runs: dict[str, Run] = {}
    for minor in options.minors or SUPPORTED:
        say(f"Kubernetes {SUPPORTED[minor].kubernetes}")
        runs[minor] = run(minor, core=options.core)
        if not options.core:
            keep(minor, runs[minor])
    if not options.core:
        subprocess.run([sys.executable, "docs/generate.py"], cwd=ROOT, check=True)
    for found in runs.values():
        say(
            f"{found.kubernetes}: {found.passed} passed, {found.failed} failed, {found.skipped} skipped "
            f"in {found.seconds} s"
        )
        for name in found.failures:
            say(f"  failed: {name}")
    return int(any(found.failed for found in runs.values()))


if __name__ == "__main__":
    sys.exit(main())
