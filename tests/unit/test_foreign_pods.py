"""What pods say that nobody vouches for: mirror pods' labels, kubelets' times."""

from typing import Any, cast

import pytest

from ateplace import names
from ateplace.cluster.ledger import Ledger
from ateplace.cluster.records import atelet_record, pod_record
from ateplace.extender.claim_writer import ClaimWriter
from ateplace.kube import Kube
from ateplace.kube.objects import MIRROR_ANNOTATION, Pod
from ateplace.settings import Substrate
from tests.unit.objects import atelet, pod


def mirror(made: Pod) -> Pod:
    made.metadata.annotations = {MIRROR_ANNOTATION: "whatever"}
    return made


@pytest.mark.parametrize("placeholder", [False, True])
@pytest.mark.parametrize("uid", ["", "u1", "forged"])
def test_a_mirror_pod_is_no_ateom_and_no_placeholder_whatever_its_labels_say(placeholder: bool, uid: str) -> None:
    assert pod_record(pod("p", "n1", uid=uid, placeholder=placeholder)) is not None
    assert pod_record(mirror(pod("p", "n1", uid=uid, placeholder=placeholder))) is None


def test_a_mirror_pod_takes_room_on_its_node_like_any_other() -> None:
    claims = ClaimWriter(cast("Kube", None), Ledger(), Substrate(), deadline=1.0)
    assert not claims._counts(pod("p", "n1"))
    assert claims._counts(mirror(pod("p", "n1")))


def ended(started: str, finished: str) -> dict[str, Any]:
    state = {"terminated": {"startedAt": started, "finishedAt": finished}}
    return {"initContainerStatuses": [{"name": names.INIT_CONTAINER, "state": state}]}


@pytest.mark.parametrize(
    ("started", "finished", "waited"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:03Z", 3.0),
        ("2026-01-01T00:00:03Z", "2026-01-01T00:00:00Z", 0.0),
        ("0000-01-01T00:00:00Z", "2026-01-01T00:00:00Z", None),
        ("2026-01-01T00:00:00Z", "10000-01-01T00:00:00Z", None),
        ("2026-01-01T00:00:00", "2026-01-01T00:00:00Z", None),
        ("yesterday", "2026-01-01T00:00:00Z", None),
    ],
)
def test_a_time_that_is_none_is_not_known_and_the_pod_counts(started: str, finished: str, waited: float | None) -> None:
    record = pod_record(pod("p", "n1", status=ended(started, finished)))
    assert record is not None and record.waited == waited


def test_what_a_kubelet_says_is_wrong_with_atelet_is_kept_short() -> None:
    record = atelet_record(atelet("n1", ready=False, trouble="x" * 100_000))
    assert record is not None and len(record.trouble) < 1_000
