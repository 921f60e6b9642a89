"""Our scheduler: running, and configured to look at every node and to ask us the right way."""

from typing import Any

import yaml
from msgspec import Struct

from ateplace import names
from ateplace.cli.doctor.look import Look
from ateplace.cli.doctor.ours import held
from ateplace.cli.findings import APPLY, Finding, fail, ok, warn
from ateplace.kube import paths
from ateplace.kube.objects import ConfigMap
from ateplace.settings import Settings


class Source(Struct):
    name: str = ""


class Volume(Struct, rename="camel"):
    config_map: Source | None = None


class Spec(Struct):
    volumes: list[Volume] | None = None


class Template(Struct):
    spec: Spec


class Deployed(Struct):
    template: Template
    replicas: int = 1


class Status(Struct, rename="camel"):
    available_replicas: int = 0


class Scheduler(Struct):
    """The scheduler's Deployment as far as it is read here."""

    spec: Deployed
    status: Status | None = None


async def check(look: Look) -> list[Finding]:
    settings = look.settings
    name = settings.certs.scheduler_deployment
    if not settings.webhook.scheduler_name or not name:
        says = "ateoms are left to the cluster's own scheduler, which cannot be inspected from here"
        return [warn(says, "compare its configuration with deploy/scheduler/default-scheduler.yaml")]
    path = paths.DEPLOYMENTS.named(name, look.namespace)
    deployment = await look.find(path, Scheduler)
    if deployment is None:
        says = f"there is no Deployment {name}: ateoms stay Pending"
        return [fail(says, APPLY)]
    found = []
    if not deployment.spec.replicas or not deployment.status or not deployment.status.available_replicas:
        says = f"no replica of {name} is available: ateoms stay Pending"
        found.append(fail(says, f"kubectl describe deployment -n {look.namespace} {name}"))
    else:
        holder = await held(look, names.SCHEDULER)
        if holder is None:
            says = f"no scheduler holds the Lease {names.SCHEDULER}: ateoms stay Pending"
            found.append(fail(says, f"kubectl logs -n {look.namespace} deployment/{name}"))
    for volume in deployment.spec.template.spec.volumes or ():
        if volume.config_map:
            config = paths.CONFIG_MAPS.named(volume.config_map.name, look.namespace)
            mapped = await look.find(config, ConfigMap)
            for text in (mapped.data or {}).values() if mapped else ():
                found += judge(text, settings)
    return found or [ok("the scheduler runs, looks at every node and asks the extender")]


def judge(text: str, settings: Settings) -> list[Finding]:
    """What is wrong with a KubeSchedulerConfiguration, for our purpose."""
    again = "see deploy/scheduler/second-scheduler.yaml; change it there, apply, and restart the scheduler"
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return [fail(f"the scheduler's configuration is not valid YAML: {error}", again)]
    if not isinstance(config, dict):
        return [fail("the scheduler's configuration is empty", again)]
    profiles: list[dict[str, Any]] = config.get("profiles") or [{}]
    wanted = settings.webhook.scheduler_name
    profile = next((one for one in profiles if one.get("schedulerName", "default-scheduler") == wanted), None)
    if profile is None:
        return [fail(f"no profile of the scheduler is named {wanted}: ateoms stay Pending", again)]
    found = []
    share = profile.get("percentageOfNodesToScore", config.get("percentageOfNodesToScore", 0))
    if share != 100:
        says = f"the scheduler samples nodes (percentageOfNodesToScore {share or 'unset'}): warm nodes are missed"
        found.append(fail(says, f"set percentageOfNodesToScore: 100; {again}"))
    extenders: list[dict[str, Any]] = config.get("extenders") or []
    if not extenders:
        return [*found, fail("the scheduler asks no extender: nothing is claimed before it is bound", again)]
    return [*found, *_extender(extenders[0], settings, again)]


def _extender(extender: dict[str, Any], settings: Settings, again: str) -> list[Finding]:
    found = []
    if extender.get("ignorable"):
        says = "the extender is ignorable: while it is away pods are bound without a claim"
        found.append(fail(says, f"remove `ignorable`; {again}"))
    if not extender.get("nodeCacheCapable"):
        found.append(fail("nodeCacheCapable is off: the extender refuses such calls", f"set it to true; {again}"))
    tls = extender.get("tlsConfig") or {}
    if not extender.get("enableHTTPS") or not (tls.get("caFile") or tls.get("caData")):
        says = "the scheduler does not verify the extender (enableHTTPS with a CA is missing)"
        found.append(fail(says, f"set enableHTTPS and tlsConfig.caFile; {again}"))
    timeout = seconds(str(extender.get("httpTimeout", "5s")))
    if timeout <= 2 * settings.extender.deadline:
        says = f"httpTimeout is {timeout:g} s, not more than twice extender.deadline ({settings.extender.deadline:g} s)"
        found.append(warn(says, f"raise httpTimeout or lower extender.deadline; {again}"))
    return found


UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(duration: str) -> float:
    """A Go duration such as `1m30s`; 0 for what is none."""
    total, number, unit = 0.0, "", ""
    for character in duration + "0":
        if character in "0123456789." and unit:
            if unit not in UNITS or not number:
                return 0.0
            total += float(number) * UNITS[unit]
            number, unit = "", ""
        if character in "0123456789.":
            number += character
        else:
            unit += character
    return total
