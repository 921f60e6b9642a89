"""`ateplace up --scene headroom`: a burst on a full cluster, and what its headroom is good for."""

import time
from contextlib import ExitStack
from dataclasses import astuple, fields
from typing import Final

from rich.console import Console
from rich.table import Table

from ateplace.local import substrate
from ateplace.local.burst import BURST, FREE, HEADROOM, NODES, Counts, Recorder, Stage
from ateplace.local.plane import ControlPlane
from ateplace.local.pods import Installation
from ateplace.local.progress import say
from ateplace.local.scene import OVERLAY, hand_over, start_map
from ateplace.local.witness import Witness

DELAY, IDLE, LINGER = 10.0, 5.0, 20.0
"""Seconds until the autoscaler adds a node, until it removes one, and until an unused claim goes."""
START: Final = 0.5

Timeline = list[tuple[float, str, Counts | None]]


def experiment(plane: ControlPlane, stage: Stage, record: Recorder) -> dict[str, float]:
    """The burst and its end, every outcome waited for; how long each took."""
    took = {}
    record.mark(f"{BURST} ateoms created")
    began = time.monotonic()
    stage.scale(BURST)
    stage.wait(lambda seen: seen.ateoms == BURST and not seen.waiting, f"{BURST} ateoms on nodes")
    took["ateoms bound"] = time.monotonic() - began
    seen = stage.wait(
        lambda seen: seen.placeholders + seen.pending == HEADROOM and seen.pending >= HEADROOM - 2,
        "preempted placeholders to be pending again",
    )
    if seen.nodes != NODES:
        raise AssertionError(f"the ateoms waited for a node: {seen}")
    stage.wait(lambda seen: seen.nodes == NODES + 1, "a fifth node")
    took["fifth node"] = time.monotonic() - began
    stage.wait(lambda seen: seen.placeholders == HEADROOM and not seen.pending, "the headroom to be back")
    took["headroom back"] = time.monotonic() - began
    stage.wait(lambda seen: stage.cold() == 0, "atelet on the fifth node")
    record.mark("all ateoms deleted")
    began = time.monotonic()
    stage.scale(0)
    stage.wait(
        lambda seen: (seen.ateoms, seen.placeholders, seen.pending, seen.nodes) == (0, HEADROOM, 0, NODES),
        "four nodes with all placeholders",
        timeout=120,
    )
    took["four nodes again"] = time.monotonic() - began
    plane.wait(lambda: (record.last() or Counts(0, 0, 0, 0, 0, 0)).nodes == NODES, why="the record to be complete")
    return took


def timeline(record: Recorder) -> Table:
    """Time and counts, a row for every change."""
    names = [field.name for field in fields(Counts)]
    table = Table("seconds", *names, "", box=None, pad_edge=False)
    rows: Timeline = [(at, "", seen) for at, seen in record.rows]
    rows += [(at, what, None) for at, what in record.marks]
    last: Counts | None = None
    for at, what, seen in sorted(rows, key=lambda row: row[0]):
        last = seen or last
        cells = [str(number) for number in astuple(last)] if last and seen else ["" for _ in names]
        table.add_row(f"{at:.1f}", *cells, f"» {what}" if what else "")
    return table


def play(*, once: bool = True, shape: str = "new") -> int:
    """Bring everything up, play the burst, print what happened; the exit code."""
    began = time.monotonic()
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(start_delay=START, say=say))
        substrate.use(plane, substrate.SHAPES[shape])
        substrate.install(plane)
        installed = Installation(plane, OVERLAY, reconciler__linger=LINGER)
        installed.start()
        say(f"ateplace ready after {time.monotonic() - began:.1f} s")
        if not once:
            say(f"the map is at {start_map(plane, LINGER)}")
        witness = stack.enter_context(Witness(plane))
        stage = Stage(plane)
        stage.set_up()
        say(f"{NODES} full nodes: {HEADROOM} placeholders, {FREE - HEADROOM} free slots; {BURST} ateoms arrive now")
        stage.start_autoscaler(delay=DELAY, idle=IDLE)
        record = stack.enter_context(Recorder(plane))
        try:
            took = experiment(plane, stage, record)
        except AssertionError as error:
            Console().print(timeline(record))
            say(f"not as it should be: {error}")
            return 1
        Console().print(timeline(record))
        for what, seconds in took.items():
            say(f"{what} after {seconds:.1f} s")
        early = witness.violations()
        say(f"bound before claimed: {len(early)} of {witness.bound} bindings")
        if not once:
            hand_over(plane, LINGER)
        return int(bool(early))
