"""The settings that an installation runs with: what its pods are given as environment, from ConfigMaps and directly.

doctor judges by these, so that they need not be repeated as its options; an option wins.
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from ateplace.cli.doctor.look import Look
from ateplace.cli.doctor.ours import ROLES
from ateplace.cli.findings import APPLY, Finding, fail, ok, some, warn
from ateplace.errors import SettingsError
from ateplace.kube import paths
from ateplace.kube.objects import ConfigMap
from ateplace.settings import FILE_VARIABLE, Loaded, Settings, load

DOCTORS_OWN: Final = frozenset({"cluster", "log"})
"""Groups that say how this process reaches the cluster and speaks, which is no pod's business."""


class Reference(Struct):
    name: str = ""


class Source(Struct, rename="camel"):
    config_map_ref: Reference | None = None


class Variable(Struct):
    name: str
    value: str = ""


class Container(Struct, rename="camel"):
    env_from: list[Source] | None = None
    env: list[Variable] | None = None


class Spec(Struct):
    containers: list[Container]


class Template(Struct):
    spec: Spec


class Deployed(Struct):
    template: Template


class Role(Struct):
    """A role's Deployment as far as it is read here."""

    spec: Deployed


class Environment(Struct, frozen=True):
    """What the pods of one role are given."""

    variables: Mapping[str, str]
    missing: tuple[str, ...] = ()
    """ConfigMaps that its Deployment names and that are not there."""


async def environments(look: Look) -> dict[str, Environment]:
    """By role; one without a Deployment is left out."""
    found = {}
    for name in ROLES:
        role = await look.find(paths.DEPLOYMENTS.named(name, look.namespace), Role)
        if role:
            found[name] = await _environment(look, role.spec.template.spec.containers[0])
    return found


async def _environment(look: Look, container: Container) -> Environment:
    variables: dict[str, str] = {}
    missing = []
    for source in container.env_from or ():
        if source.config_map_ref:
            name = source.config_map_ref.name
            mapped = await look.find(paths.CONFIG_MAPS.named(name, look.namespace), ConfigMap)
            if mapped is None:
                missing.append(name)
            else:
                variables |= mapped.data or {}
    variables |= {each.name: each.value for each in container.env or ()}
    return Environment(variables, tuple(missing))


async def check(look: Look) -> list[Finding]:
    return judge(await environments(look), look.given)


def effective(installed: Mapping[str, Environment], given: Loaded) -> Settings:
    """The installation's settings, except where doctor was given others; only the latter if those make no sense."""
    variables = {key: value for role in installed.values() for key, value in role.variables.items()}
    try:
        values = _load(variables).model_dump()
    except SettingsError:
        return given.settings
    ours = given.settings.model_dump()
    for key in given.origins:
        group, _, field = key.partition(".")
        values[group][field] = ours[group][field]
    return Settings.model_validate(values | {group: ours[group] for group in DOCTORS_OWN})


def judge(installed: Mapping[str, Environment], given: Loaded) -> list[Finding]:
    """What is wrong with the settings of the roles, and where doctor was told of others."""
    mend = "fix `configMapGenerator` in the kustomization that installs ateplace, and apply it"
    found = []
    for role, environment in installed.items():
        for name in environment.missing:
            says = f"{role} takes its settings from the ConfigMap {name}, which is not there: its next pod cannot start"
            found.append(fail(says, f"{APPLY}, and do not prune ateplace-settings-*"))
        if FILE_VARIABLE in environment.variables:
            says = f"{role} reads settings from a file in its pods, which cannot be inspected from here"
            found.append(warn(says, "give doctor the same file with --settings"))
        try:
            _load(environment.variables)
        except SettingsError as error:
            says = f"this version of ateplace does not start with the settings of {role}: {error}"
            found.append(fail(says, f"{mend}; if the installation is newer, run its own doctor"))
    if found:
        return found
    found += _lingers(installed)
    if unlike := _unlike(installed):
        says = f"the roles do not have the same settings: {some(unlike)}"
        found.append(warn(says, f"finish the rollout, or {APPLY}"))
    found += _contradictions(installed, given)
    return found or [ok(_told(installed))]


def _lingers(installed: Mapping[str, Environment]) -> list[Finding]:
    """The extender answers by a claim for half of its linger, the reconciler releases it after the whole of its own."""
    lingers = {role: _load(environment.variables).reconciler.linger for role, environment in installed.items()}
    answers, released = lingers.get("ateplace-extender"), lingers.get("ateplace-reconciler")
    if answers is None or released is None or answers <= 2 * released:
        return []
    says = (
        f"the extender answers by a claim for {answers / 2:g} s, and the reconciler releases it after {released:g} s: "
        "an ateom may be bound to a node that was released"
    )
    return [fail(says, f"give both the same reconciler.linger: {APPLY}")]


def _contradictions(installed: Mapping[str, Environment], given: Loaded) -> list[Finding]:
    told = given.settings.model_dump()
    found = []
    for role, environment in installed.items():
        values = _load(environment.variables).model_dump()
        for key in sorted(given.origins):
            group, _, field = key.partition(".")
            if group not in DOCTORS_OWN and told[group][field] != values[group][field]:
                says = f"doctor was given {key} = {told[group][field]}, but {role} has {values[group][field]}"
                found.append(warn(says, "leave it out, and doctor judges by what the installation has"))
    return found


def _unlike(installed: Mapping[str, Environment]) -> set[str]:
    """Settings that are not the same in every role."""
    every: list[dict[str, Any]] = [_load(each.variables).model_dump() for each in installed.values()]
    return {
        f"{group}.{field}"
        for one in every
        for group, fields in one.items()
        for field, value in fields.items()
        if any(other[group][field] != value for other in every)
    }


def _told(installed: Mapping[str, Environment]) -> str:
    if not installed:
        return "no role is installed; the defaults, and what doctor was given, are assumed"
    count = len({key for each in installed.values() for key in load(each.variables).origins})
    return f"every role has the same settings: {count} of its own, and the defaults"


def _load(variables: Mapping[str, str]) -> Settings:
    return load({key: value for key, value in variables.items() if key != FILE_VARIABLE}).settings
