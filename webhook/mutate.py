"""What an ateom pod needs, as a JSON patch. Pure: the pool's UID and the cluster's default classes are arguments.

The patch is minimal, and every operation in it applies to the pod that it was made for: API servers reject a
pod whose patch does not, whatever the failure policy.
"""

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from ateplace import names, settings
from ateplace.webhook import protocol, wait_container
from ateplace.webhook.review import Op

DEFAULT_SCHEDULER: Final = "default-scheduler"


@dataclass(frozen=True, slots=True)
class Injection:
    """Our init container, and how it gets into a pod."""

    container: dict[str, Any]
    alone: Op
    """As the only one."""
    first: Op
    """Before the others."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings, made ready for use."""

    pool_label: str
    uid_path: str
    injection: Injection
    scheduler: Op | None
    priority_class: str
    priority_policy: str
    set_class: Op


def rules(webhook: settings.Webhook, substrate: settings.Substrate) -> Rules:
    """What the settings ask for."""
    scheduler = None
    if webhook.scheduler_name and webhook.scheduler_name != DEFAULT_SCHEDULER:
        scheduler = Op("add", "/spec/schedulerName", webhook.scheduler_name)
    return Rules(
        pool_label=substrate.pool_label,
        uid_path="/metadata/labels/" + pointer(names.POOL_UID_LABEL),
        injection=_injection(wait_container.container(webhook, substrate)),
        scheduler=scheduler,
        priority_class=webhook.priority_class,
        priority_policy=webhook.priority_policy,
        set_class=Op("add", "/spec/priorityClassName", webhook.priority_class),
    )


def _injection(container: dict[str, Any]) -> Injection:
    return Injection(
        container,
        alone=Op("add", "/spec/initContainers", Raw(msgspec.json.encode([container]))),
        first=Op("add", "/spec/initContainers/0", Raw(msgspec.json.encode(container))),
    )


def pointer(key: str) -> str:
    """A key as one step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def mutate(
    pod: protocol.Pod, pool_uid: str, rules: Rules, default_classes: Collection[str] = ()
) -> tuple[list[Op], list[str]]:
    """The patch for a pod that has the pool label, and warnings for its creator.

    `default_classes` are the cluster's PriorityClasses with globalDefault: the API server has put their name
    into pods that named none, so they count as unset.
    """
    ops: list[Op] = []
    warnings: list[str] = []
    _label(pod, pool_uid, rules, ops, warnings)
    _init_container(pod, rules, ops, warnings)
    _priority(pod, rules, default_classes, ops)
    if rules.scheduler is not None and pod.scheduler_name in {"", DEFAULT_SCHEDULER}:
        ops.append(rules.scheduler)
    return ops, warnings


def _label(pod: protocol.Pod, pool_uid: str, rules: Rules, ops: list[Op], warnings: list[str]) -> None:
    found = pod.labels.get(names.POOL_UID_LABEL)
    if found == pool_uid:
        return
    if found is not None:
        warnings.append(f"label {names.POOL_UID_LABEL} was replaced by the UID of the live WorkerPool")
    if pod.labels:
        ops.append(Op("add", rules.uid_path, pool_uid))
    else:
        ops.append(Op("add", "/metadata/labels", {names.POOL_UID_LABEL: pool_uid}))


def _init_container(pod: protocol.Pod, rules: Rules, ops: list[Op], warnings: list[str]) -> None:
    others = {each.name for each in pod.containers}
    found = pod.init_containers
    ours = rules.injection if names.INIT_CONTAINER not in others else _renamed(rules.injection, others, found)
    if not found:
        ops.append(ours.alone)
        return
    taken = [index for index, each in enumerate(found) if each.get("name") == ours.container["name"]]
    if taken == [0] and wait_container.is_ours(found[0], ours.container):
        return
    ops.extend(Op("remove", f"/spec/initContainers/{index}") for index in reversed(taken))
    if any(not wait_container.is_ours(found[index], ours.container) for index in taken):
        warnings.append(f"init container {names.INIT_CONTAINER} was replaced by the one that ateplace ships")
    ops.append(ours.first)


def _renamed(injection: Injection, others: Collection[str], found: Iterable[dict[str, Any]]) -> Injection:
    """Ours under the next free name, for a pod that has an ordinary container of our name. A name that an init
    container has is free when that is ours, from when we saw this pod before."""
    named = ((name, each) for each in found if isinstance(name := each.get("name"), str))
    foreign = {name for name, each in named if not wait_container.is_ours(each, {**injection.container, "name": name})}
    taken = foreign.union(others)
    free = (name for number in itertools.count(1) if (name := f"{names.INIT_CONTAINER}-{number}") not in taken)
    return _injection({**injection.container, "name": next(free)})


def _priority(pod: protocol.Pod, rules: Rules, default_classes: Collection[str], ops: list[Op]) -> None:
    current = pod.priority_class_name
    if rules.priority_policy == "Never" or current == rules.priority_class:
        return
    if rules.priority_policy == "IfUnset" and current and current not in default_classes:
        return
    ops.append(rules.set_class)
    # The Priority plugin has run already, and runs again after us: what it filled in for the old class would
    # make it refuse the new one.
    if pod.has_priority:
        ops.append(Op("remove", "/spec/priority"))
    if pod.has_preemption_policy:
        ops.append(Op("remove", "/spec/preemptionPolicy"))
