"""Which failures under load a machine that stood still excuses."""

import pytest

from tests.load import blamed

CALL = 'failed calling webhook "w": failed to call webhook: Post "https://ateplace-webhook:443/mutate?timeout=5s": '
LATE = f"{CALL}context deadline exceeded"
NOBODY = f"{CALL}dial tcp 127.0.0.1:443: connect: connection refused"


@pytest.mark.parametrize(
    ("failure", "forgiven"),
    [
        pytest.param((8.0, LATE), True, id="sent before a stall, out of time in it"),
        pytest.param((10.5, "The read operation timed out"), True, id="sent in it"),
        pytest.param((10.5, f"{CALL}net/http: TLS handshake timeout"), True, id="a slow handshake"),
        pytest.param((4.0, LATE), False, id="out of time before it"),
        pytest.param((12.5, LATE), False, id="sent after it"),
        pytest.param((10.5, NOBODY), False, id="nobody was there"),
        pytest.param((10.5, "403: there is no WorkerPool"), False, id="refused"),
    ],
)
def test_a_stall_excuses_calls_that_ran_out_of_time_and_no_others(failure: tuple[float, str], forgiven: bool) -> None:
    assert blamed([failure], [(10.0, 12.0)]) == ([] if forgiven else [failure])
