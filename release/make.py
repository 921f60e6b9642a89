"""`python -m release.make`: everything of a release that needs no credentials, in `dist/`.

Wheel, sdist, chart, bill of materials, and the image where a builder is there. `--repository` is where the image will
be found; the chart and the wheel's manifests then name it. `--without-image`: where another step builds it.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from ateplace.local.progress import say
from release import sbom, version
from release.tools import tool
from release.version import ROOT

PLACEHOLDER = "registry.example/ateplace"
NAMES_IT = ("deploy/base/kustomization.yaml", "deploy/chart/values.yaml")
NOT_SOURCE = (".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
EPOCH = 315532800
"""1980, before which zip knows no time: for a tree without history."""


def make(target: Path, repository: str = PLACEHOLDER) -> list[Path]:
    """Wheel, sdist, chart and bill of materials, made from a copy of the tree; what was made."""
    target.mkdir(parents=True, exist_ok=True)
    number, seconds = version.current(), _commit_time()
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "source"
        shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(*NOT_SOURCE))
        for name in NAMES_IT:
            path = source / name
            path.write_text(path.read_text("utf-8").replace(PLACEHOLDER, repository), encoding="utf-8")
        made = Path(directory) / "made"
        made.mkdir()
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(seconds)}
        for what in ("wheel", "sdist"):
            say(f"building the {what}")
            program = f"from setuptools import build_meta; build_meta.build_{what}({str(made)!r})"
            _run([sys.executable, "-c", program], source, environment)
        say("packaging the chart")
        _run([str(tool("helm")), "package", "deploy/chart", "--destination", str(made)], source, environment)
        when = datetime.fromtimestamp(seconds, UTC)
        sbom.write(source / "requirements.lock", number, when, made / f"ateplace-{number}.cdx.json")
        return [Path(shutil.move(path, target / path.name)) for path in sorted(made.iterdir())]


def _run(command: list[str], where: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]}: {done.stderr.strip() or done.stdout.strip()}")


def _commit_time() -> int:
    """The commit's, so that the same commit makes the same files."""
    try:
        done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return EPOCH
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else EPOCH


def image(repository: str) -> str:
    """Build it, and say what came of that."""
    name = f"{repository}:v{version.current()}"
    if shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True).returncode == 0:
        command = ["docker", "build"]
    elif shutil.which("buildah"):
        command = ["buildah", "bud"]
    else:
        return "no image: neither docker (with its daemon) nor buildah is here"
    say(f"building the image with {command[0]}")
    done = subprocess.run([*command, "--tag", name, "."], cwd=ROOT, capture_output=True, text=True)
    last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
    return f"no image: {command[0]} says: {last}" if done.returncode else f"image {name}, in {command[0]}'s storage"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--repository", default=PLACEHOLDER)
    parser.add_argument("--without-image", action="store_true")
    asked = parser.parse_args()
    made = make(asked.output, asked.repository)
    for path in made:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        sys.stdout.write(f"{path.name:<40} {path.stat().st_size:>9} bytes  sha256:{digest}\n")
    if not asked.without_image:
        sys.stdout.write(f"{image(asked.repository)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
