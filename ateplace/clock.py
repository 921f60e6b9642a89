"""The clock of the reply rule (`ateplace.cluster.claims`): it does not stand still while the machine is suspended.

`time.monotonic` does on Linux. A virtual machine that is paused and resumed would find a write of an hour ago young.
"""

import time
from typing import Final

_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Seconds since the machine started, suspended ones included; on systems without such a clock, monotonic time."""
    return time.clock_gettime(_CLOCK)
