"""The local control plane keeps its promises."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ateplace.errors import LocalError
from ateplace.local import ApiError, ControlPlane, substrate

PARENT = """
import sys, time
from ateplace.local import ControlPlane
with ControlPlane(nodes=1) as plane:
    print(plane.directory, plane.port, plane.etcd_port, flush=True)
    if sys.argv[1] == "raise":
        raise RuntimeError("on purpose")
    if sys.argv[1] == "wait":
        time.sleep(600)
"""


def processes_of(directory: str) -> list[str]:
    """Command lines of live processes that mention a directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = entry.read_bytes().replace(b"\0", b" ").decode()
            if directory in line:
                found.append(line)
    return found


def is_free(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) != 0


def start(how: str) -> tuple["subprocess.Popen[str]", str, list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    directory, *ports = process.stdout.readline().split()
    return process, directory, [int(port) for port in ports]


def test_pods_run_and_services_get_loopback_addresses(
    plane: ControlPlane, namespace: str, nodes: Callable[..., list[str]]
) -> None:
    nodes(1)
    container = {"name": "c", "image": "registry.example/c:1"}
    plane.api.post(
        f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": "p"}, "spec": {"containers": [container]}}
    )
    plane.wait(
        lambda: plane.api.get(f"/api/v1/namespaces/{namespace}/pods/p")["status"]["phase"] == "Running", why="Running"
    )
    service = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 8443}]}}
    address = plane.api.post(f"/api/v1/namespaces/{namespace}/services", service)["spec"]["clusterIP"]
    assert address.startswith("127.")
    with socket.create_server((address, 0)):
        pass


def test_an_identity_has_only_the_rights_it_was_given(plane: ControlPlane, namespace: str) -> None:
    nobody = plane.kubeconfig_for(user="nobody")
    robot = plane.kubeconfig_for(service_account=f"{namespace}/default")
    for kubeconfig, name in ((nobody, "nobody"), (robot, f"system:serviceaccount:{namespace}:default")):
        with pytest.raises(LocalError, match=f'User "{name}" cannot list'):
            plane.kubectl("--kubeconfig", str(kubeconfig), "get", "nodes")


def test_a_condition_that_never_comes_says_what_was_waited_for_and_seen(plane: ControlPlane) -> None:
    with pytest.raises(AssertionError, match="waited 0 s for the moon; last: 0"):
        plane.wait(lambda: 0, timeout=0, why="the moon")


def test_a_daemonset_can_be_held_unready_and_crash_looping(
    plane: ControlPlane, namespace: str, nodes: Callable[..., list[str]]
) -> None:
    nodes(1)
    labels = {"app": "agent"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "registry.example/c:1"}]},
    }
    spec = {"selector": {"matchLabels": labels}, "template": template}
    plane.api.post(f"/apis/apps/v1/namespaces/{namespace}/daemonsets", {"metadata": {"name": "agent"}, "spec": spec})

    def states() -> set[str]:
        found = set()
        for pod in plane.api.list(f"/api/v1/namespaces/{namespace}/pods"):
            status = pod["status"]
            container = status.get("containerStatuses", [{}])[0]
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
            found.add(
                container.get("state", {}).get("waiting", {}).get("reason") or ("ready" if ready else status["phase"])
            )
        return found

    plane.wait(lambda: states() == {"ready"}, why="a Ready agent")
    plane.hold(namespace, "agent", "crashloop")
    plane.wait(lambda: states() == {"CrashLoopBackOff"}, why="a crash-looping agent")
    plane.hold(namespace, "agent", "unready")
    plane.wait(lambda: states() == {"Running"}, why="an un-Ready agent")
    plane.hold(namespace, "agent", None)
    plane.wait(lambda: states() == {"ready"}, why="a Ready agent again")


def test_the_stand_in_controller_does_as_upstream_does(plane: ControlPlane, namespace: str) -> None:
    substrate.install(plane, controller=False)
    substrate.start_controller(plane)
    made = substrate.pool(plane, namespace, "web", 2, sandbox_class="microvm", resources={"requests": {"cpu": "1"}})
    path = substrate.deployment_path(plane, namespace, "web")
    plane.wait(lambda: plane.api.exists(path), why="the pool's Deployment")
    deployed = plane.api.get(path)
    owner = deployed["metadata"]["ownerReferences"][0]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (made["metadata"]["uid"], True, True)
    spec = deployed["spec"]["template"]["spec"]
    assert deployed["spec"]["template"]["metadata"]["labels"] == {"ate.dev/worker-pool": "web"}
    assert "nodeSelector" not in spec
    assert spec["tolerations"][0]["key"] == "ate.dev/sandboxClass"
    assert "privileged" not in spec["containers"][0]["securityContext"]
    assert spec["containers"][0]["resources"] == {
        "requests": {"cpu": "1"},
        "limits": {"ate.dev/kvm": "1"},
    }
    assert "priorityClassName" not in spec
    substrate.scale(plane, namespace, "web", 3)
    plane.wait(lambda: plane.api.get(path)["spec"]["replicas"] == 3, why="the scale to be followed")
    assert plane.stop("ate-controller") == -signal.SIGTERM


@pytest.mark.parametrize("how", ["end", "raise"])
def test_nothing_is_left_after_the_block(how: str) -> None:
    process, directory, ports = start(how)
    process.communicate(timeout=60)
    assert process.returncode == (0 if how == "end" else 1)
    assert_nothing_left(directory, ports)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_parent_is_stopped_or_killed(number: signal.Signals) -> None:
    process, directory, ports = start("wait")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert_nothing_left(directory, ports)


def assert_nothing_left(directory: str, ports: list[int]) -> None:
    deadline = time.monotonic() + 60
    while processes_of(directory) or Path(directory).exists() or not all(map(is_free, ports)):
        assert time.monotonic() < deadline, processes_of(directory)
        time.sleep(0.05)


def test_two_planes_side_by_side_do_not_meet(plane: ControlPlane) -> None:
    with ControlPlane(nodes=1, scheduler=False) as other:
        assert other.service_network != plane.service_network
        assert [node["metadata"]["name"] for node in other.api.list("/api/v1/nodes")] == ["node-0000"]
        with pytest.raises(ApiError):
            plane.api.get("/api/v1/nodes/node-0000")


def test_faults_can_be_made_and_are_survived() -> None:
    with ControlPlane(nodes=1) as own:
        version = own.api.get("/api/v1/pods")["metadata"]["resourceVersion"]
        own.api.post("/api/v1/namespaces", {"metadata": {"name": "more"}})
        own.compact_etcd()
        own.kill_apiserver()
        with pytest.raises(AssertionError, match="kube-apiserver ended with -9"):
            own.wait(own.api.ready, timeout=0)
        own.start_apiserver()
        with own.api.watch("/api/v1/pods", resourceVersion=version) as events:
            assert next(events)["object"]["code"] == 410
        own.stop_apiserver()
        own.start_apiserver()
        own.restart_scheduler("default-scheduler")
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "registry.example/c:1"}]}}
        own.wait(lambda: own.api.exists("/api/v1/namespaces/default/serviceaccounts/default"), why="a ServiceAccount")
        own.api.post("/api/v1/namespaces/default/pods", pod)
        running = lambda: own.api.get("/api/v1/namespaces/default/pods/p")["status"]["phase"] == "Running"  # noqa: E731
        own.wait(running, why="a pod that runs after all that")
