"""Admission reviews as API servers send them: what is decoded, and what is refused.

Reference: https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/ (v1). Of a
pod only the fields that decide something are decoded; everything else is checked to be JSON and skipped.
"""

from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ateplace.errors import AteplaceError
from ateplace.webhook.review import API_VERSION, KIND

LARGE: Final = 128 * 1024
"""Bytes of labels or containers from which on they are counted before they are decoded."""
PARTS: Final = 20_000
"""Commas in labels or containers that are large: each may become an object of ours."""
UID: Final = 256
"""Characters of a review's UID that we are ready to echo."""
NULL: Final = Raw(b"null")

T = TypeVar("T")


class Kind(Struct, frozen=True):
    group: str = ""
    version: str = ""
    kind: str = ""


POD: Final = Kind("", "v1", "Pod")


class Annotations(Struct):
    mirror: Raw | UnsetType = msgspec.field(default=UNSET, name="kubernetes.io/config.mirror")


class Metadata(Struct, rename="camel"):
    labels: Raw = NULL
    annotations: Annotations | None = None


class Spec(Struct, rename="camel"):
    containers: Raw = NULL
    init_containers: Raw = NULL
    scheduler_name: str | None = None
    priority_class_name: str | None = None
    priority: Raw | UnsetType = UNSET
    preemption_policy: Raw | UnsetType = UNSET


class RawPod(Struct):
    """A pod whose parts that can be many are not decoded yet."""

    metadata: Metadata
    spec: Spec


class Request(Struct, rename="camel"):
    uid: str
    kind: Kind
    operation: str
    namespace: str = ""
    sub_resource: str = ""
    object: RawPod | None = None


class Review(Struct, rename="camel"):
    api_version: str
    kind: str
    request: Request


class Named(Struct):
    name: str = ""


class Pod(Struct, frozen=True):
    """What decides about a pod. Absent and null are the same, except where a patch must know."""

    labels: dict[str, str]
    is_mirror: bool
    """Whether a kubelet shows the API server a static pod, which only the kubelet may change."""
    containers: list[Named]
    init_containers: list[dict[str, Any]]
    scheduler_name: str
    priority_class_name: str
    has_priority: bool
    has_preemption_policy: bool


class Subject(Struct, rename="camel"):
    """A request without its object."""

    uid: str
    kind: Kind
    operation: str
    sub_resource: str = ""


class SubjectReview(Struct, rename="camel"):
    api_version: str
    kind: str
    request: Subject


class Uid(Struct):
    uid: str


class UidReview(Struct, rename="camel"):
    api_version: str
    kind: str
    request: Uid


class BadReview(AteplaceError):
    """What arrived is no review that we can decide; the message says why and never quotes what arrived.

    `uid` is the review's, when at least that could be read.
    """

    def __init__(self, message: str, uid: str = "") -> None:
        super().__init__(message)
        self.uid = uid


_reviews = msgspec.json.Decoder(Review)
_subjects = msgspec.json.Decoder(SubjectReview)
_uids = msgspec.json.Decoder(UidReview)
_labels = msgspec.json.Decoder(dict[str, str] | None)
_containers = msgspec.json.Decoder(list[Named] | None)
_init_containers = msgspec.json.Decoder(list[dict[str, Any]] | None)


def decode(body: bytes) -> Request:
    """The request in `body`, without an object when that is not a pod. Raises BadReview."""
    try:
        str(body, "utf-8")  # the decoder does not look into strings that it skips
        review = _reviews.decode(body)
    except msgspec.ValidationError:
        return _decode_less(body)
    except UnicodeDecodeError:
        raise BadReview("the body is not UTF-8") from None
    except RecursionError:
        raise BadReview("the body is nested too deeply") from None
    except ValueError as error:
        raise BadReview(str(error)) from None
    _check(review.api_version, review.kind, review.request.uid)
    return review.request


def pod(request: Request) -> Pod:
    """The pod of a request to create one. Raises BadReview, with the UID."""
    found = request.object
    if found is None:
        raise BadReview("the object is not a pod", request.uid)
    metadata, spec = found.metadata, found.spec
    return Pod(
        labels=_part(_labels, metadata.labels, request.uid) or {},
        is_mirror=metadata.annotations is not None and metadata.annotations.mirror is not UNSET,
        containers=_part(_containers, spec.containers, request.uid) or [],
        init_containers=_part(_init_containers, spec.init_containers, request.uid) or [],
        scheduler_name=spec.scheduler_name or "",
        priority_class_name=spec.priority_class_name or "",
        has_priority=spec.priority is not UNSET,
        has_preemption_policy=spec.preemption_policy is not UNSET,
    )


def _part(decoder: msgspec.json.Decoder[T], raw: Raw, uid: str) -> T:
    """Decode a part that can be many: four megabytes of `{},` would be a second of work, so they are counted."""
    if len(raw) > LARGE and bytes(raw).count(b",") > PARTS:
        raise BadReview("the pod has too many labels or containers", uid)
    try:
        return decoder.decode(raw)
    except (ValueError, RecursionError):
        raise BadReview("the object is not a pod", uid) from None


def _decode_less(body: bytes) -> Request:
    """Whatever can be read of a review that is JSON but not as it should be.

    A decoder stops at the first thing it does not like, so the body may still hold any of the other errors.
    """
    try:
        subject = _subjects.decode(body)
    except msgspec.ValidationError as error:
        raise BadReview(f"not a review: {error}", _decode_uid(body)) from None
    except (ValueError, RecursionError):
        raise BadReview("the body cannot be decoded") from None
    _check(subject.api_version, subject.kind, subject.request.uid)
    request = subject.request
    return Request(request.uid, request.kind, request.operation, sub_resource=request.sub_resource)


def _decode_uid(body: bytes) -> str:
    try:
        review = _uids.decode(body)
        _check(review.api_version, review.kind, review.request.uid)
    except (ValueError, RecursionError, BadReview):
        return ""
    return review.request.uid


def _check(api_version: str, kind: str, uid: str) -> None:
    if api_version != API_VERSION or kind != KIND:
        raise BadReview(f"expected {KIND} of {API_VERSION}")
    if not 0 < len(uid) <= UID:
        raise BadReview("the request needs a uid")
