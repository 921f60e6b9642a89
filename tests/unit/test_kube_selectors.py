"""Selectors that hold foreign names: always ones that an API server takes, or none."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ateplace.kube import selectors

ROOT = Path(__file__).parents[2]
LONG = "a" * 64


@pytest.mark.parametrize("value", ["", "a", "a.b-c_d", "A" * 63])
def test_what_a_label_can_say_is_asked_for(value: str) -> None:
    assert selectors.labelled("k", value) == f"k={value}"


@pytest.mark.parametrize("value", [LONG, "-a", "a.", "a b", "a,b", "a=b", "a)", "ä", "a\n", "!a"])
def test_what_no_label_can_say_is_not(value: str) -> None:
    assert selectors.labelled("k", value) is None
    assert selectors.labelled_any("k", [value]) is None
    assert selectors.labelled_any("k", ["a", value, "b"]) == "k in (a,b)"
    assert selectors.both(selectors.labelled("k", value), selectors.unlabelled("u")) is None


def test_two_selectors_are_one() -> None:
    assert selectors.both(selectors.labelled("k", "v"), selectors.unlabelled("u")) == "k=v,!u"


@given(st.text())
def test_a_value_never_becomes_more_than_a_value(value: str) -> None:
    made = selectors.labelled("k", value)
    assert made is None or re.fullmatch(r"k=[A-Za-z0-9._-]{0,63}", made)


def test_a_nodes_name_never_becomes_another_field() -> None:
    assert selectors.on_node("n1") == "spec.nodeName=n1"
    assert selectors.on_node("") == "spec.nodeName="
    assert selectors.on_node("a,b=c\\") == r"spec.nodeName=a\,b\=c\\"


def test_events_are_asked_for_by_one_name() -> None:
    assert selectors.events_about("Node", "a,b") == r"involvedObject.kind=Node,involvedObject.name=a\,b"


def test_names_become_part_of_a_selector_in_one_module_only() -> None:
    """An f-string with a selector's syntax and a value in it, anywhere else, is an escape that was forgotten."""
    made = re.compile(r"""f"[^"]*(?:spec\.nodeName=\{|involvedObject\.name=\{|\} in \(|\}=\{[^"]*,!|_LABEL\}=\{)""")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for package in ("ateplace", "webhook", "extender", "reconciler", "certs")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "selectors.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if made.search(line)
    ]
    assert not found
