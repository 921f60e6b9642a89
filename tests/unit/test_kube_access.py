"""Where the configuration comes from, and that what is refused is read again."""

import asyncio
import base64
import contextlib
import json
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import load_kube_config

from ateplace import errors
from ateplace.kube import Kube, client, credentials
from ateplace.kube.access import Access, _proxy
from ateplace.kube.objects import Node
from ateplace.settings import Cluster
from tests.unit.kube_server import Answer, Request, connected, kubeconfig, serving
from tests.unit.sockets import Tls

NODE = {"metadata": {"name": "n1"}}


class Guarded:
    """Lets one token in."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.refused = 0

    async def __call__(self, request: Request, answer: Answer) -> None:
        if request.headers.get("authorization") == f"Bearer {self.token}":
            await answer.reply(200, NODE)
        else:
            self.refused += 1
            await answer.refuse(401, "Unauthorized", "Unauthorized")


def test_a_token_file_is_read_again_when_its_token_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    guarded = Guarded("old")

    async def main() -> None:
        async with (
            serving(guarded) as server,
            connected(kubeconfig(tmp_path, server.url, tokenFile=str(file))) as kube,
        ):
            await kube.get("/n", Node)
            guarded.token = "new"
            file.write_text("new\n")
            await asyncio.gather(*(kube.patch("/n", {}, Node) for _ in range(8)))
            await kube.get("/n", Node)

    asyncio.run(main())
    assert 1 <= guarded.refused <= 8


def test_an_exec_plugin_runs_once_for_many_calls_that_were_refused(tmp_path: Path) -> None:
    token, runs = tmp_path / "token", tmp_path / "runs"
    token.write_text("old")
    plugin = tmp_path / "plugin"
    plugin.write_text(f"""#!/bin/sh
echo run >> {runs}
echo '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",'
echo '"status": {{"token": "'$(cat {token})'"}}}}'
""")
    plugin.chmod(0o755)
    guarded = Guarded("old")

    run = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}

    async def main() -> None:
        async with serving(guarded) as server, connected(kubeconfig(tmp_path, server.url, exec=run)) as kube:
            await kube.get("/n", Node)
            guarded.token = "new"
            token.write_text("new")
            await asyncio.gather(*(kube.get("/n", Node) for _ in range(8)))

    asyncio.run(main())
    assert runs.read_text().split() == ["run", "run"]


def test_credentials_that_stay_wrong_are_not_read_without_end(tmp_path: Path) -> None:
    guarded = Guarded("right")

    async def main() -> int:
        async with serving(guarded) as server, connected(kubeconfig(tmp_path, server.url, token="wrong")) as kube:
            for _ in range(5):
                with pytest.raises(errors.Unauthorized):
                    await kube.get("/n", Node)
            return len(server.requests)

    assert asyncio.run(main()) == 5


@pytest.mark.parametrize("write", [False, True])
def test_a_new_certificate_authority_is_trusted_as_soon_as_it_is_in_its_file(tmp_path: Path, write: bool) -> None:
    old, new = Tls(), Tls()
    file = tmp_path / "ca.crt"
    file.write_bytes(old.ca)

    async def call(kube: Kube) -> None:
        await (kube.patch("/n", {}, Node) if write else kube.get("/n", Node))

    async def main() -> None:
        guarded = Guarded("t")
        async with contextlib.AsyncExitStack() as stack:
            async with serving(guarded, tls=old.server) as server:
                path = kubeconfig(tmp_path, server.url, file, token="t")
                kube = await stack.enter_async_context(connected(path))
                await call(kube)
            file.write_bytes(new.ca)
            async with serving(guarded, server.port, new.server):
                await call(kube)

    asyncio.run(main())


def test_a_server_that_cannot_be_trusted_gets_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ATTEMPTS", 2)
    file = tmp_path / "ca.crt"
    file.write_bytes(Tls().ca)

    async def main() -> list[Request]:
        async with (
            serving(Guarded("t"), tls=Tls().server) as server,
            connected(kubeconfig(tmp_path, server.url, file, token="t")) as kube,
        ):
            with pytest.raises(errors.Unreachable, match="certificate verify failed"):
                await kube.get("/n", Node)
            return server.requests

    assert asyncio.run(main()) == []


@pytest.mark.parametrize(
    "text",
    [None, "", "- a", "a: [", "{}", '{"current-context": "x"}', "\x00"],
    ids=["absent", "empty", "list", "no yaml", "no fields", "no contexts", "nul"],
)
def test_a_kubeconfig_that_cannot_be_used_is_a_settings_error_that_names_it(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(errors.SettingsError, match=str(path)):
        asyncio.run(Kube.connect(Cluster(kubeconfig=str(path))))


def test_the_default_kubeconfig_is_the_one_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{kubeconfig(tmp_path, 'https://c.example:6443')}")
    access = asyncio.run(Access.load())
    assert access.server == "https://c.example:6443"
    assert isinstance(access.tls, ssl.SSLContext) and access.tls.check_hostname


CLUSTERS: list[dict[str, Any]] = [
    {},
    {"certificate-authority": "ca.crt"},
    {"certificate-authority-data": base64.b64encode(b"authority").decode(), "certificate-authority": "absent"},
    {"insecure-skip-tls-verify": True, "tls-server-name": "api.example", "proxy-url": "http://proxy.example:3128"},
]
USERS: list[dict[str, Any]] = [
    {},
    {"token": "secret"},
    {"tokenFile": "token", "token": "both"},
    {"tokenFile": "token"},
    {"client-certificate": "tls.crt", "client-key": "tls.key"},
    {"client-certificate-data": base64.b64encode(b"c").decode(), "client-key-data": base64.b64encode(b"k").decode()},
    {"username": "a", "password": "b"},
]


@pytest.mark.parametrize("user", USERS, ids=lambda user: ",".join(user) or "nothing")
@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda cluster: ",".join(cluster) or "nothing")
def test_a_kubeconfig_says_to_us_what_it_says_to_the_client_library(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]
) -> None:
    path = Path(kubeconfig(tmp_path, "https://c.example:6443/", **user))
    document = json.loads(path.read_text())
    document["clusters"][0]["cluster"] |= cluster
    path.write_text(json.dumps(document))
    for name in ("ca.crt", "tls.crt", "tls.key", "token"):
        (tmp_path / name).write_text(f"{name}\n")
    library = Configuration()
    asyncio.run(load_kube_config(config_file=str(path), client_configuration=library, persist_config=False))
    files = (library.ssl_ca_cert, library.cert_file, library.key_file)
    ca, certificate, key = (Path(file).read_bytes() if file else b"" for file in files)
    assert asyncio.run(credentials.kubeconfig(str(path))) == credentials.Credentials(
        library.host,
        library.api_key.get("BearerToken", "").strip(),
        ca,
        certificate,
        key,
        verify=library.verify_ssl,
        server_name=library.tls_server_name,
        proxy=library.proxy,
    )


def test_of_several_kubeconfigs_the_first_to_say_something_counts_as_for_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    paths = []
    for number in (1, 2):
        directory = tmp_path / str(number)
        directory.mkdir()
        path = Path(kubeconfig(directory, f"https://c{number}.example", token=f"t{number}"))
        document = json.loads(path.read_text())
        document["current-context"] = "only" if number == 2 else "test"
        context = {"cluster": "test", "user": "test", "namespace": "second"}
        document["contexts"] += [{"name": "only", "context": context}] if number == 2 else []
        path.write_text(json.dumps(document))
        paths.append(path)
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, paths)))
    access = asyncio.run(Access.load())
    assert (access.server, access.authorization(), access.namespace) == ("https://c1.example", "Bearer t1", "default")
    paths[0].write_text(json.dumps(json.loads(paths[0].read_text()) | {"current-context": ""}))
    access = asyncio.run(Access.load())
    assert (access.server, access.authorization(), access.namespace) == ("https://c1.example", "Bearer t1", "second")


def test_the_client_library_is_not_imported_for_a_kubeconfig_with_a_certificate_or_a_token(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "https://c.example:6443", token="t")
    code = """
