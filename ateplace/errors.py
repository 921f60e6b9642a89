"""The error tree.

AteplaceError                 everything we raise on purpose; the CLI prints it without a traceback
├── SettingsError             a setting is unknown or has a bad value
├── CertificateError          a certificate or key cannot be used
├── LocalError                the control plane on loopback cannot be built, started or used
│   └── ApiError              its API server refused a request (`local.api`)
├── BadCall                   kube-scheduler's call cannot be read (`extender.protocol`)
├── TryAgain                  filter has no answer now, and may have one soon (`extender.context`)
├── BadReview                 the AdmissionReview cannot be read (`webhook.protocol`)
├── WentBack                  the API server's state is older than it was (`ateplace.kube.store`)
├── WatchDiffers              a watch shows another state than a list (`reconciler.resync`)
└── KubeError                 the API server, mapped at one edge (`ateplace.kube`)
    ├── Refused               4xx: asking again gives the same answer
    │   ├── BadRequest        400
    │   ├── Unauthorized      401
    │   ├── Forbidden         403
    │   ├── NotFound          404
    │   ├── Conflict          409: another client wrote first (includes AlreadyExists)
    │   ├── Gone              410: the resourceVersion is too old
    │   └── Invalid           413, 415, 422
    └── Unavailable           asking again later may help
        ├── TooManyRequests   429, with `retry_after`
        ├── ServerError       5xx
        └── Unreachable       no answer: the outcome of a write is unknown

Below KubeError, inside `ateplace.kube` only: TooLarge (an answer over the limit, `client`) and NoStreamingList (the API
server does not stream lists, `store`). What aiohttp raises, its own ConnectionLost included, never leaves `transport`.
"""


class AteplaceError(Exception):
    """Everything we raise on purpose."""


class SettingsError(AteplaceError):
    """A setting is unknown or has a bad value."""


class CertificateError(AteplaceError):
    """A certificate or key cannot be used; the message says why."""


class LocalError(AteplaceError):
    """The control plane on loopback cannot be built, started or used; the message says what to do."""


class KubeError(AteplaceError):
    """The API server did not do what was asked."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Refused(KubeError):
    """4xx: asking again gives the same answer."""


class BadRequest(Refused):
    """400."""


class Unauthorized(Refused):
    """401."""


class Forbidden(Refused):
    """403."""


class NotFound(Refused):
    """404."""


class Conflict(Refused):
    """409: another client wrote first, or the object exists already."""


class Gone(Refused):
    """410: the resourceVersion is too old to continue from."""


class Invalid(Refused):
    """413, 415, 422: the API server will not take this object."""


class Unavailable(KubeError):
    """Asking again later may help."""


class TooManyRequests(Unavailable):
    """429."""

    def __init__(self, message: str, *, status: int = 429, reason: str = "", retry_after: float = 1.0) -> None:
        super().__init__(message, status=status, reason=reason)
        self.retry_after = retry_after


class ServerError(Unavailable):
    """5xx."""


class Unreachable(Unavailable):
    """No answer: the outcome of a write is unknown."""
