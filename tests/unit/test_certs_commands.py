"""`ateplace certs`, where somebody else makes the certificates: nothing of theirs is written over."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kube_server import Answer, Request, kubeconfig, serving

SYSTEM = "namespaces/ateplace-system"
RECONCILER = f"/apis/apps/v1/{SYSTEM}/deployments/ateplace-reconciler"
SETTINGS = f"/api/v1/{SYSTEM}/configmaps/ateplace-settings-1"
SECRET = f"/api/v1/{SYSTEM}/secrets/ateplace-webhook-tls"

CONTAINER = {"name": "c", "envFrom": [{"configMapRef": {"name": "ateplace-settings-1"}}]}
DEPLOYMENT = {"metadata": {}, "spec": {"template": {"spec": {"containers": [CONTAINER]}}}}
THEIRS = {
    "metadata": {
        "name": "ateplace-webhook-tls",
        "uid": "s",
        "resourceVersion": "1",
        "annotations": {"cert-manager.io/certificate-name": "ateplace-webhook"},
    }
}
BY_SETTING = {RECONCILER: DEPLOYMENT, SETTINGS: {"metadata": {}, "data": {"ATEPLACE_CERTS_MANAGED": "false"}}}
BY_SECRET = {SECRET: THEIRS}
LEFT_OVER = {RECONCILER: DEPLOYMENT, SETTINGS: {"metadata": {}, "data": {}}, SECRET: THEIRS}


def run(
    directory: Path, command: str, objects: dict[str, Any], *, forbidden: str = "none"
) -> tuple[int, str, set[str]]:
    """Exit code, what it said, and the methods of its requests."""

    async def api(request: Request, answer: Answer) -> None:
        if request.path.startswith(forbidden):
            await answer.refuse(403, "Forbidden", "not for you")
        elif request.method == "GET" and request.path in objects:
            await answer.reply(200, objects[request.path])
        else:
            await answer.refuse(404, "NotFound", "not here")

    async def main() -> tuple[int, str, set[str]]:
        async with serving(api) as server:
            flags = ["--set", f"cluster.kubeconfig={kubeconfig(directory, server.url)}"]
            argv = [sys.executable, "-m", "ateplace.cli", "certs", command, *flags]
            process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE)
            _, said = await asyncio.wait_for(process.communicate(), 60)
            return process.returncode or 0, said.decode(), {request.method for request in server.requests}

    return asyncio.run(main())


@pytest.mark.parametrize("command", ["bootstrap", "rotate-ca"])
@pytest.mark.parametrize(
    ("objects", "forbidden", "why"),
    [
        (BY_SETTING, "none", "(certs.managed is off)"),
        (BY_SECRET, "none", "(the Secret ateplace-webhook-tls is cert-manager's)"),
        (BY_SECRET, "/apis/apps", "(the Secret ateplace-webhook-tls is cert-manager's)"),
    ],
    ids=["by its settings", "by its Secrets", "by its Secrets, its settings being none of the caller's business"],
)
def test_certificates_that_another_makes_are_left_to_it(
    tmp_path: Path, command: str, objects: dict[str, Any], forbidden: str, why: str
) -> None:
    code, said, methods = run(tmp_path, command, objects, forbidden=forbidden)
    look = "kubectl describe certificate -n ateplace-system"
    says = f"ateplace: these certificates are managed elsewhere {why}: see {look}\n"
    assert (code, said, methods) == (1, says, {"GET"})


def test_what_another_has_made_before_is_ours_once_the_settings_say_so(tmp_path: Path) -> None:
    _, said, methods = run(tmp_path, "bootstrap", LEFT_OVER)
    assert "POST" in methods, said
