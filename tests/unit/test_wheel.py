"""What `pip install ateplace` installs: one package, with everything that `ateplace up` needs, and that it works."""

import ast
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from ateplace import __version__

ROOT = Path(__file__).parents[2]
BELOW = ("webhook", "extender", "reconciler", "certs", "local", "deploy")
"""Directories of the repository that are installed below `ateplace`, by links in it."""
WITHOUT_INDEX = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    source = target / "source"
    shutil.copytree(ROOT / "ateplace", source / "ateplace", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", *WITHOUT_INDEX, "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(target), str(source)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return built


def test_a_wheel_holds_one_package_with_our_manifests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in held} == {"ateplace"}
    chart = ROOT / "deploy" / "chart"
    expected = {
        f"ateplace/{path.relative_to(ROOT)}"
        for package in ("deploy", "local/manifests", "local/gomod", "local/realnode/gomod")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and chart not in path.parents
    }
    expected |= {f"ateplace/{path.relative_to(ROOT)}" for package in BELOW for path in (ROOT / package).rglob("*.py")}
    assert "ateplace/deploy/overlays/second-scheduler/kustomization.yaml" in expected
    assert expected <= held
    assert not any(name.startswith("ateplace/deploy/chart/") for name in held), "it is released by itself"


def test_installed_in_an_environment_of_its_own_it_adds_one_package_and_runs(wheel: Path, tmp_path: Path) -> None:
    """What it depends on comes from this environment, as there may be no index; ateplace itself from that one."""
    place = tmp_path / "environment"
    venv.create(place, with_pip=False, symlinks=True)
    (packages,) = place.glob("lib/python3.*/site-packages")
    before = {path.name for path in packages.iterdir()}
    command = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", *WITHOUT_INDEX]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in packages.iterdir()} - before == {"ateplace", f"ateplace-{__version__}.dist-info"}
    (dependencies,) = {path for path in map(Path, sys.path) if (path / "pydantic").is_dir()}
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(dependencies)}
    where = "import ateplace.webhook.app, ateplace.local.scene as scene; print(scene.__file__, scene.OVERLAY.is_dir())"
    for argv, said in (
        (["bin/ateplace", "version"], f"{__version__}\n"),
        (["bin/kubectl-ateplace", "settings", "--set", "webhook.port=9443"], None),
        (["bin/python", "-c", where], f"{packages}/ateplace/local/scene.py True\n"),
    ):
        run = subprocess.run(
            [str(place / argv[0]), *argv[1:]], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert run.returncode == 0, run.stderr
        assert said is None or run.stdout == said
    roles = [str(place / "bin" / "ateplace"), "run", "--set", f"cluster.kubeconfig={tmp_path}/none"]
    run = subprocess.run(roles, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "no such file" in run.stderr and "Traceback" not in run.stderr, run.stderr


def test_our_directories_are_imported_below_the_package_only() -> None:
    """From a checkout's root they could be imported by their own names too, and would then be there twice."""
    for name in BELOW:
        assert (ROOT / "ateplace" / name).readlink() == Path("..") / name
    found = []
    for path in (
        each for top in ("ateplace", *BELOW, "bench", "docs", "release", "tests") for each in (ROOT / top).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found += [f"{path.relative_to(ROOT)}: {name}" for name in names if name.partition(".")[0] in BELOW]
    assert found == []
