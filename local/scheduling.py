"""The extender as processes on a plane, and the scheduler that calls them with the shipped configuration.

For tests and benchmarks that want these two and nothing else of ateplace: pods are made as our webhook leaves them.
"""

import itertools
import json
import signal
import ssl
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple

import httpx
import yaml

from ateplace import names
from ateplace.certs import files
from ateplace.certs.authority import Use, Wanted, issue, make_authority
from ateplace.local.api import Object
from ateplace.local.plane import ControlPlane
from ateplace.local.ports import Reservations
from ateplace.local.program import ateplace

DEPLOY = Path(__file__).parents[1] / "deploy"
CONFIG = DEPLOY / "scheduler" / "second-scheduler.yaml"
SERVER_NAME = f"{names.EXTENDER_SERVICE}.{names.NAMESPACE}.svc"
WEBHOOK_NAME = f"{names.WEBHOOK_SERVICE}.{names.NAMESPACE}.svc"
ACCESS = ("namespace.yaml", "priority-classes.yaml", "atelet-access.yaml", "node-policy.yaml", "nomination-policy.yaml")


class Scheduling:
    """One or more extender replicas behind one address, and their scheduler, from `with` to its end."""

    def __init__(
        self,
        plane: ControlPlane,
        *,
        replicas: int = 1,
        config: Path = CONFIG,
        scheduler: Mapping[str, Any] | None = None,
        argv: list[str] | None = None,
        code: Mapping[int, Path] | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are `group__field=value`; `scheduler` overrides keys of the configuration; `argv` runs instead of
        the extender; `code` are the trees of replicas of another version."""
        self.plane = plane
        self.replicas = replicas
        self.name = "ateplace"
        self._config = config
        self._overrides = dict(scheduler or {})
        self._argv = argv
        self._code = code or {}
        self._settings = settings
        self._more: Mapping[str, Any] = {}
        self.directory = plane.directory / "scheduling"
        self._alternator: Alternator | None = None
        self._reservations = Reservations()
        self.pids: dict[int, int] = {}
        self.ports: list[int] = []
        self.health: list[int] = []

    def __enter__(self) -> "Scheduling":
        for manifest in ACCESS:
            self.plane.apply(DEPLOY / "base" / manifest)
        documents = yaml.safe_load_all((DEPLOY / "base" / "extender.yaml").read_text("utf-8"))
        rights = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
        self.plane.apply([document for document in documents if document["kind"] in rights])
        self.write_certificates()
        account = f"{names.NAMESPACE}/{names.EXTENDER_SERVICE}"
        self.kubeconfig = self.plane.kubeconfig_for(service_account=account)
        for number in range(self.replicas):
            self.ports.append(self._reservations.port())
            self.health.append(self._reservations.port())
            self.start(number)
        self.wait_ready()
        if self.replicas > 1:
            self._alternator = Alternator(self.directory, self.ports)
        self.plane.add_scheduler(self.name, self.configuration(), env=environment())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.plane.stop_scheduler(self.name, signal.SIGKILL)
        for number in range(self.replicas):
            self.kill(number)
        if self._alternator:
            self._alternator.close()
        self._reservations.release()

    def start(self, number: int = 0) -> None:
        """Start a replica (again)."""
        given = {
            "cluster.kubeconfig": str(self.kubeconfig),
            "serve.host": "127.0.0.1",
            "serve.health_port": self.health[number],
            "serve.drain": 0,
            "extender.port": self.ports[number],
            "extender.tls_directory": str(self.directory / "server"),
            **{key.replace("__", "."): value for key, value in {**self._settings, **self._more}.items()},
        }
        flags = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
        program, environment = ateplace(self._code.get(number))
        argv = self._argv or [*program, "extender"]
        self.pids[number] = self.plane.run(f"extender-{number}", [*argv, *flags], environment)

    def kill(self, number: int = 0) -> None:
        """SIGKILL a replica."""
        self.plane.stop(f"extender-{number}", signal.SIGKILL)

    def restart(self, *, code: Mapping[int, Path] | None = None, **settings: Any) -> None:
        """Kill every replica and start it again, so that it sees everything afresh: with these settings beside those
        that it was made with; `code` are the trees of replicas of another version from now on."""
        self._more, self._code = settings, self._code if code is None else code
        for number in range(self.replicas):
            self.kill(number)
            self.start(number)
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until every replica says that it is ready."""
        for number in range(self.replicas):
            self.plane.wait(lambda number=number: self._ready(number), timeout=30, why="the extender to be ready")  # type: ignore[misc]

    def get(self, path: str, number: int = 0) -> str:
        """A page of a replica's health port; an AssertionError, which `plane.wait` takes for "not yet", when it does
        not answer."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.health[number]}{path}", timeout=30, trust_env=False).text
        except httpx.HTTPError as error:
            raise AssertionError(f"extender {number}: {error!r}") from error

    def metric(self, name: str, number: int = 0, **labels: str) -> float:
        """The sum of a metric's samples whose labels include these."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [
            line for line in self.get("/metrics", number).splitlines() if line.startswith((name + "{", name + " "))
        ]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(text in line for text in wanted))

    def answers(self) -> list["Answer"]:
        """Which replica answered a node for which pod, in this order; of several replicas only."""
        return list(self._alternator.answers) if self._alternator else []

    @property
    def address(self) -> str:
        """Where the scheduler calls."""
        return f"https://127.0.0.1:{self._alternator.port if self._alternator else self.ports[0]}"

    def client(self, who: str = "client") -> httpx.Client:
        """A client with the scheduler's certificate, or with the `stranger`'s, whom the same authority vouches for."""
        return _client(self.directory / who, self.address)

    def context(self, who: str, *, check: bool = True) -> ssl.SSLContext:
        """A client's TLS context, which need not check the server."""
        context = _context(self.directory / who)
        if not check:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def configuration(self) -> Object:
        """The shipped configuration, with this plane's addresses and files."""
        document: Object = yaml.safe_load(self._config.read_text("utf-8"))
        document["leaderElection"] = {"leaderElect": False}
        extender = document["extenders"][0]
        extender["urlPrefix"] = self.address
        tls = extender["tlsConfig"]
        for key in ("caFile", "certFile", "keyFile"):
            tls[key] = tls[key].replace("/etc/ateplace/client", str(self.directory / "client"))
        for key, value in self._overrides.items():
            document[key] = {**document[key], **value} if isinstance(value, dict) else value
        return document

    def _ready(self, number: int) -> bool:
        said = self.get("/readyz", number)
        assert said == "ready\n", said  # noqa: S101 - `plane.wait` shows it
        return True

    def write_certificates(self) -> None:
        """A new authority, and what our servers, the scheduler and a stranger get from it."""
        now = datetime.now(UTC)
        authority = make_authority(now, 1)
        wanted = {
            "server": Wanted(Use.SERVER, (SERVER_NAME, WEBHOOK_NAME, "localhost"), ("127.0.0.1",)),
            "client": Wanted(Use.CLIENT, (names.EXTENDER_CLIENT,)),
            "stranger": Wanted(Use.CLIENT, ("somebody-else",)),
        }
        for directory, leaf in wanted.items():
            pair = issue(authority, leaf, now, 1)
            content = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
            files.project(self.directory / directory, content)