import asyncio, sys
from ateplace.kube import Kube
from ateplace.settings import Cluster
async def main(): await (await Kube.connect(Cluster(kubeconfig=sys.argv[1]))).close()
asyncio.run(main())
sys.exit("kubernetes" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code, path], check=True, timeout=60)


@pytest.mark.parametrize(("given", "namespace"), [({"namespace": "demo"}, "demo"), ({}, "default")])
def test_the_namespace_is_that_of_the_current_context_as_for_kubectl(
    tmp_path: Path, given: dict[str, str], namespace: str
) -> None:
    path = Path(kubeconfig(tmp_path, "https://c.example:6443"))
    document = json.loads(path.read_text())
    document["contexts"][0]["context"] |= given
    document["contexts"].append({"name": "other", "context": {"cluster": "test", "user": "test", "namespace": "other"}})
    path.write_text(json.dumps(document))

    async def main() -> str:
        async with connected(str(path)) as kube:
            return kube.namespace

    assert asyncio.run(main()) == namespace


@pytest.mark.parametrize(
    ("server", "no_proxy", "proxy"),
    [
        ("https://10.96.0.1:443", "", "http://proxy:3128"),
        ("https://10.96.0.1:443", "10.0.0.0/8,.svc", None),
        ("https://10.96.0.1:443", "10.96.0.1", None),
        ("https://[fd00::1]:443", "fd00::/8", None),
        ("https://api.example.com:6443", "10.0.0.0/8", "http://proxy:3128"),
        ("https://api.example.com:6443", ".example.com", None),
    ],
)
def test_the_environments_proxy_is_used_unless_the_server_is_exempt(
    monkeypatch: pytest.MonkeyPatch, server: str, no_proxy: str, proxy: str | None
) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert _proxy(server) == proxy
