"""PriorityClasses: ateoms above ordinary pods, placeholders below them and not below cluster-autoscaler's cutoff."""

from msgspec import Struct, field

from ateplace import names
from ateplace.cli.doctor.look import Look
from ateplace.cli.findings import Finding, fail, ok, warn
from ateplace.kube import paths
from ateplace.kube.objects import Metadata

CUTOFF = -10
"""cluster-autoscaler's `--expendable-pods-priority-cutoff`: for a pod below it the cluster never grows."""
OWN_CLASS = "create it, or set webhook.priority_class to one that exists"


class PriorityClass(Struct, rename="camel"):
    value: int = 0
    preemption_policy: str = "PreemptLowerPriority"
    global_default: bool = False
    metadata: Metadata = field(default_factory=Metadata)


async def check(look: Look) -> list[Finding]:
    ateom = look.settings.webhook.priority_class
    placeholder = names.PLACEHOLDER_PRIORITY_CLASS
    return judge(
        (ateom, await look.find(paths.PRIORITY_CLASSES.named(ateom), PriorityClass)),
        (placeholder, await look.find(paths.PRIORITY_CLASSES.named(placeholder), PriorityClass)),
    )


def judge(ateom: tuple[str, PriorityClass | None], placeholder: tuple[str, PriorityClass | None]) -> list[Finding]:
    apply = "kubectl apply -f deploy/base/priority-classes.yaml"
    again = f"a class cannot be changed: delete it, then {apply}"
    shipped = {names.ATEOM_PRIORITY_CLASS, names.PLACEHOLDER_PRIORITY_CLASS}
    found = [
        fail(f"there is no PriorityClass {name}", apply if name in shipped else OWN_CLASS)
        for name, one in (ateom, placeholder)
        if one is None
    ]
    for name, one in (ateom, placeholder):
        if one and one.global_default:
            found.append(fail(f"{name} is the cluster's default class: every pod gets it", again))
    high, low = ateom[1], placeholder[1]
    if low and low.value < CUTOFF:
        says = f"{placeholder[0]} is {low.value}, below {CUTOFF}: cluster-autoscaler does not grow for placeholders"
        found.append(fail(says, again))
    if low and low.value >= 0:
        found.append(fail(f"{placeholder[0]} is {low.value}: ordinary pods (0) cannot take its room", again))
    if low and low.preemption_policy != "Never":
        found.append(warn(f"{placeholder[0]} may preempt: placeholders could evict others", again))
    if high and high.value <= max(0, low.value if low else 0):
        found.append(fail(f"{ateom[0]} is {high.value}: ateoms cannot take placeholders' room or go first", again))
    if found or high is None or low is None:
        return found
    return [ok(f"{ateom[0]} is {high.value}, {placeholder[0]} is {low.value}")]