class Answer(NamedTuple):
    """One node that a replica answered to filter."""

    pod: str
    """`namespace/name`."""
    node: str
    replica: int
    asked: float
    """By `time.perf_counter`."""


class Alternator:
    """One address in front of several replicas: each call, not just each connection, goes to the next one."""

    def __init__(self, directory: Path, targets: list[int]) -> None:
        self._clients = [_client(directory / "client", f"https://127.0.0.1:{port}") for port in targets]
        self.answers: list[Answer] = []
        turns, clients, answers = itertools.cycle(range(len(targets))), self._clients, self.answers

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                asked, replica = perf_counter(), next(turns)
                try:
                    answer = clients[replica].post(self.path, content=body)
                    status, content = answer.status_code, answer.content
                    if self.path == "/filter" and status == HTTPStatus.OK and (nodes := answer.json().get("NodeNames")):
                        pod = json.loads(body)["Pod"]["metadata"]
                        key = f"{pod['namespace']}/{pod['name']}"
                        answers.extend(Answer(key, node, replica, asked) for node in nodes)
                except httpx.HTTPError as error:
                    status, content = 502, str(error).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Say nothing."""

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(directory / "server" / "tls.crt", directory / "server" / "tls.key")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for client in self._clients:
            client.close()


def environment() -> dict[str, str]:
    """What the shipped manifest tells the scheduler's runtime."""
    documents = yaml.safe_load_all((DEPLOY / "scheduler" / "scheduler.yaml").read_text("utf-8"))
    deployment = next(document for document in documents if document["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


def _context(directory: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    return context


def _client(directory: Path, address: str) -> httpx.Client:
    return httpx.Client(base_url=address, verify=_context(directory), trust_env=False, timeout=10)


def pool_pod(pool: Object, name: str, **spec: Any) -> Object:
    """An ateom of this WorkerPool as our webhook leaves it, as far as scheduling can tell."""
    labels = {names.POOL_LABEL: pool["metadata"]["name"], names.POOL_UID_LABEL: pool["metadata"]["uid"]}
    requests = spec.pop("requests", None)
    container: Object = {"name": "ateom", "image": "registry.example/ateom:1"}
    if requests:
        container["resources"] = {"requests": requests}
    wait = {
        "name": names.INIT_CONTAINER,
        "image": "registry.example/busybox:1",
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "10m", "memory": "16Mi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": pool["metadata"]["namespace"],
            "labels": {**labels, **spec.pop("labels", {})},
        },
        "spec": {
            "schedulerName": names.SCHEDULER,
            "priorityClassName": names.ATEOM_PRIORITY_CLASS,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "initContainers": [wait],
            **json.loads(json.dumps(spec)),
        },
    }
