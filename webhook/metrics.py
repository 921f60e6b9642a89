"""What the webhook counts."""

from typing import Final

from ateplace.process import metrics

REVIEWS: Final = metrics.counter("webhook_reviews_total", "Admission reviews, by outcome.", ["outcome"])
SECONDS: Final = metrics.histogram(
    "webhook_seconds",
    "Time to decide a review, without the network.",
    (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.1, 1.0),
)
LOOKUPS: Final = metrics.counter(
    "webhook_pool_lookups_total", "WorkerPools that the watch did not have and that were asked for.", ["outcome"]
)
