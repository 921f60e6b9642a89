"""The chart is well-formed, complete and stays inside its frame."""

import re
from xml.etree import ElementTree

from bench.chart import HEIGHT, WIDTH, Line, draw


def test_every_line_mark_and_name_is_there_and_inside() -> None:
    lines = [Line("a < b", "#111", [(0.0, 1), (2.0, 5)]), Line("dashed", "#222", [(0.0, 0)], dashed=True)]
    text = draw('Seven & "more"', lines, [(1.0, "now")], 10.0)
    root = ElementTree.fromstring(text)  # noqa: S314 - our own
    said = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {'Seven & "more"', "a < b", "dashed", "now", "10 s", "6"} <= set(said)
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        for command, value in re.findall(r"([HV])([-\d.]+)", path.attrib["d"]):
            assert 0 <= float(value) <= (WIDTH if command == "H" else HEIGHT)


def test_a_value_holds_until_the_next_point() -> None:
    text = draw("t", [Line("a", "#111", [(0.0, 0), (5.0, 1)])], [], 10.0)
    (path,) = re.findall(r'stroke="#111" d="(M[^"h]*)"', text)
    assert path.count("H") == 2
    assert path.count("V") == 1


def test_with_slopes_points_are_joined_and_marks_speak_below_the_lines() -> None:
    marks = [(0.5 * number, f"mark {number}") for number in range(12)]
    text = draw("t", [Line("a", "#111", [(0.0, 45), (5.0, 50)])], marks, 10.0, slopes=True)
    (path,) = re.findall(r'stroke="#111" d="(M[^"h]*)"', text)
    heights = [float(height) for height in re.findall(r"[ML][\d.]+ ([\d.]+)", path)]
    assert len(heights) == 2 and heights[1] < heights[0]
    said = [float(height) for height in re.findall(r'y="([\d.]+)">mark', text)]
    assert len(said) == 12 and min(said) > max(heights)
