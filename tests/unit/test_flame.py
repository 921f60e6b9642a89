"""Flame pictures, and the profiles of Go's runtime that they are drawn from."""

import gzip
import re
from xml.etree import ElementTree

from bench import flame, pprof

SVG = "{http://www.w3.org/2000/svg}"
STACKS = {("main", "work", "read"): 60, ("main", "work"): 30, ("main", "rest<1>"): 10}


def test_a_box_is_as_wide_as_its_share_and_below_its_caller() -> None:
    boxes = drawn(STACKS)
    assert set(boxes) == {"main: 100.0%", "work: 90.0%", "read: 60.0%", "rest<1>: 10.0%"}
    (x, y, width) = boxes["main: 100.0%"]
    assert abs(boxes["read: 60.0%"][2] - 0.6 * width) < 1
    assert boxes["work: 90.0%"][0] == x == boxes["read: 60.0%"][0]
    assert y < boxes["work: 90.0%"][1] == boxes["rest<1>: 10.0%"][1] < boxes["read: 60.0%"][1]


def test_what_is_too_narrow_to_see_is_left_out() -> None:
    assert "b: 0.1%" not in drawn({("a",): 999, ("b",): 1})


def test_what_all_stacks_begin_with_can_be_cut_off() -> None:
    assert flame.trimmed(STACKS) == {("work", "read"): 60, ("work",): 30, ("rest<1>",): 10}
    assert flame.trimmed({}) == {}


def test_functions_that_only_pass_a_call_on_are_left_out() -> None:
    left_out = flame.without({("serve", "pass.on", "work"): 2, ("serve", "work"): 1}, re.compile(r"^pass\."))
    assert left_out == {("serve", "work"): 3}


def test_shares_count_a_stack_once() -> None:
    assert flame.share(STACKS, "work", "read") == 0.9
    assert flame.hottest(STACKS, 2) == [("read", 0.6), ("work", 0.3)]


def test_a_profile_of_gos_runtime_is_read() -> None:
    texts = ["", "main.main", "main.inlined", "main.caller"]
    functions = [(1, 1), (2, 2), (3, 3)]
    content = b"".join(
        [
            *(field(6, text.encode()) for text in texts),
            *(field(5, number(1, identity) + number(2, text)) for identity, text in functions),
            # The second place holds two functions, since one was inlined into the other.
            field(4, number(1, 10) + field(4, number(1, 1))),
            field(4, number(1, 300) + field(4, number(1, 2)) + field(4, number(1, 3))),
            field(2, field(1, varint(300) + varint(10)) + field(2, varint(7) + varint(70000000))),
            field(2, number(1, 10) + number(2, 5) + number(2, 50000000)),
        ]
    )
    assert pprof.stacks(gzip.compress(content)) == {("main.main", "main.caller", "main.inlined"): 7, ("main.main",): 5}


def drawn(stacks: dict[tuple[str, ...], int]) -> dict[str, tuple[float, float, float]]:
    """What hovering over a box shows: its left edge, top and width."""
    root = ElementTree.fromstring(flame.draw("title", "note", stacks))  # noqa: S314 - our own
    found = {}
    for group in root.iter(f"{SVG}g"):
        title, box = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None and title.text and box is not None
        found[title.text] = (float(box.attrib["x"]), float(box.attrib["y"]), float(box.attrib["width"]))
    return found


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def number(name: int, value: int) -> bytes:
    return varint(name << 3) + varint(value)


def field(name: int, value: bytes) -> bytes:
    return varint(name << 3 | 2) + varint(len(value)) + value
