"""The image: the Dockerfile's own steps in a clean directory and, where there is an engine, the image itself."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ateplace import __version__, settings
from tests.unit import dockerfile

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
IGNORE = (ROOT / ".dockerignore").read_text()
OURS = {"ateplace", "webhook", "extender", "reconciler", "certs"}
SIZE = 170 * 1024 * 1024
"""Bytes of site-packages, bytecode included."""
USER = 65532
UNCHECKED_HASH = 0b01
"""The second word of a .pyc (PEP 552): valid by its source's hash, which is not compared."""


def interpreter() -> str:
    """Python 3.13, as in the image, when this machine has one; else the one we run on."""
    candidates = ["python3.13", *map(str, Path.home().glob(".pyenv/versions/3.13.*/bin/python3.13"))]
    for candidate in candidates:
        found = shutil.which(candidate)
        if found and not subprocess.run([found, "-c", "import venv"], capture_output=True).returncode:
            asked = [found, "-c", "import sys; print(sys.executable)"]
            return subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    return sys.executable


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """/opt/ateplace as the first stage leaves it, below a directory that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="ateplace-image-") as name:
        target = Path(name)
        target.chmod(0o755)
        first, _ = dockerfile.stages(TEXT)
        dockerfile.build(first, ROOT, IGNORE, target, interpreter())
        yield target / "opt" / "ateplace"


@pytest.fixture(scope="module")
def packages(image: Path) -> Path:
    (found,) = (image / "lib").glob("python3.*/site-packages")
    return found


def run(image: Path, *arguments: str, program: str = "ateplace") -> str:
    """What a program of the image prints, as the image's user where we may become it (and it can reach Python)."""
    outside = [*(image / "bin" / "python").resolve().parents]
    become = os.geteuid() == 0 and all(path.stat().st_mode & stat.S_IXOTH for path in outside)
    identity = {"user": USER, "group": USER, "extra_groups": []} if become else {}
    environment = {"PATH": f"{image / 'bin'}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(image / "bin" / program), *arguments]
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=60, **identity)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_the_command_runs_as_a_user_who_owns_nothing(image: Path) -> None:
    assert run(image, "version").strip() == __version__
    printed = json.loads(run(image, "settings", "--output", "json"))
    assert {row["setting"] for row in printed} >= {"webhook.port", "extender.port", "reconciler.linger"}
    for role in ("webhook", "extender", "reconciler", "run"):
        assert "--set" in run(image, role, "--help")


def test_every_module_of_ours_can_be_imported_from_what_is_locked(image: Path, packages: Path) -> None:
    modules = sorted(
        ".".join(path.relative_to(packages).with_suffix("").parts).removesuffix(".__init__")
        for package in OURS
        for path in (packages / package).rglob("*.py")
    )
    assert {"ateplace.cli", "webhook.app", "extender.app"} <= set(modules)
    run(
        image,
        "-c",
        "import importlib, sys; [importlib.import_module(m) for m in sys.argv[1:]]",
        *modules,
        program="python",
    )


def test_it_holds_our_packages_and_neither_tools_nor_tests(image: Path, packages: Path) -> None:
    found = {path.name for path in packages.iterdir()}
    assert found >= OURS
    unwanted = {"pip", "setuptools", "wheel", "local", "tests", "bench", "pytest", "mypy", "hypothesis", "deploy"}
    assert not found & unwanted
    commands = {path.name for path in (image / "bin").iterdir()}
    assert {"ateplace", "kubectl-ateplace"} <= commands
    assert not {name for name in commands if name.startswith("pip")}


def test_nothing_needs_to_be_written_and_nothing_can_be(image: Path, packages: Path) -> None:
    for package in OURS:
        for source in (packages / package).rglob("*.py"):
            assert list((source.parent / "__pycache__").glob(f"{source.stem}.cpython-*.pyc")), source
    for path in image.rglob("*"):
        if not path.is_symlink():
            state = path.stat()
            assert state.st_uid == os.geteuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH), path
    before = {path: path.stat().st_mtime_ns for path in image.rglob("*") if not path.is_symlink()}
    run(image, "settings")
    assert {path: path.stat().st_mtime_ns for path in image.rglob("*") if not path.is_symlink()} == before


def test_bytecode_is_used_whatever_became_of_the_files_times(packages: Path) -> None:
    """A builder that rewrites times, for images that can be reproduced, must not make every start compile it all."""
    compiled = list(packages.rglob("*.pyc"))
    assert compiled
    for path in compiled:
        flags = int.from_bytes(path.read_bytes()[4:8], "little")
        assert flags == UNCHECKED_HASH, path


def test_it_stays_small(packages: Path) -> None:
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    assert size < SIZE, f"{size / 2**20:.0f} MiB"


def test_the_build_context_is_what_the_image_is_made_of() -> None:
    sent = list(dockerfile.context(ROOT, IGNORE))
    assert {path.parts[0] for path in sent} <= OURS | {
        "pyproject.toml",
        "requirements.lock",
        "requirements-dev.lock",
        "README.md",
        "LICENSE",
    }
    assert not [path for path in sent if "__pycache__" in path.parts]


def test_the_last_stage_is_the_pinned_base_with_a_user_labels_and_nothing_to_install_with() -> None:
    base = re.search(r"^ARG BASE=docker\.io/library/python:3\.13-slim@sha256:[0-9a-f]{64}$", TEXT, re.MULTILINE)
    assert base
    first, last = dockerfile.stages(TEXT)
    assert [first[0].rest, last[0].rest] == ["${BASE} AS build", "${BASE}"]
    words = {word: rest for word, rest in last if word != "RUN"}
    assert words["USER"] == f"{USER}:{USER}"
    assert words["ENTRYPOINT"] == '["ateplace"]'
    assert words["COPY"] == "--from=build /opt/ateplace /opt/ateplace"
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in words["LABEL"]
    assert "pip uninstall" in next(rest for word, rest in last if word == "RUN")
    assert f"ARG VERSION=v{__version__}" in TEXT


def test_images_that_we_name_in_settings_are_pinned_by_digest() -> None:
    for image in (settings.BUSYBOX, settings.PAUSE):
        assert re.search(r":[\w.]+@sha256:[0-9a-f]{64}$", image)


def engine() -> str | None:
    """A container engine that answers."""
    for name in ("docker", "podman"):
        found = shutil.which(name)
        if found and not subprocess.run([found, "info"], capture_output=True, timeout=30).returncode:
            return found
    return None


def test_an_engine_builds_it_and_runs_it_locked_down() -> None:
    found = engine()
    if found is None:
        pytest.skip("there is no container engine here")
    tag = "ateplace:test"
    subprocess.run([found, "build", "--quiet", "--tag", tag, str(ROOT)], check=True, timeout=280)
    locked = ["--rm", "--read-only", "--cap-drop=ALL", "--network=none", "--security-opt=no-new-privileges"]
    done = subprocess.run([found, "run", *locked, tag, "version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, __version__), done.stderr
