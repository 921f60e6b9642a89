"""`python -m release.version` prints the version, which pyproject.toml says; `… 0.2.0` writes another one everywhere.

`… --tag v0.2.0` fails unless that is the tag of this version, and the changelog has a section for it.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUMBER = r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?"
PLACES = {
    "pyproject.toml": r'^version = "{}"$',
    "ateplace/__init__.py": r'^__version__ = "{}"$',
    "Dockerfile": r"(?:ARG VERSION=|ateplace:)v{}",
    "deploy/base/kustomization.yaml": r"^ +newTag: v{}$",
    "deploy/chart/Chart.yaml": r"^(?:appV|v)ersion: {}$",
    "docs/operations.md": r"ateplace:v{}",
}
"""Every place that says the version, and how."""


def current() -> str:
    """The version."""
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    return found


def said() -> dict[str, list[str]]:
    """Each place, and the versions that it says."""
    return {
        name: re.findall(pattern.format(f"({NUMBER})"), (ROOT / name).read_text("utf-8"), re.MULTILINE)
        for name, pattern in PLACES.items()
    }


def write(version: str) -> None:
    """Say another version in every place."""
    for name, pattern in PLACES.items():
        path = ROOT / name
        whole = re.compile(pattern.format(NUMBER), re.MULTILINE)
        path.write_text(
            whole.sub(lambda found: re.sub(NUMBER, version, found[0]), path.read_text("utf-8")), encoding="utf-8"
        )


def notes(version: str) -> str:
    """The changelog's section about a version; empty when there is none."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    found = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |^\[|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def main(arguments: list[str]) -> int:
    """1, with a sentence, when something does not agree."""
    match arguments:
        case []:
            sys.stdout.write(f"{current()}\n")
        case ["--notes"]:
            sys.stdout.write(f"{notes(current())}\n")
        case ["--tag", tag] if tag != f"v{current()}":
            sys.stderr.write(f"the tag {tag} is not that of version {current()} (pyproject.toml)\n")
            return 1
        case ["--tag", tag] if not notes(current()):
            sys.stderr.write(f"CHANGELOG.md has no section for {current()}\n")
            return 1
        case ["--tag", _]:
            pass
        case [version] if re.fullmatch(NUMBER, version):
            write(version)
        case _:
            sys.stderr.write(f"{__doc__}")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
