"""The scheduler's calls and our answers, in the exact casing of the Go types, which have no JSON tags.

Source: https://github.com/kubernetes/kubernetes/blob/v1.36.3/staging/src/k8s.io/kube-scheduler/extender/v1/types.go
(golden JSON in tests/unit/test_wire.py). Unused fields arrive as null. We are nodeCacheCapable: names, never objects.
"""

import contextlib
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from ateplace.errors import AteplaceError
from ateplace.kube.codec import lean
from ateplace.kube.failures import UNDECODABLE
from ateplace.kube.objects import Pod

T = TypeVar("T")

LOOK_UPS: Final = 12
"""Names looked up in the raw list before it is decoded after all: of 5,000 names, decoding takes as long as that many
look-ups, and in a burst the nodes to be claimed ahead are looked up as well."""
MARK: Final = b',"NodeNames":['
NULL: Final = msgspec.Raw(b"null")
CASING: Final = {
    "pod": "Pod",
    "node_names": "NodeNames",
    "victims": "NodeNameToMetaVictims",
    "unresolvable": "FailedAndUnresolvableNodes",
    "error": "Error",
    "pods": "Pods",
    "violations": "NumPDBViolations",
    "uid": "UID",
    "host": "Host",
    "score": "Score",
}


class BadCall(AteplaceError):
    """The body is not the JSON of such a call."""


class Names:
    """The node names of a call, as bytes until more than a few of them are looked up.

    Thousands of names cost more to decode than everything else in a call. Node names are DNS names, which JSON never
    escapes, so a name is in the list exactly when it is there in quotes; should anything be escaped after all, the
    list is decoded at once. `raw` has the list from `start` to `end`, and is not copied: a copy of so many bytes is
    what everything else together costs.
    """

    __slots__ = ("_end", "_list", "_looked_up", "_raw", "_set", "_start")

    def __init__(self, raw: bytes, start: int = 0, end: int | None = None) -> None:
        if not raw.startswith(b"[", start):
            raise BadCall("not a call of kube-scheduler's: NodeNames is not a list")
        self._raw = raw
        self._start, self._end = start, len(raw) if end is None else end
        self._list: list[str] | None = None
        self._set: set[str] | None = None
        self._looked_up = LOOK_UPS if raw.find(b"\\", start, self._end) >= 0 else 0

    def __contains__(self, name: str) -> bool:
        if self._looked_up < LOOK_UPS:
            self._looked_up += 1
            return self._raw.find(b'"%s"' % name.encode(), self._start, self._end) >= 0
        if self._set is None:
            self._set = set(self.all())
        return name in self._set

    @property
    def several(self) -> bool:
        """Whether there is more than one: a scheduler asks about a pod's nominated node alone."""
        return self._raw.find(b",", self._start, self._end) >= 0

    def all(self) -> list[str]:
        """Every name, as sent; raises BadCall when they are none."""
        if self._list is None:
            self._list = _decode(_names, memoryview(self._raw)[self._start : self._end])
        return self._list


class ExtenderArgs(Struct, frozen=True, gc=False):
    """What filter and prioritize are asked."""

    pod: Pod | None
    names: Names | None
    """None when the call has none."""


class WireArgs(Struct, rename=CASING, gc=False):
    """The same on the wire."""

    pod: Pod | None = None
    node_names: msgspec.Raw = NULL


class FilterResult(Struct, rename=CASING, omit_defaults=True, gc=False):
    """`{}` would mean that no node fits. A node in no list counts as unresolvable, so an answer with nodes names no
    others: no scheduler reads them, and thousands of names cost more than the decision."""

    node_names: list[str] | None = None
    unresolvable: dict[str, str] | None = None
    error: str = ""


class HostPriority(Struct, rename=CASING, gc=False):
    host: str
    score: int


class MetaPod(Struct, rename=CASING, gc=False):
    uid: str


class MetaVictims(Struct, rename=CASING, gc=False):
    """Without pods (1.38 and later): the pod fits without evictions. Where the scheduler has named victims, such an
    answer would be an error of ours."""

    pods: list[MetaPod] | None = None
    violations: int = 0


class PreemptionArgs(Struct, rename=CASING, gc=False):
    pod: Pod | None = None
    victims: dict[str, MetaVictims | None] | None = None


class PreemptionResult(Struct, rename=CASING, gc=False):
    victims: dict[str, MetaVictims]


_args = msgspec.json.Decoder(WireArgs)
_names = msgspec.json.Decoder(list[str])
_preemption = msgspec.json.Decoder(PreemptionArgs)
encode = msgspec.json.Encoder().encode


def extender_args(body: bytes) -> ExtenderArgs:
    """A call of filter or prioritize; raises BadCall when it is none.

    The scheduler writes the names last, and JSON escapes quotes in strings, so this mark is a key. What comes before it
    is decoded alone; should that not be a whole object, because another client wrote it, everything is.
    """
    at = body.find(MARK)
    if at >= 0 and body.endswith(b"]}"):
        with contextlib.suppress(*UNDECODABLE):
            args = _args.decode(lean(body[:at] + b"}"))
            return ExtenderArgs(args.pod, Names(body, at + len(MARK) - 1, len(body) - 1))
    args = _decode(_args, body)
    raw = bytes(args.node_names)
    return ExtenderArgs(args.pod, None if raw == b"null" else Names(raw))


def preemption_args(body: bytes) -> PreemptionArgs:
    return _decode(_preemption, body)


def _decode(decoder: msgspec.json.Decoder[T], body: bytes | memoryview) -> T:
    try:
        return decoder.decode(body)
    except UNDECODABLE as error:
        raise BadCall(f"not a call of kube-scheduler's: {error}") from error
