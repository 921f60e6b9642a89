"""A memory that forgets what is too old, or too much."""

from ateplace.cluster.expiring import Expiring


def test_what_is_too_old_goes_the_oldest_first() -> None:
    memory: Expiring[str, int] = Expiring(10.0)
    memory.put("a", 1, 0.0)
    memory.put("b", 2, 1.0)
    memory.put("a", 3, 2.0)
    assert memory.expire(10.9) == []
    assert memory.expire(11.0) == [("b", 2)]
    assert "a" in memory and (memory.get("a"), memory.get("b")) == (3, None)
    assert memory.expire(12.0) == [("a", 3)] and len(memory) == 0


def test_of_too_many_the_oldest_go() -> None:
    memory: Expiring[int, None] = Expiring(10.0, most=2)
    for number in range(4):
        memory.put(number, None, 0.0)
    assert [key for key, _ in memory.expire(0.0)] == [0, 1] and list(memory) == [2, 3]


def test_what_is_taken_out_does_not_expire() -> None:
    memory: Expiring[str, int] = Expiring(10.0)
    memory.put("a", 1, 0.0)
    assert (memory.pop("a"), memory.pop("a")) == (1, None)
    assert memory.expire(99.0) == [] and list(memory.items()) == []
