"""The metrics registry of this process, and the functions that add to it.

Each package defines its own metrics, once, at import: `metrics.counter("reviews_total", …)`. Label values come from
small fixed sets or are names of pools, never of pods.
"""

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

import ateplace

PREFIX: Final = "ateplace_"
REGISTRY: Final = CollectorRegistry()

ProcessCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)
Info(PREFIX + "build", "The version of ateplace.", registry=REGISTRY).info({"version": ateplace.__version__})


def counter(name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
    """A counter named `ateplace_<name>`."""
    return Counter(PREFIX + name, documentation, labels, registry=REGISTRY)


def gauge(name: str, documentation: str, labels: Sequence[str] = ()) -> Gauge:
    """A gauge named `ateplace_<name>`."""
    return Gauge(PREFIX + name, documentation, labels, registry=REGISTRY)


def histogram(name: str, documentation: str, buckets: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
    """A histogram named `ateplace_<name>`."""
    return Histogram(PREFIX + name, documentation, labels, buckets=buckets, registry=REGISTRY)
