"""The four words that answer an admission review.

allowed(uid)            nothing to do
patched(uid, ops)       admitted, with these changes
denied(uid, why)        refused; `why` is what the user reads
errored(uid, why, …)    we could not decide
"""

from binascii import b2a_base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

WARNING: Final = 120
"""Characters of one warning: kubectl cuts longer ones."""
MESSAGE: Final = 1024
"""Characters of a reason: part of it may come from outside."""


class Op(Struct, frozen=True, omit_defaults=True):
    """One operation of a JSON patch (RFC 6902)."""

    op: str
    path: str
    value: Any | UnsetType = UNSET


class Status(Struct, frozen=True):
    message: str
    code: int


class Response(Struct, frozen=True, omit_defaults=True, rename="camel"):
    uid: str
    allowed: bool
    patch_type: str | UnsetType = UNSET
    patch: str | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    warnings: Sequence[str] | UnsetType = UNSET


class Answer(Struct, frozen=True, rename="camel"):
    response: Response
    api_version: str = API_VERSION
    kind: str = KIND


_encoder = msgspec.json.Encoder()


def allowed(uid: str, warnings: Sequence[str] = ()) -> bytes:
    """Admitted as it is."""
    return _answer(Response(uid, True, warnings=_short(warnings)))


def patched(uid: str, ops: Sequence[Op], warnings: Sequence[str] = ()) -> bytes:
    """Admitted with changes; without any, simply admitted."""
    if not ops:
        return allowed(uid, warnings)
    patch = b2a_base64(_encoder.encode(ops), newline=False).decode("ascii")
    return _answer(Response(uid, True, "JSONPatch", patch, warnings=_short(warnings)))


def denied(uid: str, why: str, code: int = 403, warnings: Sequence[str] = ()) -> bytes:
    """Refused, for a reason that the user can act on."""
    return _answer(Response(uid, False, status=Status(why[:MESSAGE], code), warnings=_short(warnings)))


def errored(uid: str, why: str, code: int) -> bytes:
    """Refused because we could not decide."""
    return denied(uid, why, code)


def _short(warnings: Sequence[str]) -> Sequence[str] | UnsetType:
    return [text if len(text) <= WARNING else text[: WARNING - 1] + "…" for text in warnings] or UNSET


def _answer(response: Response) -> bytes:
    return _encoder.encode(Answer(response))
