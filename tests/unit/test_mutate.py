"""What the webhook does to a pod: pod in, whole patched pod out."""

import asyncio
import json
from typing import Any

import pytest

from ateplace import names
from ateplace.settings import BUSYBOX, Substrate, Webhook
from ateplace.webhook import wait_container
from ateplace.webhook.app import Mutate
from tests.unit.reviews import POOL_UID, FixedPools, applied, patch, pod, review, rules

OURS = wait_container.container(Webhook(), Substrate())


def ask(
    obj: Any, *, default_classes: tuple[str, ...] = (), settings: dict[str, Any] | None = None, **request: Any
) -> Any:
    handler = Mutate(rules(**(settings or {})), FixedPools(), default_classes)
    body = json.dumps(review(obj, **request)).encode()
    status, _, answer = asyncio.run(handler.answer(body))
    assert status == 200
    return json.loads(answer)


def test_an_ateom_gets_label_init_container_class_and_scheduler_and_nothing_else() -> None:
    before = pod()
    expected = pod(labels={"app": "ateom", names.POOL_LABEL: "pool", names.POOL_UID_LABEL: POOL_UID}, init=[OURS])
    expected["spec"] |= {"schedulerName": names.SCHEDULER, "priorityClassName": names.ATEOM_PRIORITY_CLASS}
    del expected["spec"]["priority"], expected["spec"]["preemptionPolicy"]
    answer = ask(before)
    assert applied(before, answer) == expected
    assert "warnings" not in answer["response"]


def test_our_own_output_gets_an_empty_patch() -> None:
    once = applied(pod(), ask(pod()))
    again = ask(once)
    assert patch(again) == []
    assert again["response"] == {"uid": again["response"]["uid"], "allowed": True}


def test_our_own_output_as_the_api_server_completes_it_gets_an_empty_patch() -> None:
    once = applied(pod(), ask(pod()))
    once["spec"] |= {"priority": 1000, "preemptionPolicy": "PreemptLowerPriority"}
    once["spec"]["initContainers"][0] |= {
        "terminationMessagePath": "/dev/termination-log",
        "volumeMounts": [{"name": "kube-api-access-x", "mountPath": wait_container.TOKEN_PATH, "readOnly": True}],
    }
    assert patch(ask(once)) == []


def test_our_amounts_as_the_api_server_writes_them_are_ours_and_others_are_not() -> None:
    settings = {"init_cpu": "0.1", "init_memory": "1024Mi"}
    once = applied(pod(), ask(pod(), settings=settings))
    container = once["spec"]["initContainers"][0]
    given = {"cpu": "0.1", "memory": "1024Mi"}
    assert container["resources"] == {"limits": given, "requests": given}
    written = {"cpu": "100m", "memory": "1Gi"}
    container["resources"] = {"limits": written, "requests": written}
    assert patch(ask(once, settings=settings)) == []
    for other in (
        {**written, "cpu": "101m"},
        {**written, "cpu": ["odd"]},
        {"cpu": "100m"},
        {**written, "a": "1"},
        "odd",
    ):
        container["resources"] = {"limits": written, "requests": other}
        again = applied(once, ask(once, settings=settings))
        assert again["spec"]["initContainers"][0]["resources"]["requests"] == given


def test_a_dry_run_gets_the_same_patch() -> None:
    assert patch(ask(pod(), dryRun=True)) == patch(ask(pod()))


def test_a_forged_uid_is_overwritten_with_a_warning() -> None:
    forged = pod(labels={names.POOL_LABEL: "pool", names.POOL_UID_LABEL: "forged"})
    answer = ask(forged)
    assert applied(forged, answer)["metadata"]["labels"][names.POOL_UID_LABEL] == POOL_UID
    assert answer["response"]["warnings"] == [
        "label ate.dev/worker-pool-uid was replaced by the UID of the live WorkerPool"
    ]


FOREIGN = {"name": names.INIT_CONTAINER, "image": "busybox:1.36", "command": ["sh", "-c", "nc -z $HOST_IP 8085"]}
OTHER = {"name": "fetch", "image": "fetch:1"}
SIDECAR = {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("before", "after", "warned"),
    [
        (None, [OURS], False),
        ([], [OURS], False),
        ([OTHER], [OURS, OTHER], False),
        ([SIDECAR, OTHER], [OURS, SIDECAR, OTHER], False),
        ([OURS], [OURS], False),
        ([OURS, OTHER], [OURS, OTHER], False),
        ([OTHER, OURS], [OURS, OTHER], False),
        ([FOREIGN], [OURS], True),
        ([OTHER, FOREIGN, SIDECAR], [OURS, OTHER, SIDECAR], True),
        ([OURS, FOREIGN], [OURS], True),
        ([{**OURS, "volumeMounts": [{"name": "root", "mountPath": "/host"}]}], [OURS], True),
        ([{**OURS, "securityContext": {"privileged": True}}], [OURS], True),
        ([{**OURS, "lifecycle": {}}], [OURS], True),
        ([{**OURS, "volumeMounts": "odd"}], [OURS], True),
    ],
)
def test_our_init_container_is_first_and_the_only_one_of_its_name(
    before: list[dict[str, Any]] | None, after: list[dict[str, Any]], warned: bool
) -> None:
    obj = pod(init=before)
    answer = ask(obj)
    assert applied(obj, answer)["spec"]["initContainers"] == after
    assert ("warnings" in answer["response"]) is warned


def test_an_ordinary_container_of_our_name_makes_ours_step_aside() -> None:
    obj = pod(containers=[{"name": names.INIT_CONTAINER}, {"name": f"{names.INIT_CONTAINER}-1"}])
    once = applied(obj, ask(obj))
    assert once["spec"]["initContainers"] == [{**OURS, "name": f"{names.INIT_CONTAINER}-2"}]
    assert patch(ask(once)) == []


