"""Label selectors: what the API server would select."""

import pytest

from ateplace.errors import SettingsError
from ateplace.label_selectors import parse
from ateplace.settings import load

LABELS = {"app": "atelet", "ate.dev/substrate-version": "v2", "empty": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("app=atelet", True),
        ("app==atelet", True),
        ("app = atelet", True),
        ("app=atelet,ate.dev/substrate-version=v2", True),
        ("app=atelet, ate.dev/substrate-version=v1", False),
        ("app=ateom", False),
        ("empty=", True),
        ("missing=", False),
        ("app!=atelet", False),
        ("missing!=atelet", True),
        ("app", True),
        ("missing", False),
        ("!app", False),
        ("!missing", True),
        ("app in (ateom, atelet),!missing", True),
        ("app in (ateom)", False),
        ("app notin (ateom,other)", True),
        ("missing notin (a)", True),
    ],
)
def test_a_label_selector_matches_what_the_api_server_would_select(text: str, expected: bool) -> None:
    assert parse(text).matches(LABELS) is expected


def test_nothing_matches_what_has_no_labels_but_the_absence_of_one() -> None:
    assert not parse("app=atelet").matches(None)
    assert parse("!app").matches(None)


@pytest.mark.parametrize("text", ["", " ", "app=atelet,", "=atelet", "app in atelet", "app in (a", "a b", "app=a=b"])
def test_what_is_no_label_selector_is_refused_before_anything_runs(text: str) -> None:
    with pytest.raises(SettingsError, match=r"substrate\.atelet_selector"):
        load({}, [f"substrate.atelet_selector={text}"])
