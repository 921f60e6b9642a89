"""What certificates tell Prometheus.

`certificate` is one of a few fixed words: the name that a source was given, or what a Secret of ours is for.
"""

from typing import Final

from ateplace import metrics

EXPIRY: Final = metrics.gauge(
    "certificate_expiry_timestamp_seconds", "When a certificate expires (Unix time).", ["certificate"]
)
SWAPS: Final = metrics.counter(
    "certificate_swaps_total", "Pairs that were found good and taken into service.", ["certificate"]
)
BAD_PAIRS: Final = metrics.counter(
    "certificate_bad_pairs_total",
    "Distinct pairs that were refused; the one before kept serving.",
    ["certificate"],
)
REFUSED_CLIENTS: Final = metrics.counter(
    "certificate_refused_clients_total", "Clients whose certificate has another name.", ["certificate"]
)
ISSUED: Final = metrics.counter("certificates_issued_total", "Certificates made.", ["certificate"])
INJECTED: Final = metrics.counter(
    "certificate_injections_total", "Times that our webhook configuration's caBundle was put right."
)
