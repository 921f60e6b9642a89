"""Pauses between attempts."""

from ateplace.kube.backoff import Backoff


def test_pauses_double_up_to_their_limit_with_jitter_and_begin_anew() -> None:
    backoff = Backoff(first=0.1, most=1.0)
    for _ in range(50):
        for full in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
            assert full / 2 <= backoff.delay() <= full
        backoff.reset()
