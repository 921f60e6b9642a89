"""One pod's situation, judged (pure): each thing that ateplace promises about a pod, and whether it holds."""

from collections.abc import Iterator

from msgspec import Struct

from ateplace import names
from ateplace.cli.findings import Finding, fail, ok, warn
from ateplace.cluster.records import FINISHED, AteletRecord, atelet_record, node_record
from ateplace.kube.objects import Node, Pod, WorkerPool
from ateplace.settings import Settings


class Situation(Struct, frozen=True):
    """What was read; None for what does not exist."""

    pod: Pod | None
    pool: WorkerPool | None = None
    node: Node | None = None
    """Where the pod is bound."""
    atelets: tuple[Pod, ...] = ()


def findings(situation: Situation, settings: Settings) -> list[Finding]:
    """In the order of a pod's journey; the first that is not ok usually is the answer."""
    pod = situation.pod
    if pod is None:
        return [warn("the pod is gone", "nothing to do; below is what the extenders remember")]
    meta = pod.metadata
    placeholder = meta.label(names.PLACEHOLDER_LABEL)
    pool = placeholder or meta.label(settings.substrate.pool_label)
    if not pool:
        says = f"it has no label {settings.substrate.pool_label}: no ateom, so ateplace leaves it alone"
        return [warn(says, "nothing to do, unless Agent Substrate should have made it")]
    found = [_identity(pod, situation.pool, pool)]
    if not placeholder:
        found += _injected(pod, settings)
    if pod.status and pod.status.phase in FINISHED:
        return [*found, warn(f"it has {pod.status.phase.lower()}: it holds no claim any more", "nothing to do")]
    if not pod.spec.node_name:
        return [*found, judge_unbound(pod, settings)]
    return [*found, *_bound(situation, pod, settings, placeholder=bool(placeholder))]


def _identity(pod: Pod, pool: WorkerPool | None, name: str) -> Finding:
    meta = pod.metadata
    uid = meta.label(names.POOL_UID_LABEL)
    what = "a placeholder" if meta.label(names.PLACEHOLDER_LABEL) else "an ateom"
    if pool is None:
        says = f"there is no WorkerPool {meta.namespace}/{name}"
        return fail(says, f"create the pool, or delete the pod: kubectl delete pod -n {meta.namespace} {meta.name}")
    if uid and uid != pool.metadata.uid:
        says = f"it was made for an earlier WorkerPool {meta.namespace}/{name} that has been deleted ({uid})"
        return fail(says, f"kubectl delete pod -n {meta.namespace} {meta.name}")
    if pool.metadata.deletion_timestamp is not None:
        return warn(f"its WorkerPool {meta.namespace}/{name} is being deleted", "nothing to do; it goes with the pool")
    return ok(f"{what} of WorkerPool {meta.namespace}/{name}")


def _injected(pod: Pod, settings: Settings) -> Iterator[Finding]:
    again = (
        f"kubectl delete pod -n {pod.metadata.namespace} {pod.metadata.name} (its Deployment makes a new one); "
        "if it happens again: ateplace doctor"
    )
    if not pod.metadata.label(names.POOL_UID_LABEL):
        yield warn("the webhook has not seen it: it was made before ateplace, or while the webhook was away", again)
        return
    waits = any(container.name == names.INIT_CONTAINER for container in pod.spec.init_containers or ())
    wanted = settings.webhook.scheduler_name
    if not waits:
        yield fail(f"it has no init container {names.INIT_CONTAINER}: it starts without waiting for atelet", again)
    if wanted and pod.spec.scheduler_name != wanted:
        says = f"it asked for the scheduler {pod.spec.scheduler_name!r}: its node is claimed only after it is bound"
        yield warn(says, f"leave schedulerName to the webhook, which sets {wanted!r}")
    elif waits:
        yield ok(f"the webhook prepared it: waits for atelet, scheduler {pod.spec.scheduler_name}")


