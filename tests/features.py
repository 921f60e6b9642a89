"""What the control plane under test has of Kubernetes, by the sentences of `ateplace doctor`: tests hold it to them."""

from ateplace.cli.doctor.versions import FEATURES, minor
from ateplace.local.versions import chosen


def has(name: str) -> bool:
    """Whether doctor says nothing about it being missing there."""
    found = minor(chosen().kubernetes)
    (feature,) = (one for one in FEATURES if one.name == name)
    assert found
    return feature.is_on(found)
