"""Rooms that were made for ateoms: held until one comes, and for seconds at most."""

from extender.rooms import MOST, SECONDS, Rooms


def test_a_room_is_held_until_an_ateom_is_answered_its_node() -> None:
    rooms = Rooms()
    for victim, node in (("v1", "n1"), ("v2", "n1"), ("v3", "n2")):
        rooms.made(victim, node, "A", 0.0)
    rooms.made("v1", "n1", "A", 0.0)  # said twice, made once
    assert (rooms.held(0.0), rooms.waiting("A"), rooms.waiting("B")) == ({"n1": 2, "n2": 1}, 3, 0)
    rooms.taken("n1")
    rooms.taken("elsewhere")
    assert (rooms.held(0.0), rooms.waiting("A")) == ({"n1": 1, "n2": 1}, 2)
    rooms.taken("n1")
    rooms.taken("n1")
    assert (rooms.held(0.0), rooms.waiting("A")) == ({"n2": 1}, 1)


def test_a_room_that_nobody_took_is_given_up() -> None:
    rooms = Rooms()
    rooms.made("v1", "n1", "A", 0.0)
    rooms.made("v2", "n1", "B", 1.0)
    assert rooms.held(SECONDS - 0.1) == {"n1": 2}
    assert rooms.held(SECONDS) == {"n1": 1}
    assert (rooms.waiting("A"), rooms.waiting("B")) == (0, 1)
    assert rooms.held(SECONDS + 1.0) == {}


def test_memory_is_bounded() -> None:
    rooms = Rooms()
    for number in range(MOST + 5):
        rooms.made(f"v{number}", "n1", "A", 0.0)
    assert rooms.held(0.0) == {"n1": MOST}
