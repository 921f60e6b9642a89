"""Pictures as tables for a terminal."""

from rich.table import Table
from rich.text import Text

from ateplace.cli.printing import text
from ateplace.cli.snapshot import NOWHERE, Picture, PoolOnNode, PoolRow
from ateplace.cluster.pool_rules import NONE, PoolRules

MANY = 20
"""Pods that are drawn as single dots before a number says it better."""


def draw(picture: Picture, *, idle: bool = True) -> Table:
    """A table of nodes × pools; `idle`: also the nodes that have nothing to do with us."""
    table = Table("node", "atelet", "pool", "claim", "ateoms", "placeholders", "in flight", box=None, pad_edge=False)
    for row in picture.nodes.values():
        if not row.pools and row.atelet == NOWHERE and not idle:
            continue
        style = {"ready": "green", "starting": "yellow", "terminating": "yellow", NOWHERE: "dim"}.get(row.atelet, "red")
        lead: list[str | Text] = [row.name, text(row.atelet, style)]
        if not row.pools:
            table.add_row(*lead, text(NOWHERE, "dim"))
        for pool, tenant in sorted(row.pools.items()):
            table.add_row(*lead, *_cells(pool, tenant))
            lead = ["", ""]
    return table


def _cells(pool: str, tenant: PoolOnNode) -> list[str | Text]:
    if tenant.claimed is None:
        claim = Text("missing", style="red") if tenant.ateoms else text(NOWHERE, "dim")
    else:
        held = bool(tenant.ateoms or tenant.placeholders)
        claim = text("held" if held else "unused", "green" if held else "yellow")
    ateoms = text(dots("●", tenant.ready), "cyan")
    ateoms.append_text(text(dots("◐", tenant.ateoms - tenant.ready), "yellow"))
    return [pool, claim, ateoms, dots("○", tenant.placeholders), dots("◌", tenant.in_flight)]


def dots(mark: str, count: int) -> str:
    """`●●●`, or `● × 42`: a glance must be enough."""
    return f"{mark} × {count} " if count > MANY else mark * count


def draw_pools(picture: Picture) -> Table:
    """A table of the pools."""
    columns = ("pool", "ateoms", "ready", "waiting", "placeholders", "nodes", "zones", "rules", "")
    table = Table(*columns, box=None, pad_edge=False)
    for row in picture.rows.values():
        rules = picture.rules.get(row.name, NONE)
        table.add_row(
            row.name,
            f"{row.ateoms + row.waiting} of {row.replicas}",
            str(row.ready),
            text(row.waiting, "yellow" if row.waiting else "dim"),
            f"{row.placeholders}" + (f" + {row.unplaced} waiting" if row.unplaced else ""),
            str(row.nodes),
            text(shown_zones(picture, row.name), "dim"),
            text("cannot be read", "red") if rules.wrong else text(", ".join(shown_rules(rules)), "dim"),
            _going(row),
        )
    return table


def shown_zones(picture: Picture, pool: str) -> str:
    """`a 18, b 36`: a pool's ateoms by zone; empty where there are no two zones."""
    return ", ".join(f"{zone or NOWHERE} {ateoms}" for zone, ateoms in sorted(picture.zones(pool).items()))


def shown_rules(rules: PoolRules) -> list[str]:
    """`min-nodes=2`: each rule that a pool has."""
    said = {"min-nodes": rules.min_nodes, "max-per-node": rules.max_per_node, "same": rules.same}
    return [f"{name}={value}" for name, value in said.items() if value]


def _going(row: PoolRow) -> Text:
    """What of a pool is on its way out."""
    parts = [
        ("being deleted", "yellow", row.deleting),
        (f"{row.draining} draining", "yellow", row.draining),
        (f"{row.overdue} over their grace period", "red", row.overdue),
    ]
    return Text(", ").join(text(words, style) for words, style, is_so in parts if is_so)