def judge_unbound(pod: Pod, settings: Settings) -> Finding:
    """What a pod without a node waits for."""
    conditions = pod.status.conditions if pod.status else None
    scheduled = next((one for one in conditions or () if one.type == "PodScheduled"), None)
    nominated = pod.status.nominated_node_name if pod.status else ""
    if nominated:
        # Since Kubernetes 1.35 a nomination also says where a binding is being prepared that takes its time.
        return warn(f"{nominated} is kept for it: pods are being evicted there, or it is about to be bound", "wait")
    if scheduled is None or scheduled.status != "False":
        return warn(
            "no scheduler has tried it yet",
            f"if this lasts: kubectl get deployments -n {settings.cluster.namespace}; ateplace doctor",
        )
    if scheduled.reason == "SchedulerError":
        return fail(
            f"the scheduler could not call the extender: {scheduled.message}",
            "ateplace doctor; the extender's logs say more",
        )
    says = f"no node fits: {scheduled.message}"
    return fail(says, "add nodes that fit, or change what the reasons name")


def _bound(situation: Situation, pod: Pod, settings: Settings, *, placeholder: bool) -> Iterator[Finding]:
    name = pod.spec.node_name
    if situation.node is None:
        yield fail(f"it is bound to {name}, which does not exist any more", "nothing; Kubernetes removes the pod")
        return
    record = node_record(situation.node)
    uid = pod.metadata.label(names.POOL_UID_LABEL) or (situation.pool.metadata.uid if situation.pool else "")
    if uid in record.claims:
        since = f" (since {record.claims[uid]})" if record.claims[uid] else ""
        yield ok(f"bound to {name}, which carries its pool's claim{since}")
    elif placeholder:
        yield ok(f"bound to {name}; its pool's placeholders are not warm, so there need not be a claim")
        return
    else:
        reason = "the reconciler adds it within seconds; if not: ateplace doctor"
        yield fail(f"bound to {name}, which has no claim of its pool", reason)
    if not record.labelled:
        yield fail(f"{name} has no label {names.NODE_LABEL}=true, so atelet does not come", "ateplace doctor")
    atelets = [one for one in map(atelet_record, situation.atelets) if one and one.node == name]
    yield judge_atelet(atelets, name, settings)
    if pod.metadata.deletion_timestamp is not None:
        yield warn("it is being deleted and holds its claim until it is gone", "nothing to do")
    else:
        yield _running(pod)


def judge_atelet(atelets: list[AteletRecord], node: str, settings: Settings) -> Finding:
    """Whether a claimed node has what its ateoms wait for."""
    if any(one.ready and not one.terminating for one in atelets):
        return ok(f"atelet is Ready on {node}")
    namespace = settings.substrate.atelet_namespace
    look = f"kubectl get daemonsets -n {namespace}"
    if not atelets:
        return fail(f"there is no atelet on {node}: the ateom waits for it", f"ateplace doctor; {look}")
    one = min(atelets, key=lambda one: one.terminating)
    if one.trouble:
        return fail(f"atelet on {node} does not run: {one.trouble}", f"kubectl describe pod -n {namespace} {one.name}")
    return warn(f"atelet is starting on {node}", "wait; the ateom starts by itself when atelet answers")


def _running(pod: Pod) -> Finding:
    status = pod.status
    conditions = {one.type: one.status for one in (status.conditions or ())} if status else {}
    if conditions.get("Ready") == "True":
        return ok("it is running and Ready")
    inits = (status.init_container_statuses or ()) if status else ()
    if any(one.name == names.INIT_CONTAINER and not one.ready for one in inits):
        return warn(f"{names.INIT_CONTAINER} holds it until atelet answers", "wait, or look at atelet")
    waiting = [
        one.state.waiting.reason
        for one in ((status.container_statuses or ()) if status else ())
        if one.state and one.state.waiting
    ]
    why = ", ".join(waiting) or (status.phase if status else "") or "not started"
    return warn(f"it is not Ready: {why}", f"kubectl describe pod -n {pod.metadata.namespace} {pod.metadata.name}")
