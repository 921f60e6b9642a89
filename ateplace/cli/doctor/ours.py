"""Ourselves: every role is up, and exactly one reconciler leads."""

import asyncio
from datetime import UTC, datetime

from ateplace.cli.doctor.look import Look
from ateplace.cli.findings import APPLY, Finding, fail, ok, warn
from ateplace.errors import NotFound
from ateplace.kube import paths
from ateplace.kube.objects import Deployment, Lease, LeaseSpec

ROLES = ("ateplace-webhook", "ateplace-extender", "ateplace-reconciler")
RECONCILER_LEASE = "ateplace-reconciler"
LOOK_AGAIN = 0.5
DURATION = 15.0
"""Seconds that a Lease is held for, where it does not say."""


async def deployments(look: Look) -> list[Finding]:
    found = await look.ours()
    return [_judge(name, found.get(name), look.namespace) for name in ROLES]


def _judge(name: str, found: Deployment | None, namespace: str) -> Finding:
    if found is None:
        says = f"there is no Deployment {name} in the namespace {namespace}"
        return fail(says, f"{APPLY}, or set cluster.namespace")
    available, wanted = found.available(), found.spec.replicas
    look = f"kubectl describe deployment -n {namespace} {name}; kubectl logs -n {namespace} deployment/{name}"
    if not wanted:
        return fail(f"{name} is scaled to 0", f"kubectl scale -n {namespace} deployment/{name} --replicas=2")
    if not available:
        return fail(f"none of {wanted} replicas of {name} is available", look)
    if available < wanted:
        return warn(f"{available} of {wanted} replicas of {name} are available", look)
    return ok(f"{name}: {available} of {wanted} available")


async def leader(look: Look) -> list[Finding]:
    logs = f"kubectl logs -n {look.namespace} deployment/ateplace-reconciler"
    holder = await held(look, RECONCILER_LEASE)
    if holder is None:
        says = f"no reconciler leads (Lease {RECONCILER_LEASE}): nothing is released or repaired"
        return [fail(says, logs)]
    return [ok(f"{holder} leads the reconcilers")]


async def held(look: Look, lease: str) -> str | None:
    """The holder of a Lease; None when it has none.

    Right after an installation or a restart a Lease may have no holder for some seconds, and when it seems to have run
    out, that may be our clock: both are looked at again for half a duration, in which a living holder renews it often.
    """
    path = paths.LEASES.named(lease, look.namespace)
    loop = asyncio.get_running_loop()
    first, end = None, loop.time() + DURATION / 2
    while True:
        try:
            spec = (await look.kube.get(path, Lease)).spec or LeaseSpec()
        except NotFound:
            spec = LeaseSpec()
        if spec.holder_identity and spec.renew_time:
            patience = float(spec.lease_duration_seconds or DURATION)
            age = (datetime.now(UTC) - datetime.fromisoformat(spec.renew_time)).total_seconds()
            if -patience < age < patience or (first and spec.renew_time != first):
                return spec.holder_identity
            if first is None:
                first, end = spec.renew_time, loop.time() + patience / 2
        if loop.time() > end:
            return None
        await asyncio.sleep(LOOK_AGAIN)