def test_ours_steps_aside_for_an_init_container_too_that_has_the_next_name() -> None:
    theirs = {"name": f"{names.INIT_CONTAINER}-1", "image": "theirs:1"}
    obj = pod(containers=[{"name": names.INIT_CONTAINER}], init=[theirs, {"name": ["odd"]}])
    answer = ask(obj)
    once = applied(obj, answer)
    ours = {**OURS, "name": f"{names.INIT_CONTAINER}-2"}
    assert once["spec"]["initContainers"] == [ours, theirs, {"name": ["odd"]}]
    assert "warnings" not in answer["response"]
    assert patch(ask(once)) == []


def test_absent_and_null_are_the_same() -> None:
    obj = pod(priorityClassName=None, schedulerName=None, initContainers=None, annotations=None)
    obj["metadata"]["annotations"] = None
    result = applied(obj, ask(obj))
    assert result["spec"]["initContainers"] == [OURS]
    assert result["spec"]["priorityClassName"] == names.ATEOM_PRIORITY_CLASS
    assert result["spec"]["schedulerName"] == names.SCHEDULER


CLASS = names.ATEOM_PRIORITY_CLASS
FILLED = {"priority": 5, "preemptionPolicy": "Never"}


@pytest.mark.parametrize(
    ("policy", "spec", "defaults", "expected"),
    [
        ("IfUnset", {}, (), {"priorityClassName": CLASS}),
        ("IfUnset", {"priorityClassName": ""}, (), {"priorityClassName": CLASS}),
        ("IfUnset", {"priorityClassName": "own", **FILLED}, (), {"priorityClassName": "own", **FILLED}),
        ("IfUnset", {"priorityClassName": "usual", **FILLED}, ("usual",), {"priorityClassName": CLASS}),
        ("IfUnset", {"priorityClassName": "own", **FILLED}, ("usual",), {"priorityClassName": "own", **FILLED}),
        ("IfUnset", {"priorityClassName": CLASS, **FILLED}, (CLASS,), {"priorityClassName": CLASS, **FILLED}),
        ("Always", {"priorityClassName": "own", **FILLED}, (), {"priorityClassName": CLASS}),
        ("Always", {"priorityClassName": CLASS, **FILLED}, (), {"priorityClassName": CLASS, **FILLED}),
        ("Never", FILLED, (), FILLED),
        ("Never", {"priorityClassName": "usual", **FILLED}, ("usual",), {"priorityClassName": "usual", **FILLED}),
    ],
)
def test_the_priority_class_follows_the_policy(
    policy: str, spec: dict[str, Any], defaults: tuple[str, ...], expected: dict[str, Any]
) -> None:
    obj = pod()
    del obj["spec"]["priority"], obj["spec"]["preemptionPolicy"]
    obj["spec"] |= spec
    result = applied(obj, ask(obj, default_classes=defaults, settings={"priority_policy": policy}))
    keys = ("priorityClassName", "priority", "preemptionPolicy")
    assert {key: result["spec"][key] for key in keys if key in result["spec"]} == expected


@pytest.mark.parametrize(
    ("setting", "before", "after"),
    [
        ("ateplace-scheduler", "default-scheduler", "ateplace-scheduler"),
        ("ateplace-scheduler", "", "ateplace-scheduler"),
        ("ateplace-scheduler", "batch", "batch"),
        ("ateplace-scheduler", "ateplace-scheduler", "ateplace-scheduler"),
        ("", "default-scheduler", "default-scheduler"),
        ("default-scheduler", "default-scheduler", "default-scheduler"),
    ],
)
def test_the_scheduler_is_set_where_the_pod_names_none(setting: str, before: str, after: str) -> None:
    obj = pod(schedulerName=before)
    assert applied(obj, ask(obj, settings={"scheduler_name": setting}))["spec"]["schedulerName"] == after


def test_the_gating_resource_is_on_our_container_only() -> None:
    obj = pod(init=[OTHER])
    spec = applied(obj, ask(obj, settings={"gating_resource": "ate.dev/ateom", "scheduler_name": ""}))["spec"]
    amounts = {"cpu": "100m", "memory": "16Mi", "ate.dev/ateom": "1"}
    assert spec["initContainers"][0]["resources"] == {"limits": amounts, "requests": amounts}
    assert spec["initContainers"][1] == OTHER
    assert spec["containers"] == obj["spec"]["containers"]


def test_a_preset_node_changes_nothing() -> None:
    obj = pod(nodeName="n1")
    result = applied(obj, ask(obj))
    assert result["spec"]["nodeName"] == "n1"
    assert result["spec"]["initContainers"] == [OURS]
    assert result["metadata"]["labels"][names.POOL_UID_LABEL] == POOL_UID


def test_the_container_passes_the_restricted_profile_and_is_pinned() -> None:
    context = OURS["securityContext"]
    assert OURS["image"] == BUSYBOX
    assert "@sha256:" in OURS["image"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["runAsGroup"] > 0
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert OURS["resources"]["requests"] == OURS["resources"]["limits"]


def test_keys_with_slashes_and_tildes_are_escaped() -> None:
    from ateplace.webhook.mutate import pointer

    assert pointer("a/b~c~1") == "a~1b~0c~01"


def test_strange_keys_beside_ours_do_not_matter() -> None:
    labels = {names.POOL_LABEL: "pool", "a/b": "~", "~1": "/", "ünï": "cödé"}
    obj = pod(labels=labels)
    assert applied(obj, ask(obj))["metadata"]["labels"] == {**labels, names.POOL_UID_LABEL: POOL_UID}
