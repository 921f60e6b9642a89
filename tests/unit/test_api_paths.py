"""Only `ateplace/kube/paths.py` makes paths of the API: anywhere else a foreign name could become part of one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("ateplace", "webhook", "extender", "reconciler", "certs")
ALLOWED = {"ateplace/kube/paths.py", "ateplace/cli/map/app.py"}
"""The map's own endpoints begin with /api too."""
LOOKS_LIKE_A_PATH = re.compile(
    r"/apis?/|/namespaces/|^(/?apis?|namespaces)/|/(pods|nodes|secrets|deployments|workerpools)/$"
)


def paths(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Strings that are parts of API paths; docstrings are not."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in documentation:
            continue
        if LOOKS_LIKE_A_PATH.search(node.value):
            yield node.lineno, node.value


@pytest.mark.parametrize(
    "source",
    [
        'f"/api/v1/namespaces/{namespace}/pods/{name}"',
        '"/apis/apps/v1/deployments"',
        '"/api/v1/nodes/" + name',
        'collection + "/pods/" + name',
        '"%s/namespaces/%s/pods" % (version, namespace)',
        '"/apis/{}/x".format(group)',
        'f"{POOLS}/namespaces/{namespace}"',
    ],
)
def test_the_finder_finds(source: str) -> None:
    assert list(paths(ast.parse(f"x = {source}")))


def test_the_finder_leaves_other_strings_alone() -> None:
    ours = 'x = "ate.dev/claim."; y = "/metrics"; z = f"{namespace}/{name}"; path = "/var/run/secrets"'
    assert list(paths(ast.parse(ours))) == []
    assert list(paths(ast.parse('"""GET /api/v1/pods, as a docstring."""'))) == []


def test_no_other_module_makes_a_path_of_the_api() -> None:
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(files) > 100
    found = {
        str(path.relative_to(ROOT)): made
        for path in files
        if (made := list(paths(ast.parse(path.read_text("utf-8"))))) and str(path.relative_to(ROOT)) not in ALLOWED
    }
    assert found == {}
