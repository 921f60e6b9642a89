"""Certificates: there, good, and not about to expire."""

from datetime import UTC, datetime

from ateplace import names
from ateplace.certs.authority import authority_flaw, due, flaw
from ateplace.certs.catalogue import catalogue
from ateplace.certs.pem import load_pair
from ateplace.certs.store import Secret
from ateplace.cli.doctor.look import Look
from ateplace.cli.doctor.webhook import repair
from ateplace.cli.findings import Finding, fail, ok, warn
from ateplace.kube import paths


async def check(look: Look) -> list[Finding]:
    now = datetime.now(UTC)
    found = []
    if look.settings.certs.managed:
        secret = await look.find(paths.SECRETS.named(names.CA_CERTIFICATE, look.namespace), Secret)
        reason = authority_flaw(secret.pair() if secret else None, now)
        found.append(_judge(names.CA_CERTIFICATE, secret, reason, now, look))
    for entry in catalogue(look.settings):
        secret = await look.find(paths.SECRETS.named(entry.secret, look.namespace), Secret)
        reason = flaw(secret.pair() if secret else None, entry.wanted, now)
        found.append(_judge(entry.secret, secret, reason, now, look))
    return found


def _judge(name: str, secret: Secret | None, reason: str, now: datetime, look: Look) -> Finding:
    if secret is None or reason:
        return fail(f"{name}: {reason or 'there is no certificate'}", repair(look))
    certificate = load_pair(secret.pair())
    days = (certificate.not_valid_after_utc - now).total_seconds() / 86400
    if late := due(certificate, now):
        return warn(f"{name}: {late} and it expires in {days:.1f} days", repair(look))
    return ok(f"{name}: good for {days:.0f} days")
