"""Random objects in numbers: a few thousand of `tests.unit.fuzzing`, kept as bytes, whose values are exchanged.

To make an object from the API's schemas takes longer than all that we do with it. Here each is one of a corpus, with
some of its values replaced by those of other fields and kinds, or by what no schema allows.
"""

import functools
import json
from typing import Any, Final

from tests.unit.fuzzing import MANGLED, ODD, QUANTITIES, SCHEMAS, TEXTS, TIMES, Json, Maker

CORPUS: Final = 600
"""Objects of each kind."""
PART_BYTES: Final = 1024
"""Longer values are not put into other objects."""


class Sample:
    """An object as bytes, and where its values are in them."""

    def __init__(self, made: Json) -> None:
        text = bytearray(b'{"metadata":')
        self.spans: list[tuple[int, int]] = []
        self._write({"generation": 1, **made["metadata"]}, text)
        self.spans.pop()  # the metadata as a whole: it tells of what the object is
        self.tail = len(text) - 1
        for key, value in made.items():
            if key != "metadata":
                text += b"," + json.dumps(key).encode() + b":"
                self._write(value, text)
        self.text = bytes(text) + b"}"

    def _write(self, value: Any, text: bytearray) -> None:
        start = len(text)
        if isinstance(value, dict):
            text += b"{"
            for index, (key, each) in enumerate(value.items()):
                text += (b"," if index else b"") + json.dumps(key).encode() + b":"
                self._write(each, text)
            text += b"}"
        elif isinstance(value, list):
            text += b"["
            for index, each in enumerate(value):
                text += b"," if index else b""
                self._write(each, text)
            text += b"]"
        else:
            text += json.dumps(value).encode()
        self.spans.append((start, len(text)))


@functools.cache
def corpus() -> tuple[dict[str, list[Sample]], list[bytes]]:
    """The objects, and the values that are put into others, half of them odd; made once."""
    maker = Maker(0)
    samples = {kind: [Sample(maker.object(kind, 0)) for _ in range(CORPUS)] for kind in SCHEMAS}
    odd = [json.dumps(value).encode() for value in (*ODD, *QUANTITIES, *TEXTS, *TIMES)]
    found = {
        each.text[start:end]
        for kind in samples.values()
        for each in kind
        for start, end in each.spans
        if end - start <= PART_BYTES
    }
    return samples, sorted(found) + odd * (len(found) // len(odd))


class Splicer(Maker):
    """Makes objects as a `Maker` does, and many more in the same time; the same ones for the same seed."""

    def text(self, kind: str, version: int, **meta: Any) -> bytes:
        samples, parts = corpus()
        chance = self.chance
        sample = chance.choice(samples[kind])
        # Of a name that comes twice the last counts.
        told = b"," + json.dumps(self.identity(kind, version) | meta)[1:-1].encode()
        changes = [(sample.tail, sample.tail, told)]
        if chance.random() < MANGLED:
            changes += [(*chance.choice(sample.spans), chance.choice(parts)) for _ in range(chance.randrange(1, 4))]
        text, begun = sample.text, len(sample.text)
        for start, end, part in sorted(changes, reverse=True):
            if end <= begun:
                text, begun = text[:start] + part + text[end:], start
        return text
