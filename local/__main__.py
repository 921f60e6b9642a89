"""`python -m ateplace.local`: have the control plane's binaries ready, with progress.

`--node`: those of real nodes too, where one can run. `--can-run-nodes` says instead why none can here,
`--drop-build-cache` frees disk space, `--generate-modules [MINOR…]` writes what the binaries are built from, and
`--other-ends` prints the oldest and the newest minor version, except the chosen one.
"""

import sys

from ateplace.errors import LocalError
from ateplace.local import golang, modules
from ateplace.local.binaries import drop_build_cache, resolve
from ateplace.local.progress import say
from ateplace.local.realnode import unfit
from ateplace.local.versions import NODE_BINARIES, SUPPORTED, chosen


def main() -> int:
    """The exit code: 0, 1 when nothing can work here, 130 when interrupted."""
    if sys.argv[1:] == ["--drop-build-cache"]:
        drop_build_cache()
        return 0
    if sys.argv[1:] == ["--other-ends"]:
        oldest, *_, newest = SUPPORTED
        sys.stdout.write("".join(f"{minor}\n" for minor in (oldest, newest) if minor != chosen().minor))
        return 0
    if sys.argv[1:] == ["--can-run-nodes"]:
        reason = unfit()
        sys.stdout.write(f"{reason}\n" if reason else "")
        return int(bool(reason))
    try:
        if sys.argv[1:2] == ["--generate-modules"]:
            for minor in sys.argv[2:] or SUPPORTED:
                modules.generate(SUPPORTED[minor], golang.find_go(say), say)
            return 0
        resolve()
        if sys.argv[1:] == ["--node"] and not unfit():
            resolve(wanted=NODE_BINARIES)
    except LocalError as error:
        sys.stderr.write(f"ateplace: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; what is done so far is kept\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
