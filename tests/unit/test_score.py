"""Prioritize: warm and full first."""

from ateplace.extender.prioritize import scores
from ateplace.extender.protocol import HostPriority
from tests.unit.cluster import SMALL, atelet, case, ledger, node, pod, ready


def test_ready_nodes_score_above_claimed_ones_and_those_above_cold_ones_fuller_ones_higher() -> None:
    known = ledger(
        *ready("full", "A", pods=[pod(str(number), "full") for number in range(8)]),
        *ready("half", "A", pods=[pod(str(number), "half") for number in range(10, 14)]),
        *ready("empty", "A"),
        node("claimed", "A"),
        node("cold"),
        node("gone", deleting=True),
        node("crashing", "A"),
        atelet("crashing", ready=False, trouble="CrashLoopBackOff"),
    )
    names = ["full", "half", "empty", "claimed", "cold", "gone", "crashing", "unknown"]
    assert scores(case(known), names) == [
        HostPriority("full", 10),
        HostPriority("half", 8),
        HostPriority("empty", 6),
        HostPriority("claimed", 3),
        HostPriority("cold", 0),
        HostPriority("gone", 0),
        HostPriority("crashing", 0),
        HostPriority("unknown", 0),
    ]


def test_a_node_that_failed_this_pod_scores_nothing() -> None:
    known = ledger(*ready("a", "A"))
    known.picks.assume("new", "A", "a", SMALL, now=0)
    known.picks.failed("new")
    assert scores(case(known), ["a"]) == [HostPriority("a", 0)]
