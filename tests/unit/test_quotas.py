"""Quotas of namespaces: what the reconciler says about them, and how they come into the ledger."""

import time
from typing import Any

from ateplace import names
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.pool_rules import Quota
from ateplace.cluster.records import namespace_record
from ateplace.kube.objects import Bare, Metadata
from ateplace.process import metrics
from ateplace.reconciler.events import About, Events
from ateplace.reconciler.quotas import Quotas
from tests.unit.cluster import ledger, node, pod, pool


class Said(Events):
    """Keeps what would be written."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._clock = time.monotonic

    def warn(self, about: About, reason: str, message: str) -> None:
        self.words.append(f"{about.name} {reason}: {message}")


def nodes_shown(state: str) -> float | None:
    labels = {"tenant": "ns", "state": state}
    return metrics.REGISTRY.get_sample_value("ateplace_namespace_nodes", labels)


def test_a_quota_that_is_reached_is_said_once_while_pods_wait_and_its_nodes_are_shown() -> None:
    known, said = ledger(pool(), node("n1", "A"), pod("1", "n1")), Said()
    quotas = Quotas(known, said)
    quotas.look("A")
    assert nodes_shown("held") is None
    known.quota_seen("ns", Quota(1))
    assert (nodes_shown("held"), nodes_shown("allowed")) == (1, 1)
    quotas.look("A")
    assert not said.words, "nothing waits"
    known.pod_seen(pod("2"), 0)
    for _ in range(2):
        quotas.look("A")
    words = "a QuotaReached: Pods wait: the pools of namespace ns hold 1 nodes, its max-nodes is 1"
    assert said.words == [words]
    known.quota_seen("ns", Quota(2))
    quotas.look("A")
    assert nodes_shown("allowed") == 2
    known.quota_seen("ns", Quota(1))
    quotas.look("A")
    assert said.words == [words, words]
    quotas.forget()
    quotas.look("A")
    assert len(said.words) == 3, "another term says it again"
    known.quota_seen("ns", None)
    assert nodes_shown("held") is None and nodes_shown("allowed") is None
    known.pool_gone("A", 0)
    quotas.look("gone")


def test_a_quota_that_cannot_be_read_is_said_whether_pods_wait_or_not() -> None:
    known, said = ledger(pool()), Said()
    known.quota_seen("ns", Quota(wrong_nodes="it is nonsense", wrong_headroom="and so is that"))
    Quotas(known, said).look("A")
    assert said.words == [
        "a QuotaReached: The quota of namespace ns cannot be read, so its pools get nothing more: "
        "it is nonsense; and so is that"
    ]


def namespace(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> Any:
    return namespace_record(Bare(Metadata(name="ns", uid="u", labels=labels, annotations=annotations)))


def test_only_namespaces_with_a_quota_are_kept_and_only_annotations_make_one() -> None:
    assert namespace() is None
    assert namespace(labels={names.MAX_NODES_ANNOTATION: "3"}) is None
    assert namespace(annotations={names.MAX_NODES_ANNOTATION: "3"}).quota == Quota(3)


def test_an_empty_ledger_holds_nothing_for_a_namespace() -> None:
    assert Ledger().held_nodes("ns") == set()
