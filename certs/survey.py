"""Everything there is to know about the certificates of an installation, read at one moment, and what follows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509

from ateplace import names
from ateplace.certs import authority, files, rotation
from ateplace.certs.catalogue import Entry
from ateplace.certs.inject import Configuration, Injector, repair
from ateplace.certs.pem import bundle, fingerprint, issuer_of, load_certificates, load_pair
from ateplace.certs.scheduler import Scheduler
from ateplace.certs.store import PREVIOUS, Secret, Store
from ateplace.errors import CertificateError, Forbidden


@dataclass(frozen=True, slots=True)
class Survey:
    """What was read, and the world that it makes for `rotation`."""

    authority: Secret | None
    leaves: dict[str, Secret | None]
    configuration: Configuration | None
    trusted: tuple[x509.Certificate, ...]
    """The current authority, then the previous ones."""
    recovered: tuple[x509.Certificate, ...]
    """Authorities which are not trusted any more by our own record, but by whose leaves something still lives."""
    world: rotation.World

    def bundle(self) -> bytes:
        return bundle(self.trusted)


async def survey(
    store: Store,
    injector: Injector,
    scheduler: Scheduler,
    entries: Sequence[Entry],
    now: datetime,
) -> Survey:
    """Read it all."""
    found = await store.read(names.CA_CERTIFICATE)
    leaves = {entry.secret: await store.read(entry.secret) for entry in entries}
    try:
        configuration, readable = await injector.read(), True
    except Forbidden:
        # The step that wants to put it right will fail and say so; everything else can go on.
        configuration, readable = None, False
    flaw = authority.authority_flaw(found.pair() if found else None, now)
    current = found.certificates(files.CERTIFICATE)[:1] if found and not flaw else []
    previous = found.certificates(PREVIOUS) if found and not flaw else []
    trusted = (*current, *previous)
    injected = readable and not (configuration and repair(configuration, bundle(trusted)))
    world = rotation.World(
        fingerprint(current[0]) if current else None,
        frozenset(map(fingerprint, previous)),
        {entry.secret: _leaf(entry, leaves[entry.secret], trusted, now) for entry in entries},
        await scheduler.look(),
        injected,
        flaw,
        authority.due(current[0], now) if current else "",
    )
    recovered = tuple(_living(tuple(leaves.values()), now))
    return Survey(found, leaves, configuration, trusted, recovered, world)


def _leaf(entry: Entry, secret: Secret | None, trusted: Sequence[x509.Certificate], now: datetime) -> rotation.Leaf:
    pair = secret.pair() if secret else None
    published = frozenset(map(fingerprint, secret.certificates(files.AUTHORITIES))) if secret else frozenset()
    issuer = None
    if pair is not None and not authority.flaw(pair, entry.wanted, now):
        issuer = issuer_of(load_pair(pair), trusted)
    reason = authority.needs_renewal(pair, entry.wanted, trusted, now)
    return rotation.Leaf(reason, fingerprint(issuer) if issuer else None, published, entry.for_scheduler)


def _living(secrets: Sequence[Secret | None], now: datetime) -> list[x509.Certificate]:
    """The authorities that signed leaves in use, from the ca.crt beside them."""
    living: dict[str, x509.Certificate] = {}
    for secret in secrets:
        if secret is None:
            continue
        try:
            leaf = load_certificates(secret.text(files.CERTIFICATE))[0]
        except CertificateError:
            continue
        issuer = issuer_of(leaf, secret.certificates(files.AUTHORITIES))
        if issuer is not None and leaf.not_valid_after_utc > now and issuer.not_valid_after_utc > now:
            living[fingerprint(issuer)] = issuer
    return list(living.values())
