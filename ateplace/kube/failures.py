"""From an answer that is no success to the error tree."""

import re

import msgspec
from msgspec import Struct

from ateplace import errors

BODY_BYTES = 64 * 1024
"""As much of an error's body is read; what comes after it is left to the closing of the connection."""
MESSAGE_CHARACTERS = 1024
RETRY_AFTER_MOST = 60.0
"""Whatever a server asks for, it is asked again after this many seconds."""

BY_STATUS: dict[int, type[errors.KubeError]] = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    410: errors.Gone,
    413: errors.Invalid,
    415: errors.Invalid,
    422: errors.Invalid,
}


class Cause(Struct):
    field: str = ""


class Details(Struct, rename="camel"):
    retry_after_seconds: int = 0
    causes: list[Cause] | None = None


class Status(Struct, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/definitions/status-v1-meta/"""

    code: int = 0
    message: str = ""
    reason: str = ""
    details: Details | None = None


_status = msgspec.json.Decoder(Status)
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding foreign bytes may raise: no JSON or another type, no UTF-8, nested too deep."""


def from_answer(what: str, code: int, body: bytes | bytearray, retry_after: str = "") -> errors.KubeError:
    """The error for an HTTP answer; `what` was asked for, e.g. "PATCH /api/v1/nodes/n1"."""
    try:
        status = _status.decode(body)
    except UNDECODABLE:
        status = Status(message=body[: 4 * MESSAGE_CHARACTERS].decode("utf-8", "replace"))
    status.code = code
    return from_status(what, status, retry_after)


def from_status(what: str, status: Status, retry_after: str = "") -> errors.KubeError:
    """The error for a Status object, which arrives as an answer's body or as a watch event."""
    code = status.code
    said = shorten(status.message or status.reason)
    message = f"{what}: {code} {said}".rstrip()
    if code == 429:
        seconds = float(retry_after) if re.fullmatch(r"\d{1,9}", retry_after) else 0.0
        if not seconds and status.details:
            seconds = float(status.details.retry_after_seconds)
        seconds = min(max(seconds, 0.0) or 1.0, RETRY_AFTER_MOST)
        return errors.TooManyRequests(message, reason=status.reason, retry_after=seconds)
    kind = BY_STATUS.get(code)
    if kind is errors.Invalid and _other_identity(status):
        kind = errors.Conflict
    elif kind is None:
        if 400 <= code < 500:
            kind = errors.Refused
        elif code >= 500:
            kind = errors.ServerError
        else:
            kind = errors.KubeError
    return kind(message, status=code, reason=status.reason)


def _other_identity(status: Status) -> bool:
    """A patch that names the wrong `metadata.uid` is called invalid by the API server ("field is immutable"). For
    us it is what it is for an update: the object was replaced by another one of its name."""
    causes = status.details.causes if status.details else None
    return bool(causes) and all(cause.field == "metadata.uid" for cause in causes or ())


def shorten(text: str) -> str:
    """One printable line of bounded length: a foreign text may hold anything."""
    if len(text) > MESSAGE_CHARACTERS:
        text = text[:MESSAGE_CHARACTERS] + "…"
    return "".join(character if character.isprintable() else " " for character in text).strip()
