"""The extender's metrics."""

from typing import Final

from ateplace.process import metrics

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

CALLS: Final = metrics.counter(
    "extender_calls_total",
    "The scheduler's calls by verb and result (answered, passed, refused, error, bad).",
    ["verb", "result"],
)
SECONDS_SPENT: Final = metrics.histogram(
    "extender_call_seconds", "Time from a call's arrival to its answer.", SECONDS, ["verb"]
)
PICKS: Final = metrics.counter(
    "extender_picks_total",
    "Nodes answered for ateoms, by what was there: atelet Ready, claimed with atelet on its way, or cold. "
    "ready / all is the warm-hit ratio.",
    ["warmth"],
)
CLAIMS: Final = metrics.counter(
    "extender_claims_total",
    "Claims by what became of the write (written, refused, throttled, unknown: read again).",
    ["result"],
)
AHEAD: Final = metrics.counter("extender_claims_ahead_total", "Claims begun ahead of the pods that will need them.")
NOMINATIONS: Final = metrics.counter(
    "extender_nominations_total",
    "Nodes that pods were nominated to before their scheduler asked, by what became of the write (written, failed, "
    "refused: the pod was bound meanwhile, or the right is missing).",
    ["result"],
)
READINGS: Final = metrics.counter("extender_readings_total", "Lists of one node's pods, for atelet's room.")
DROPPED: Final = metrics.counter("extender_refused_nodes_total", "Nodes in refusals, by reason.", ["reason"])
IN_FLIGHT: Final = metrics.gauge("extender_picks_in_flight", "Pods answered and not yet seen bound.")
STATES: Final = metrics.gauge("claims", "Claims by state (fresh, held, lingering), as the ledger has them.", ["state"])
LAG: Final = metrics.gauge("watch_lag_seconds", "Seconds since each watch's last sign of life.", ["watch"])
