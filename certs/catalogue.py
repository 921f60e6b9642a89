"""The certificates that ateplace needs, each in a Secret of its own."""

from dataclasses import dataclass

from ateplace import names
from ateplace.certs.authority import Use, Wanted
from ateplace.settings import Settings


@dataclass(frozen=True, slots=True)
class Entry:
    """One leaf certificate."""

    secret: str
    wanted: Wanted
    for_scheduler: bool
    """Whether it is shown to the scheduler, which reads the authorities it trusts once."""


def catalogue(settings: Settings) -> tuple[Entry, ...]:
    """Every leaf certificate of an installation."""
    return (
        Entry(names.WEBHOOK_CERTIFICATE, _server(names.WEBHOOK_SERVICE, settings), for_scheduler=False),
        Entry(names.EXTENDER_CERTIFICATE, _server(names.EXTENDER_SERVICE, settings), for_scheduler=True),
        Entry(names.SCHEDULER_CERTIFICATE, Wanted(Use.CLIENT, (settings.extender.client_name,)), for_scheduler=False),
    )


def service_names(service: str, namespace: str) -> tuple[str, str]:
    """The names under which a Service's clients verify it; the API server uses the first."""
    return f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local"


def _server(service: str, settings: Settings) -> Wanted:
    return Wanted(Use.SERVER, service_names(service, settings.cluster.namespace))
