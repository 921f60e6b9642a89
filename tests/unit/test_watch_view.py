"""What the view makes of a pod that two of its watches show."""

from typing import cast

from msgspec import structs

from ateplace.cluster.feed import View
from ateplace.kube import Kube
from ateplace.settings import Settings
from tests.unit.cluster import pod


def test_a_pod_with_both_labels_that_loses_one_lives_on() -> None:
    view = View(cast("Kube", None), Settings())
    both = pod("p", "n1", placeholder=True)
    view.ateoms.store["ns/p"] = view.placeholders.store["ns/p"] = both
    view._pod("ns/p", None, both)
    ateom = structs.replace(both, placeholder=False)
    del view.placeholders.store["ns/p"]
    view.ateoms.store["ns/p"] = ateom
    view._pod("ns/p", both, None)
    assert view.ledger.pods == {"p": ateom}
    view.ateoms.store["ns/p"] = structs.replace(ateom, uid="another")
    view._pod("ns/p", ateom, None)
    assert not view.ledger.pods
