"""What KWOK's pretended kubelets do, as its Stage objects.

Pods start after a delay and turn Ready; deleted ones go at once. They get no address: a made-up one may be in use
elsewhere, and the API server connects to it when asked for a pod's proxy. Our own pods, which do listen, are reached at
their Services' addresses (`local.pods`). Two annotations change what becomes of a pod (on a DaemonSet's template, of
all of its pods):

    local.ateplace/start-delay: 5s          the pod takes that long to become Ready
    local.ateplace/stop-delay: 5s           deleted, it takes that long to go
    local.ateplace/hold: unready            it runs, but never becomes Ready
    local.ateplace/hold: crashloop          its containers are in CrashLoopBackOff
    local.ateplace/hold: terminating        deleted, it stays Terminating

Reference for the format: https://kwok.sigs.k8s.io/docs/user/stages-configuration/
"""

import textwrap
from typing import Any

import yaml

HOLD = "local.ateplace/hold"
START_DELAY = "local.ateplace/start-delay"
STOP_DELAY = "local.ateplace/stop-delay"

_ADDRESSES = """
{{ $host := NodeIPWith .spec.nodeName }}
hostIP: {{ $host | Quote }}
hostIPs: [{ip: {{ $host | Quote }}}]
{{ if .spec.hostNetwork }}
podIP: {{ $host | Quote }}
podIPs: [{ip: {{ $host | Quote }}}]
{{ end }}
startTime: {{ $now | Quote }}
phase: Running
"""


def _conditions(ready: bool) -> str:
    lines = ["{{ $now := Now }}", "conditions:"]
    for kind, value in (("Initialized", True), ("ContainersReady", ready), ("Ready", ready)):
        lines.append(f'- {{type: {kind}, status: "{value}", lastTransitionTime: {{{{ $now | Quote }}}}}}')
    return "\n".join(lines)


def _containers(field: str, source: str, ready: bool, state: str, restarts: int = 0) -> str:
    return textwrap.dedent(f"""
        {field}:
        {{{{ range .spec.{source} }}}}
        - name: {{{{ .name | Quote }}}}
          image: {{{{ .image | Quote }}}}
          ready: {str(ready).lower()}
          restartCount: {restarts}
          state: {state}
        {{{{ end }}}}
    """)


_RUNNING = "{running: {startedAt: {{ $now | Quote }}}}"
_DONE = "{terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}"
_CRASHED = "{waiting: {reason: CrashLoopBackOff, message: back-off 40s restarting failed container}}"
_INIT = _containers("initContainerStatuses", "initContainers", True, _DONE)


def _status(ready: bool, state: str, restarts: int = 0) -> str:
    containers = _containers("containerStatuses", "containers", ready, state, restarts)
    return _conditions(ready) + containers + _INIT + _ADDRESSES


def _where(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})


_HELD = f'.metadata.annotations["{HOLD}"]'
_READY = '.status.conditions.[] | select( .type == "Ready" ) | .status'
_REASON = ".status.containerStatuses.[].state.waiting.reason"
_LIVE = _where(".metadata.deletionTimestamp", "DoesNotExist")
_GOING = _where(".metadata.deletionTimestamp", "Exists")


def _stage(name: str, kind: str, where: list[dict[str, Any]], then: dict[str, Any], delay: int = 0) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": where},
    }
    if kind == "Pod" and "statusTemplate" in then:
        own = {"expressionFrom": f'.metadata.annotations["{START_DELAY}"]'}
        spec["delay"] = {"durationMilliseconds": delay, "durationFrom": own}
    elif then.get("delete"):
        own = {"expressionFrom": f'.metadata.annotations["{STOP_DELAY}"]'}
        spec["delay"] = {"durationMilliseconds": 0, "durationFrom": own}
    elif delay:
        spec["delay"] = {"durationMilliseconds": delay, "jitterDurationMilliseconds": delay * 5 // 4}
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": spec | {"next": then},
    }


_NODE_READY = """
{{ $now := Now }}
conditions:
- type: Ready
  status: "True"
  reason: KubeletReady
  message: a pretended kubelet
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ or .metadata.creationTimestamp $now | Quote }}
"""


def stages(start_delay: float) -> str:
    """KWOK's configuration; `start_delay` seconds from bound to Ready."""
    wait = int(start_delay * 1000)
    not_held, not_ready = _where(_HELD, "DoesNotExist"), _where(_READY, "NotIn", "True")
    unfinished = _where(".status.phase", "NotIn", "Succeeded", "Failed")
    ready, unready, crashed = _status(True, _RUNNING), _status(False, _RUNNING), _status(False, _CRASHED, 5)
    documents = [
        _stage("node-ready", "Node", [not_ready], {"statusTemplate": _NODE_READY}),
        _stage("node-alive", "Node", [_where(_READY, "In", "True")], {"statusTemplate": _NODE_READY}, 300_000),
        _stage("pod-ready", "Pod", [_LIVE, unfinished, not_held, not_ready], {"statusTemplate": ready}, wait),
        _stage(
            "pod-unready",
            "Pod",
            [_LIVE, unfinished, _where(_HELD, "In", "unready"), _where(_READY, "NotIn", "False")],
            {"statusTemplate": unready},
        ),
        _stage(
            "pod-crashes",
            "Pod",
            [
                _LIVE,
                unfinished,
                _where(_HELD, "In", "crashloop"),
                _where(_REASON, "NotIn", "CrashLoopBackOff"),
            ],
            {"statusTemplate": crashed},
        ),
        _stage("pod-gone", "Pod", [_GOING, _where(_HELD, "NotIn", "terminating")], {"delete": True}),
    ]
    return str(yaml.safe_dump_all(documents))
