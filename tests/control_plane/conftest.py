"""Beside every test on the shared control plane a witness checks that nothing is bound before it is claimed."""

import pytest


@pytest.fixture(autouse=True)
def witnessed(nothing_is_bound_before_it_is_claimed: None) -> None:
    """Applies it to this whole directory."""
