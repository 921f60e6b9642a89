"""Label selectors in the API's own notation, matched here (pure).

Where the API server cannot be asked: whether a DaemonSet's *template* has a label, for instance.

    app=atelet    app==atelet    tier!=test    app    !canary    tier in (a, b)    tier notin (c)    joined by commas

Source: k8s.io/apimachinery/pkg/labels/selector.go, v1.36.
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

_KEY: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_VALUE: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_FORMS: Final = (
    (re.compile(rf"({_KEY})\s*==?\s*({_VALUE})"), "in"),
    (re.compile(rf"({_KEY})\s*!=\s*({_VALUE})"), "notin"),
    (re.compile(rf"({_KEY})\s+in\s*\(([^()]*)\)"), "in"),
    (re.compile(rf"({_KEY})\s+notin\s*\(([^()]*)\)"), "notin"),
    (re.compile(rf"!\s*({_KEY})"), "absent"),
    (re.compile(rf"({_KEY})"), "present"),
)
_COMMA: Final = re.compile(r",(?![^()]*\))")


class Term(Struct, frozen=True, gc=False):
    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case "in":
                return self.key in labels and labels[self.key] in self.values
            case "notin":
                return self.key not in labels or labels[self.key] not in self.values
            case "present":
                return self.key in labels
            case _:
                return self.key not in labels


class LabelSelector(Struct, frozen=True, gc=False):
    terms: tuple[Term, ...]

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        return all(term.matches(labels or {}) for term in self.terms)


def parse(text: str) -> LabelSelector:
    """ValueError for what the API server would refuse, and for an empty selector, which would select everything."""
    if not text.strip():
        raise ValueError("a label selector must select by at least one label")
    return LabelSelector(tuple(_term(part.strip()) for part in _COMMA.split(text)))


def _term(text: str) -> Term:
    for form, operator in _FORMS:
        if found := form.fullmatch(text):
            values = found[2].split(",") if form.groups > 1 else ()
            return Term(found[1], operator, frozenset(value.strip() for value in values))
    raise ValueError(f"{text!r} is not a label selector")
