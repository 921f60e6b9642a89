"""What the Dockerfile says; the image that it gives is examined on a real node (tests/node)."""

import re
from pathlib import Path

from ateplace import __version__, settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
IGNORE = (ROOT / ".dockerignore").read_text()
OURS = {"ateplace", "webhook", "extender", "reconciler", "certs"}


def test_the_base_is_pinned_and_both_stages_are_made_of_it() -> None:
    assert re.search(r"^ARG BASE=docker\.io/library/python:3\.13-slim@sha256:[0-9a-f]{64}$", TEXT, re.MULTILINE)
    assert re.findall(r"^FROM (.*)$", TEXT, re.MULTILINE) == ["${BASE} AS build", "${BASE}"]
    assert f"ARG VERSION=v{__version__}" in TEXT


def test_the_build_context_is_what_the_image_is_made_of() -> None:
    first, *rest = [line for line in IGNORE.splitlines() if line and not line.startswith("#")]
    assert first == "*"
    sent = {line.removeprefix("!") for line in rest if line.startswith("!")}
    assert sent == OURS | {"pyproject.toml", "requirements.lock", "requirements-dev.lock", "README.md", "LICENSE"}
    assert rest[-1] == "**/__pycache__"


def test_images_that_we_name_in_settings_are_pinned_by_digest() -> None:
    for image in (settings.BUSYBOX, settings.PAUSE):
        assert re.search(r":[\w.]+@sha256:[0-9a-f]{64}$", image)
