"""The names under which our metrics arrive in Prometheus."""

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

SUFFIXES = {"histogram": ("_bucket", "_count", "_sum")}


@functools.cache
def generator() -> ModuleType:
    """docs/generate.py, which is a script and no package."""
    path = Path(__file__).parents[2] / "docs" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def rows() -> dict[str, tuple[str, frozenset[str]]]:
    """Every name in the exposition, with its type and labels."""
    found = {}
    for metrics in generator().metrics_by_package().values():
        for name, kind, labels, _ in metrics:
            for suffix in SUFFIXES.get(kind, ("",)):
                found[name + suffix] = (kind, frozenset(filter(None, labels.split(", "))))
    return found


def known() -> set[str]:
    return set(rows())


def labels_of(name: str) -> frozenset[str]:
    return rows()[name][1]
