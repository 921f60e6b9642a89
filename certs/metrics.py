"""What certificates tell Prometheus.

`certificate` is one of a few fixed words: the name that a source was given, or what a Secret of ours is for.
"""

from typing import Final

from cryptography import x509

from ateplace.certs.authority import life
from ateplace.process import metrics

EXPIRY: Final = metrics.gauge(
    "certificate_expiry_timestamp_seconds", "When a certificate expires (Unix time).", ["certificate"]
)
LIFE: Final = metrics.gauge("certificate_life_seconds", "Validity period of a certificate.", ["certificate"])
SWAPS: Final = metrics.counter(
    "certificate_swaps_total", "Pairs that were validated and put into service.", ["certificate"]
)
BAD_PAIRS: Final = metrics.counter(
    "certificate_bad_pairs_total",
    "Distinct pairs that were refused; the previous one stayed in use.",
    ["certificate"],
)
REFUSED_CLIENTS: Final = metrics.counter(
    "certificate_refused_clients_total", "Clients whose certificate has another name.", ["certificate"]
)
ISSUED: Final = metrics.counter("certificates_issued_total", "Certificates made.", ["certificate"])
INJECTED: Final = metrics.counter(
    "certificate_injections_total", "Times that our webhook configuration's caBundle was corrected."
)


def measure(name: str, certificate: x509.Certificate) -> None:
    """Tell when it expires, and what that is measured by."""
    EXPIRY.labels(name).set(certificate.not_valid_after_utc.timestamp())
    LIFE.labels(name).set(life(certificate).total_seconds())


def forget(name: str) -> None:
    """Tell nothing of it any more."""
    for gauge in (EXPIRY, LIFE):
        gauge.remove(name)
