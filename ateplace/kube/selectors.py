"""Every selector that holds a name from an object. Names become part of a selector here and nowhere else.

A name is foreign text: a WorkerPool may be called what no label can say (an object's name has up to 253 characters, a
label's value up to 63), and the API server refuses the whole request for it. No object has such a label, so there is
nothing to ask: these functions then answer None.
"""

import re
from collections.abc import Iterable
from typing import Final

VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
"""What a label's value may be."""


def labelled(key: str, value: str) -> str | None:
    """Objects with this label."""
    return f"{key}={value}" if VALUE.fullmatch(value) else None


def labelled_any(key: str, values: Iterable[str]) -> str | None:
    """Objects with this label and one of these values; values that no label can have are left out."""
    possible = [value for value in values if value and VALUE.fullmatch(value)]
    return f"{key} in ({','.join(possible)})" if possible else None


def unlabelled(key: str) -> str:
    """Objects without this label."""
    return f"!{key}"


def both(first: str | None, second: str | None) -> str | None:
    """Objects that two selectors select."""
    return None if first is None or second is None else f"{first},{second}"


def on_node(name: str) -> str:
    """A field selector for the pods that are bound to a node; for those that are bound to none when `name` is empty."""
    return f"spec.nodeName={_escaped(name)}"


def events_about(kind: str, name: str) -> str:
    """A field selector for the Events about an object; one that has no namespace, or is asked for within its own."""
    return f"involvedObject.kind={kind},involvedObject.name={_escaped(name)}"


def _escaped(name: str) -> str:
    return re.sub(r"([\\,=])", r"\\\1", name)
