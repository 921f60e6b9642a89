"""A release: one version everywhere, workflows without complaints, files that are made without credentials."""

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

import ateplace
from release import make, sbom, version
from release.tools import tool
from release.version import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"^\s*(?:- )?uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")


def test_every_place_says_the_version_of_pyproject() -> None:
    assert ateplace.__version__ == version.current()
    for name, found in version.said().items():
        assert found and set(found) == {version.current()}, name


def test_no_other_file_says_it() -> None:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("needs the repository, to know which files are ours")
    named = [ROOT / name for name in done.stdout.split()]
    texts = [path for path in named if path.suffix in {".md", ".yaml", ".toml", ".py", ".tpl"} or not path.suffix]
    saying = {
        str(path.relative_to(ROOT))
        for path in texts
        if path.is_file() and re.search(rf"\bateplace[:=]v?{re.escape(version.current())}\b", path.read_text("utf-8"))
    }
    assert saying <= {*version.PLACES, "tests/node/building.py"}


def test_another_version_is_written_in_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in version.PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(version, "ROOT", tmp_path)
    before = version.said()
    assert version.main(["12.3.4-rc.1"]) == 0
    assert version.current() == "12.3.4-rc.1"
    assert version.said() == {name: ["12.3.4-rc.1"] * len(found) for name, found in before.items()}


def test_a_tag_is_refused_unless_it_is_the_versions_and_the_changelog_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## [Unreleased]\n\n### Added\n\n- Something.\n")
    monkeypatch.setattr(version, "ROOT", tmp_path)
    assert version.main(["--tag", "v1.2.4"]) == 1
    assert "the tag v1.2.4 is not that of version 1.2.3" in capsys.readouterr().err
    assert version.main(["--tag", "v1.2.3"]) == 1
    assert "CHANGELOG.md has no section for 1.2.3" in capsys.readouterr().err
    changelog.write_text(
        "## [Unreleased]\n\n## [1.2.3] - 2026-12-01\n\n### Fixed\n\n- This.\n\n## [1.2.2]\n\n- That.\n"
    )
    assert version.main(["--tag", "v1.2.3"]) == 0
    assert version.notes("1.2.3") == "### Fixed\n\n- This."


def test_the_changelog_is_kept_as_the_form_asks() -> None:
    headings = re.findall(r"^(#+) (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    versions = [text for level, text in headings if level == "##"]
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(rf"\[{version.NUMBER}\] - \d{{4}}-\d\d-\d\d", each) for each in versions[1:])
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert {text for level, text in headings if level == "###"} <= kinds


def test_every_action_is_pinned_by_its_commit_with_the_version_beside_it() -> None:
    uses = [line for path in WORKFLOWS for line in path.read_text("utf-8").splitlines() if "uses:" in line]
    assert len(WORKFLOWS) == 2 and len(uses) > 10
    assert [line for line in uses if not PINNED.match(line)] == []


def test_no_job_may_do_more_than_it_says() -> None:
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text("utf-8"))
        assert workflow["permissions"] == {}
        for name, job in workflow["jobs"].items():
            assert job["permissions"] and job["timeout-minutes"], name
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))
    (build,) = [step for step in release["jobs"]["image"]["steps"] if step.get("id") == "build"]
    assert build["with"]["platforms"] == "linux/amd64,linux/arm64"
    assert (build["with"]["sbom"], build["with"]["provenance"]) == (True, "mode=max")


def test_actionlint_has_no_complaint() -> None:
    command = [str(tool("actionlint")), "-shellcheck=", "-pyflakes=", *map(str, WORKFLOWS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_zizmor_has_no_complaint() -> None:
    program = str(Path(sys.executable).with_name("zizmor"))
    command = [program, "--offline", "--no-progress", "--persona=pedantic", *map(str, WORKFLOWS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_bill_of_materials_lists_the_lock() -> None:
    lock = ROOT / "requirements.lock"
    made = datetime(2026, 11, 18, tzinfo=UTC)
    bill = sbom.bill(lock, "1.2.3", made)
    pinned = re.findall(r"^([\w.-]+)==([\w.+!-]+)", lock.read_text("utf-8"), re.MULTILINE)
    assert [(each["name"], each["version"]) for each in bill["components"]] == pinned
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/ateplace@1.2.3"
    assert bill["dependencies"] == [{"ref": "ateplace", "dependsOn": [each["bom-ref"] for each in bill["components"]]}]
    assert (bill["bomFormat"], bill["metadata"]["timestamp"]) == ("CycloneDX", "2026-11-18T00:00:00Z")
    assert sbom.bill(lock, "1.2.3", made) == bill


def test_a_release_is_made_without_credentials_and_names_its_image(tmp_path: Path) -> None:
    number = version.current()
    made = {path.name: path for path in make.make(tmp_path, "r.example/mine/ateplace")}
    wheel, source = f"ateplace-{number}-py3-none-any.whl", f"ateplace-{number}.tar.gz"
    chart, bill = f"ateplace-{number}.tgz", f"ateplace-{number}.cdx.json"
    assert set(made) == {wheel, source, chart, bill}
    with tarfile.open(made[chart]) as archive:
        names = set(archive.getnames())
        values = archive.extractfile("ateplace/values.yaml")
        assert values is not None and b"repository: r.example/mine/ateplace\n" in values.read()
    assert {"ateplace/Chart.yaml", "ateplace/values.schema.json", "ateplace/templates/NOTES.txt"} <= names
    with zipfile.ZipFile(made[wheel]) as archive:
        (kustomization,) = [name for name in archive.namelist() if name.endswith("deploy/base/kustomization.yaml")]
        assert b"newName: r.example/mine/ateplace\n" in archive.read(kustomization)
    assert json.loads(made[bill].read_text("utf-8"))["metadata"]["component"]["version"] == number
    with tarfile.open(made[source]) as archive:
        assert f"ateplace-{number}/pyproject.toml" in archive.getnames()
