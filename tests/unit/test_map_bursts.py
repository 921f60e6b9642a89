"""Bursts: what counts as one, and how long its ateoms took."""

from ateplace.cli.map.bursts import GAP, SIZE, Bursts, percentile
from ateplace.cli.map.wire import Burst


def told(bursts: Bursts, at: float) -> list[Burst]:
    return list(bursts.changed(at))


def test_percentiles_are_values_that_were_seen() -> None:
    hundred = [float(number) for number in range(1, 101)]
    assert (percentile(hundred, 50), percentile(hundred, 99)) == (50.0, 99.0)
    assert (percentile([3.0], 50), percentile([3.0], 99), percentile([], 99)) == (3.0, 3.0, None)


def test_a_burst_is_told_when_it_is_large_enough_and_when_it_is_over() -> None:
    bursts = Bursts()
    for number in range(SIZE - 1):
        bursts.created("demo/web", f"p{number}", 100.0 + number / 100)
    assert told(bursts, 100.1) == []
    bursts.created("demo/web", "last", 100.2)
    for number in range(SIZE - 1):
        bursts.bound(f"p{number}", 101.0 + number / 100)
    (seen,) = told(bursts, 101.2)
    assert (seen.created, seen.bound, seen.over, seen.began) == (SIZE, SIZE - 1, False, 100.0)
    assert told(bursts, 110.0) == [], "one still waits, and nothing has changed"
    bursts.bound("last", 110.2)
    (seen,) = told(bursts, 110.3)
    assert seen == Burst(1, "demo/web", 100.0, 110.2, SIZE, SIZE, 1.0, 10.0, over=True)
    assert not bursts.open


def test_a_few_ateoms_are_no_burst() -> None:
    bursts = Bursts()
    bursts.created("demo/web", "a", 1.0)
    bursts.bound("a", 1.5)
    assert told(bursts, 1.0 + 2 * GAP) == []
    assert not bursts.open


def test_after_a_pause_another_burst_begins() -> None:
    bursts = Bursts()
    for start in (0.0, 100.0):
        for number in range(SIZE):
            bursts.created("demo/web", f"{start}-{number}", start)
            bursts.bound(f"{start}-{number}", start + 0.5)
    assert [(one.number, one.created) for one in told(bursts, 200.0)] == [(1, SIZE), (2, SIZE)]


def test_ateoms_that_go_before_they_are_bound_do_not_hold_a_burst_open() -> None:
    bursts = Bursts()
    for number in range(SIZE):
        bursts.created("demo/web", f"p{number}", 0.0)
        bursts.gone(f"p{number}")
    (seen,) = told(bursts, 2 * GAP)
    assert (seen.bound, seen.p99, seen.over) == (0, None, True)


def test_pools_have_bursts_of_their_own() -> None:
    bursts = Bursts()
    for number in range(SIZE):
        for pool in ("demo/a", "demo/b"):
            bursts.created(pool, f"{pool}-{number}", 0.0)
    assert [one.pool for one in told(bursts, 0.1)] == ["demo/a", "demo/b"]
