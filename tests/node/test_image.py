"""The image that the Dockerfile gives: what is in it, and that it comes out the same again."""

import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ateplace import __version__
from tests.node.archive import Archive
from tests.node.building import Builder

pytestmark = pytest.mark.long
OURS = "ateplace/"
ROLES = {"webhook", "extender", "reconciler", "certs"}
PLACE = "opt/ateplace/"
SIZE = 170 * 1024 * 1024
"""Bytes of site-packages, bytecode included."""
UNCHECKED_HASH = 0b01
"""The second word of a .pyc (PEP 552): valid by its source's hash, which is not compared."""


@pytest.fixture(scope="module")
def image(archive: Path) -> Archive:
    return Archive(archive)


@pytest.fixture(scope="module")
def packages(image: Archive) -> str:
    (found,) = {
        match[0] for path in image.files if (match := re.match(rf"{PLACE}lib/python3\.\d+/site-packages/", path))
    }
    return str(found)


def test_it_runs_our_command_as_a_user_who_owns_nothing(image: Archive) -> None:
    config = image.config["config"]
    assert (config["User"], config["Entrypoint"], config["WorkingDir"]) == ("65532:65532", ["ateplace"], "/")
    assert config["Labels"]["org.opencontainers.image.version"] == f"v{__version__}"
    for label in ("title", "description", "licenses", "revision"):
        assert f"org.opencontainers.image.{label}" in config["Labels"]
    ours = {path: member for path, member in image.files.items() if path.startswith(PLACE)}
    assert {member.uid for member in ours.values()} == {0}
    writable = stat.S_IWGRP | stat.S_IWOTH
    assert not [path for path, member in ours.items() if member.mode & writable and not member.issym()]
    may_write = [
        path
        for path, member in image.files.items()
        if member.mode & stat.S_IWOTH and not member.issym() and not member.ischr() and not member.mode & stat.S_ISVTX
    ]
    assert may_write == []


def test_it_holds_our_package_and_neither_tools_nor_tests(image: Archive, packages: str) -> None:
    found = {path.removeprefix(packages).split("/")[0] for path in image.files if path.startswith(packages)}
    ours = f"{packages}{OURS}"
    parts = {path.removeprefix(ours).split("/")[0] for path in image.files if path.startswith(ours)}
    assert "ateplace" in found and parts >= ROLES
    assert not found & {"pip", "setuptools", "wheel", "pytest", "mypy"}
    assert not (found | parts) & {"local", "tests", "bench", "release", "deploy"}, "left out by .dockerignore"
    assert not found & ROLES, "they are parts of our package"
    commands = {path.rpartition("/")[2] for path in image.files if path.startswith(f"{PLACE}bin/")}
    assert {"ateplace", "kubectl-ateplace"} <= commands
    assert not [path for path in image.files if re.search(r"/bin/pip[\d.]*$", path)]


def test_every_module_of_ours_is_compiled_and_bytecode_is_used_whatever_became_of_times(
    image: Archive, packages: str
) -> None:
    """A builder that rewrites times, for images that can be reproduced, must not make every start compile it all."""
    sources = [path for path in image.files if path.endswith(".py") and path.startswith(f"{packages}{OURS}")]
    assert sources
    for source in sources:
        place, _, name = source.rpartition("/")
        assert f"{place}/__pycache__/{name.removesuffix('.py')}.cpython-313.pyc" in image.files, source
    compiled = [path for path in image.files if path.startswith(packages) and path.endswith(".pyc")]
    for path in compiled:
        assert int.from_bytes(image.read(path)[4:8], "little") == UNCHECKED_HASH, path


def test_it_stays_small(image: Archive, packages: str, tell: Callable[[str], None]) -> None:
    size = sum(member.size for path, member in image.files.items() if path.startswith(packages))
    whole = sum(member.size for member in image.files.values())
    tell(
        f"the image: {image.size / 2**20:.0f} MiB to pull, {whole / 2**20:.0f} MiB of files, "
        f"{size / 2**20:.0f} MiB of them in site-packages"
    )
    assert size < SIZE, f"{size / 2**20:.0f} MiB"


@pytest.mark.slow
def test_a_second_build_gives_the_same_layers(builder: Builder, image: Archive) -> None:
    again = Archive(builder.build("registry.example/ateplace:again"))
    differing = {
        path
        for path in image.files.keys() | again.files.keys()
        if path not in image.files or path not in again.files or image.read(path) != again.read(path)
    }
    assert not differing, sorted(differing)[:20]
    assert again.digests == image.digests
