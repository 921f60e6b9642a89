"""The leader's part: keep every certificate, its Secret, the caBundle and the scheduler in step, for ever.

    survey ──> plan ──> carry out each step ──> again, until there is nothing to write ──> wait (or be woken)

Level-triggered and idempotent: each round starts from what the API server says, so it may run late, twice, or
in two processes at once. Every write carries the version that was read; on a conflict everything is read again.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from cryptography import x509

from ateplace import names
from ateplace.certs import files, metrics, rotation
from ateplace.certs.authority import issue, make_authority
from ateplace.certs.catalogue import catalogue
from ateplace.certs.inject import Injector
from ateplace.certs.pem import bundle
from ateplace.certs.scheduler import Scheduler, SchedulerDeployment
from ateplace.certs.store import PREVIOUS, Store
from ateplace.certs.survey import Survey, survey
from ateplace.errors import AteplaceError, CertificateError, Conflict, KubeError
from ateplace.kube import Kube
from ateplace.settings import Settings

log = logging.getLogger(__name__)

INTERVAL: Final = 10.0
"""Seconds between looks when nothing wakes us: Secrets are not watched."""
BREATH: Final = 0.5
"""Least seconds between two rounds, in case another writer keeps undoing our changes."""
ROUNDS: Final = 20
"""Surveys in a row that lead to a write; a first installation takes four."""


class Keeper:
    """Keeps the certificates of one installation. Only the leader may `run` it; nothing breaks when two do.

    `scheduler` replaces the way in which the scheduler is restarted; `now` is the wall clock.
    """

    def __init__(
        self,
        kube: Kube,
        settings: Settings,
        *,
        scheduler: Scheduler | None = None,
        configuration: str = names.WEBHOOK_CONFIGURATION,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        namespace = settings.cluster.namespace
        self._settings = settings.certs
        self._entries = {entry.secret: entry for entry in catalogue(settings)}
        self._store = Store(kube, namespace)
        self._injector = Injector(kube, configuration)
        self._scheduler = scheduler or SchedulerDeployment(kube, namespace, settings.certs.scheduler_deployment)
        self._now = now
        self._stillness = rotation.Stillness(settings.certs.settle)
        self._wake = asyncio.Event()
        self._waited_for = ""

    async def run(self) -> None:
        """For ever; trouble with the API server is logged and tried again."""
        pause = min(INTERVAL, max(BREATH, self._settings.settle / 4))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._injector.watch(self._wake.set).run())
                while True:
                    self._wake.clear()
                    try:
                        await self.bring_into_step()
                    except AteplaceError as error:
                        log.warning("the certificates could not be checked", extra={"reason": str(error)})
                    await asyncio.sleep(BREATH)
                    try:
                        await asyncio.wait_for(self._wake.wait(), pause)
                    except TimeoutError:
                        continue
        finally:
            self._forget()

    async def bring_into_step(self) -> Survey:
        """Do whatever can be done now; the last survey. Raises the first error of a step, after trying them all."""
        for _ in range(ROUNDS):
            seen, steps = await self.look()
            failed: AteplaceError | None = None
            wrote = False
            for step in steps:
                if isinstance(step, rotation.Wait):
                    self._waiting(step)
                    continue
                try:
                    await self._carry_out(step, seen)
                except Conflict as error:
                    log.info("another writer changed it first, reading again", extra={"reason": str(error)})
                except (KubeError, CertificateError) as error:
                    failed = failed or error
                    continue
                wrote = True
            if failed is not None and not wrote:
                raise failed
            if not wrote:
                return seen
        raise CertificateError("the certificates cannot be made consistent: another writer keeps changing them")

    async def look(self) -> tuple[Survey, list[rotation.Step]]:
        """How it stands, and what is to be done."""
        began = time.monotonic()
        seen = await survey(
            self._store,
            self._injector,
            self._scheduler,
            tuple(self._entries.values()),
            self._now(),
        )
        self._measure(seen)
        standing = rotation.standing(seen.world)
        settled = self._stillness.observe(standing, began, time.monotonic())
        return seen, rotation.plan(seen.world, settled=settled)

    async def change_authority(self, why: str) -> None:
        """Begin a change of authority; CertificateError when one is under way or things are not in step."""
        seen, _ = await self.look()
        phase = rotation.phase(seen.world)
        if phase is not rotation.Phase.STEADY:
            raise CertificateError(f"the authority cannot be changed now: the phase is {phase.value}")
        await self._carry_out(rotation.ChangeAuthority(why), seen)

    async def _carry_out(self, step: rotation.Step, seen: Survey) -> None:
        match step:
            case rotation.MakeAuthority():
                await self._make_authority(seen, seen.recovered)
            case rotation.ChangeAuthority():
                await self._make_authority(seen, seen.trusted[:1])
            case rotation.DropPrevious():
                content = {PREVIOUS: None, files.AUTHORITIES: bundle(seen.trusted[:1])}
                await self._store.write(names.CA_CERTIFICATE, seen.authority, content)
            case rotation.Issue(leaf=secret):
                await self._issue(seen, secret)
            case rotation.Publish(leaf=secret):
                await self._store.write(secret, seen.leaves[secret], {files.AUTHORITIES: seen.bundle()})
            case rotation.Inject():
                if seen.configuration is None:
                    raise CertificateError("the webhook configuration cannot be read")
                await self._injector.write(seen.configuration, seen.bundle())
            case rotation.RestartScheduler():
                await self._scheduler.restart(rotation.trust_mark(seen.world.trusted))
        fields = {"step": type(step).__name__, "reason": step.why}
        log.info("certificate step done", extra=fields | {"secret": getattr(step, "leaf", "")})

    async def _make_authority(self, seen: Survey, previous: tuple[x509.Certificate, ...]) -> None:
        made = make_authority(self._now(), self._settings.ca_days)
        content = {
            files.CERTIFICATE: made.certificate,
            files.KEY: made.key,
            files.AUTHORITIES: made.certificate + bundle(previous),
            PREVIOUS: bundle(previous) or None,
        }
        await self._store.write(names.CA_CERTIFICATE, seen.authority, content)
        metrics.ISSUED.labels(names.CA_CERTIFICATE).inc()

    async def _issue(self, seen: Survey, secret: str) -> None:
        if seen.authority is None:
            raise CertificateError("there is no authority")
        wanted = self._entries[secret].wanted
        made = issue(seen.authority.pair(), wanted, self._now(), self._settings.leaf_days)
        content = {
            files.CERTIFICATE: made.certificate,
            files.KEY: made.key,
            files.AUTHORITIES: seen.bundle(),
        }
        annotations = {}
        if secret == names.SCHEDULER_CERTIFICATE and seen.world.scheduler.waiting:
            annotations[names.TRUST_ANNOTATION] = rotation.trust_mark(seen.world.trusted)
        await self._store.write(secret, seen.leaves[secret], content, annotations)
        metrics.ISSUED.labels(secret).inc()

    def _waiting(self, step: rotation.Wait) -> None:
        if step.why != self._waited_for:
            self._waited_for = step.why
            log.info("certificates wait", extra={"reason": step.why})

    def _measure(self, seen: Survey) -> None:
        for name, secret in {names.CA_CERTIFICATE: seen.authority, **seen.leaves}.items():
            certificates = secret.certificates(files.CERTIFICATE) if secret else []
            if certificates:
                metrics.measure(name, certificates[0])

    def _forget(self) -> None:
        """The next leader reports what the Secrets hold."""
        for name in (names.CA_CERTIFICATE, *self._entries):
            metrics.forget(name)
