"""The write that claims a Node, the same from every role."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from ateplace import names

ANNOTATION_BYTES: Final = 256 * 1024
"""The API server takes no more than this on one object, keys and values together."""
CLAIM_BYTES: Final = 128
"""What one claim takes at most: the prefix, a UID, a time."""

MANAGER: Final = {"fieldManager": "ateplace"}
"""As a query: who owns the fields that we write."""


def value() -> str:
    """What a claim says that is made now."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def claims(node_uid: str, pools: Iterable[str], said: str) -> dict[str, Any]:
    """The metadata of a merge patch that claims a Node for these pools; refused for another Node of its name."""
    return {
        "uid": node_uid,
        "labels": {names.NODE_LABEL: "true"},
        "annotations": {names.claim_key(pool): said for pool in pools},
    }
