"""How our command line is started as a process: this version's, or another one's."""

import sys
from pathlib import Path


def ateplace(code: Path | None = None) -> tuple[list[str], dict[str, str]]:
    """The beginning of an argv, and the environment it needs; `code` is another version's tree.

    The interpreter and what is installed beside it are ours in any case.
    """
    if code is None:
        return [sys.executable, "-m", "ateplace.cli"], {}
    # -P: the working directory, which may be our own tree, would come before the path that is given.
    return [sys.executable, "-P", "-m", "ateplace.cli"], {"PYTHONPATH": str(code)}
