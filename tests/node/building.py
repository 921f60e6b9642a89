"""The Dockerfile's image, built by buildah without a daemon; without its base where that cannot be pulled."""

import re
import shutil
import subprocess
from pathlib import Path

from ateplace.local import cache

ROOT = Path(__file__).parents[2]
NAME = "registry.example/ateplace:v0.1.0"
STAND_IN = "localhost/python-stand-in:3.13"
PROGRAMS = ("buildah", "mmdebstrap")
DEBIAN = "trixie"
"""Debian 13, which the pinned base is made of too; its Python is 3.13."""
CONTAINED = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Mounts of a build that is killed go with its namespace."""

LIKE_THE_BASE = """set -e
ln -s python3 "$1/usr/bin/python"
rm "$1"/usr/lib/python3.*/EXTERNALLY-MANAGED
wheel=$(cd "$1" && echo usr/share/python-wheels/pip-*.whl)
chroot "$1" python3 "/$wheel/pip" install --quiet --root-user-action=ignore --no-index \\
  --find-links /usr/share/python-wheels pip
"""
"""What the pinned base has and Debian's Python has not: the name `python`, and a pip that pip can remove."""


def unfit() -> str:
    """Why no image can be built here; empty when one can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"building the image needs {', '.join(missing)}: apt-get install {' '.join(PROGRAMS)}" if missing else ""


class Builder:
    """Builds in a directory of its own, which holds the base from then on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.base = _pinned_base()
        self.trouble = ""
        """Why the base is not the pinned one."""
        pulled = self._buildah("pull", "--quiet", "--retry=0", self.base, check=False)
        if pulled.returncode:
            said = (pulled.stderr.strip().splitlines() or ["no reason was given"])[-1]
            self.trouble = f"{self.base} cannot be pulled: ...{said[-120:]}"
            self.base = STAND_IN
            self._make_stand_in()

    def build(self, name: str = NAME) -> Path:
        """The image, as an archive that containerd imports."""
        # Fixed times, so that two builds can be compared; the network is for pip, with the machine's authorities.
        options = ["--isolation=chroot", "--network=host", "--pull-never", "--timestamp=0", "--no-cache"]
        options.append("--volume=/etc/ssl/certs:/etc/ssl/certs:ro")
        self._buildah("bud", "--quiet", *options, f"--build-arg=BASE={self.base}", f"--tag={name}", str(ROOT))
        archive = self._directory / f"{name.rpartition('/')[2].replace(':', '-')}.tar"
        self._buildah("push", "--quiet", name, f"oci-archive:{archive}:{name}")
        return archive

    def _make_stand_in(self) -> None:
        root = cache.root() / f"python-stand-in-{DEBIAN}.tar"
        if not root.exists():
            root.parent.mkdir(parents=True, exist_ok=True)
            hook, part = self._directory / "hook.sh", self._directory / "root.tar"
            hook.write_text(LIKE_THE_BASE)
            packages = "python3,python3-venv,ca-certificates,netbase,tzdata"
            options = ["--variant=essential", "--format=tar", f"--include={packages}"]
            _run("mmdebstrap", *options, f'--customize-hook=sh {hook} "$1"', DEBIAN, str(part))
            shutil.move(part, root)
        context = self._directory / "base"
        context.mkdir()
        (context / "Dockerfile").write_text("FROM scratch\nADD root.tar /\nENV PATH=/usr/local/bin:/usr/bin:/bin\n")
        shutil.copy(root, context / "root.tar")
        self._buildah("bud", "--quiet", f"--tag={STAND_IN}", str(context))
        shutil.rmtree(context)

    def _buildah(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        places = [f"--root={self._directory / 'storage'}", f"--runroot={self._directory / 'run'}"]
        return _run(*CONTAINED, "buildah", *places, "--storage-driver=overlay", *arguments, check=check)


def _pinned_base() -> str:
    found = re.search(r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found
    return found[1]


def _run(*argv: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 or not check, f"{' '.join(argv)}: {done.stderr[-2000:]}"
    return done
