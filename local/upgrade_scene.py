"""`ateplace up --scene upgrade`: Agent Substrate is upgraded node by node, and back, and what ateplace makes of it."""

import time
from contextlib import ExitStack
from typing import Final

from rich.console import Console
from rich.table import Table

from ateplace.local.plane import ControlPlane
from ateplace.local.progress import say
from ateplace.local.scene import OVERLAY, hand_over, start_map
from ateplace.local.upgrade import NEW, OLD, Attendance, Cost, Flip, Upgrade, trouble
from ateplace.local.witness import Witness

NODES: Final = 6
LINGER: Final = 20.0
WITHIN: Final = 5.0
"""Seconds from a Ready atelet, and room beside it, to the ateoms of its version."""
SPARE_CPU, SPARE_REQUESTS = 3.0, 30
"""What the reserve may cost a role in a minute more than nothing at all: what a busy machine makes of the same."""


def play(*, once: bool = True, minute: float = 60.0) -> int:
    """Bring everything up, play the upgrade and the way back, print what happened; the exit code."""
    began = time.monotonic()
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(start_delay=0.5, audit=True, say=say))
        upgrade = Upgrade(plane, NODES)
        upgrade.install(OVERLAY, reconciler__linger=LINGER)
        say(f"two pools fill {NODES} nodes after {time.monotonic() - began:.1f} s")
        if not once:
            say(f"the map is at {start_map(plane, LINGER)}")
        witness = stack.enter_context(Witness(plane))
        attendance = stack.enter_context(Attendance(plane))
        say(f"{minute:g} s in which nothing happens")
        idle = upgrade.cost(minute)
        with upgrade.load():
            say(f"the DaemonSet of {NEW} comes: gated after {upgrade.prepare():.1f} s; pools are cloned")
            flips = [_flip(upgrade, node, NEW) for node in upgrade.nodes]
        errors = upgrade.errors()
        say(f"{upgrade.waiting(OLD)} ateoms of {OLD} wait as the reserve; {minute:g} s in which nothing happens")
        reserve = upgrade.cost(minute)
        errors = upgrade.errors() - errors
        alarms = [*upgrade.warnings(), *([f"{errors} calls failed"] if errors else [])]
        alarms += [f"atelet is late on {late} nodes"] if (late := upgrade.late()) else []
        kept = upgrade.waiting(OLD)
        with upgrade.load():
            flips += [_flip(upgrade, node, OLD) for node in upgrade.nodes]
        early = witness.violations()
        found = [*trouble(flips, attendance, WITHIN), *early, *alarms, *dear(idle, reserve, minute)]
        console = Console()
        console.print(_flips(flips))
        console.print(_costs(idle, reserve))
        say(f"the reserve: {kept} ateoms, all Pending; alarms: {', '.join(alarms) or 'none'}")
        say(f"{attendance.looks} looks: {attendance.missing.total()} at a node without the atelet of its ateoms")
        say(f"bound before claimed: {len(early)} of {witness.bound} bindings")
        for line in found:
            say(f"not as it should be: {line}")
        say("as it should be" if not found else "that is not as it should be")
        if not once:
            hand_over(plane, LINGER)
        return int(bool(found))


def dear(idle: dict[str, Cost], reserve: dict[str, Cost], minute: float) -> list[str]:
    """Roles that the reserve makes work."""
    found = []
    for role, one in reserve.items():
        if one.requests > idle[role].requests + SPARE_REQUESTS:
            found.append(f"{role}: {one.requests} requests in {minute:g} s, {idle[role].requests} when idle")
        if one.cpu > idle[role].cpu + SPARE_CPU:
            found.append(f"{role}: {one.cpu:.1f} s of CPU in {minute:g} s, {idle[role].cpu:.1f} s when idle")
    return found


def _flip(upgrade: Upgrade, node: str, version: str) -> Flip:
    done = upgrade.flip(node, version)
    say(f"  {node} is {version}: atelet after {done.ready:.1f} s, its ateoms {done.freed + done.placed:.1f} s later")
    return done


def _flips(flips: list[Flip]) -> Table:
    table = Table("node", "version", "old atelet gone", "new one Ready", "+ old ateoms gone", "+ new ones placed")
    table.box, table.pad_edge = None, False
    for one in flips:
        took = (one.ending, one.ready, one.freed, one.placed)
        table.add_row(one.node, one.version, *(f"{seconds:.1f} s" for seconds in took))
    return table


def _costs(idle: dict[str, Cost], reserve: dict[str, Cost]) -> Table:
    table = Table(
        "role", "requests, idle", "with the reserve", "CPU, idle", "with the reserve", box=None, pad_edge=False
    )
    for role, one in idle.items():
        also = reserve[role]
        table.add_row(role, str(one.requests), str(also.requests), f"{one.cpu:.2f} s", f"{also.cpu:.2f} s")
    return table
