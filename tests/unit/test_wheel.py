"""What `pip install .` installs: everything that `ateplace up` needs, and nothing that is not ours to ship."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"ateplace", "webhook", "extender", "reconciler", "certs", "local", "deploy"}


def test_a_wheel_holds_our_packages_and_the_manifests(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "--quiet",
        "--no-index",
        "--no-deps",
    ]
    build = [*command, "--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in held} == PACKAGES
    manifests = {
        str(path.relative_to(source))
        for package in ("deploy", "local/manifests", "local/gomod", "local/realnode/gomod")
        for path in (source / package).rglob("*")
        if path.is_file() and source / "deploy" / "chart" not in path.parents
    }
    assert "deploy/overlays/second-scheduler/kustomization.yaml" in manifests
    assert manifests <= held
    assert not any(name.startswith("deploy/chart/") for name in held), "it is released by itself"
