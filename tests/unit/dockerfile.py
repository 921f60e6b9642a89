"""As much of an image builder as our Dockerfile needs, without an engine: its first stage, in a directory.

Instructions that this does not know are refused, so the Dockerfile cannot grow past what is tested.
"""

import fnmatch
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOTS = ("/src", "/opt")
"""Where the first stage works; they become directories of the test."""


class Instruction(NamedTuple):
    word: str
    rest: str


def instructions(text: str) -> list[Instruction]:
    """A Dockerfile's instructions, continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines()]


def stages(text: str) -> list[list[Instruction]]:
    """The instructions of each stage, its FROM first; what stands before the first FROM is left out."""
    found: list[list[Instruction]] = []
    for instruction in instructions(text):
        if instruction.word == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def context(root: Path, ignore: str) -> Iterator[Path]:
    """The files under `root` that a builder would be sent; the last pattern that matches decides."""
    patterns = [line.strip() for line in ignore.splitlines() if line.strip() and not line.startswith("#")]
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        excluded = False
        for pattern in patterns:
            keep, bare = pattern.startswith("!"), pattern.removeprefix("!")
            if _matches(relative, bare):
                excluded = not keep
        if not excluded and path.is_file():
            yield relative


def _matches(path: Path, pattern: str) -> bool:
    """Whether the pattern names the path or a directory above it."""
    parts = path.parts
    if pattern.startswith("**/"):
        return any(fnmatch.fnmatch(part, pattern[3:]) for part in parts)
    return fnmatch.fnmatch(parts[0], pattern)


def build(stage: list[Instruction], source: Path, ignore: str, target: Path, python: str) -> None:
    """Carry out a stage below `target`; `python` plays the base image's interpreter."""
    environment = {"HOME": str(target), "PATH": f"{target / 'bin'}:/usr/bin:/bin"}
    environment |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP"))}
    environment["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    (target / "bin").mkdir(parents=True)
    (target / "bin" / "python").symlink_to(python)
    here = target
    sent = list(context(source, ignore))
    for word, rest in stage[1:]:
        match word:
            case "WORKDIR":
                here = target / rest.lstrip("/")
                here.mkdir(parents=True)
            case "ENV":
                environment |= dict(pair.split("=", 1) for pair in rest.split())
            case "COPY":
                *wanted, destination = rest.split()
                assert destination in (".", "./"), rest
                for relative in sent:
                    if "." in wanted or str(relative) in wanted:
                        (here / relative).parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy(source / relative, here / relative)
            case "RUN":
                command = rest
                for root in ROOTS:
                    command = re.sub(rf"(?<![\w.]){root}\b", f"{target}{root}", command)
                done = subprocess.run(
                    ["/bin/sh", "-ec", command], cwd=here, env=environment, capture_output=True, text=True, timeout=600
                )
                assert done.returncode == 0, f"RUN {command}\n{done.stdout}{done.stderr}"
            case _:
                raise AssertionError(f"the test's builder does not know {word}")
