"""The init container that holds an ateom until atelet answers on its node."""

from typing import Any, Final

from ateplace import names, settings
from ateplace.quantities import quantity

SCRIPT: Final = """\
port=$1 deadline=$2 said=-10
trap 'exit 143' TERM
read -r start rest </proc/uptime
until nc -w 2 "$HOST_IP" "$port" -e true </dev/null >/dev/null 2>&1; do
  read -r now rest </proc/uptime
  waited=$((${now%%.*} - ${start%%.*}))
  if [ "$deadline" -gt 0 ] && [ "$waited" -ge "$deadline" ]; then
    echo "atelet did not answer on $HOST_IP port $port within $deadline s: is its pod on this node running?" >&2
    exit 1
  fi
  if [ $((waited - said)) -ge 10 ]; then
    said=$waited
    echo "waiting for atelet on $HOST_IP port $port ($waited s so far)"
  fi
  if [ "$waited" -lt 10 ]; then pause=0.1; else pause=0.5; fi
  sleep "$pause" 2>/dev/null || sleep 1
done
echo "atelet answers on $HOST_IP port $port"
"""
"""For a POSIX shell and the options of nc that every busybox has (`-z` is not among them).

`-e true` ends nc as soon as it is connected. Time is the machine's uptime, which no clock change moves. There is
one way to fail, the deadline: whatever else goes wrong is waited out, as a container that fails is restarted with
ever longer pauses.
A shell that is process 1 ignores SIGTERM unless it is told otherwise. On a cold node atelet starts at the same time as
the ateom and serves within seconds, so the script looks more often at first; a look costs two short processes.
"""

USER: Final = 65532
"""Not root, and named: ateom pods run as user 0, which `runAsNonRoot` alone would collide with."""

TOKEN_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path

DEFAULTED: Final[dict[str, object]] = {"terminationMessagePath": "/dev/termination-log"}
"""What the API server adds to a container that does not say."""


NANO: Final = 9
"""The scale of the smallest amount that Kubernetes knows."""


def container(webhook: settings.Webhook, substrate: settings.Substrate) -> dict[str, Any]:
    """Our container, complete enough that the API server's defaults change nothing in it."""
    amounts: dict[str, str] = {"cpu": webhook.init_cpu, "memory": webhook.init_memory}
    if webhook.gating_resource:
        amounts[webhook.gating_resource] = "1"
    return {
        "name": names.INIT_CONTAINER,
        "image": webhook.init_image,
        "imagePullPolicy": "IfNotPresent",
        "command": [
            "sh",
            "-c",
            SCRIPT,
            names.INIT_CONTAINER,
            str(substrate.atelet_port),
            str(webhook.init_deadline),
        ],
        "env": [{"name": "HOST_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.hostIP"}}}],
        "resources": {"limits": amounts, "requests": amounts},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsGroup": USER,
            "runAsNonRoot": True,
            "runAsUser": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def is_ours(found: dict[str, Any], ours: dict[str, Any]) -> bool:
    """Whether a container is ours, give or take what the API server itself adds to containers."""
    rest = dict(found)
    for key, value in DEFAULTED.items():
        if rest.get(key) == value:
            del rest[key]
    mounts = rest.pop("volumeMounts", None) or []
    if not isinstance(mounts, list):
        return False
    if any(not isinstance(mount, dict) or mount.get("mountPath") != TOKEN_PATH for mount in mounts):
        return False
    amounts = rest.pop("resources", None)
    return {**rest, "resources": _numbers(amounts)} == {**ours, "resources": _numbers(ours["resources"])}


def _numbers(resources: Any) -> Any:
    """Amounts as numbers, because the API server writes `0.1` as `100m`; what holds anything else stays as it is."""
    try:
        return {
            kind: {name: quantity(text, NANO) for name, text in amounts.items()} for kind, amounts in resources.items()
        }
    except (AttributeError, TypeError, ValueError):
        return resources
