"""Runs our own Deployments as processes, from their manifests.

KWOK's kubelets only pretend, so what a kubelet does for one of our pods is done here: the ServiceAccount's token as
a kubeconfig, Secrets and ConfigMaps as directories that follow their objects, environment and arguments as written.
A pod listens on its Service's loopback address, so the API server and the scheduler reach it as they would in a
cluster. Paths in manifests point into the pod's own directory instead of the machine's root.
"""

import base64
import contextlib
import re
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx
import yaml

from ateplace import names
from ateplace.local.api import ApiError, Object
from ateplace.local.plane import ControlPlane
from ateplace.local.program import ateplace

FOLLOW_EVERY = 0.5
"""Seconds between looks at mounted objects; a kubelet takes up to a minute."""


class Pod:
    """One process that plays one pod of a Deployment.

    It listens on its Service's address; `suffix` and `address` are for one of several (`local.replicas`), `code` for
    one of another version (`local.program`). With `rolls` it starts anew when the Deployment's template changes.
    """

    def __init__(
        self,
        plane: ControlPlane,
        deployment: Object,
        extra: dict[str, str],
        *,
        suffix: str = "",
        address: str = "",
        code: Path | None = None,
        rolls: bool = False,
    ) -> None:
        self.plane = plane
        self.code = code
        self._rolls = rolls
        self._deployment = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}".format(**deployment["metadata"])
        self.name: str = deployment["metadata"]["name"] + suffix
        self.namespace: str = deployment["metadata"]["namespace"]
        self._spec: Object = deployment["spec"]["template"]["spec"]
        self._labels: dict[str, str] = deployment["spec"]["template"]["metadata"]["labels"]
        self._extra = extra
        self._directory = plane.directory / "pods" / self.name
        self._stopped = threading.Event()
        self._life = threading.RLock()
        """Held while the process is started or ended: a test and the Deployment may want it at the same time."""
        self.address = address or self._service_address()

    def start(self) -> None:
        """Wait for what it mounts, as a kubelet does, then start it."""
        account = f"{self.namespace}/{self._spec['serviceAccountName']}"
        self.kubeconfig = self.plane.kubeconfig_for(service_account=account)
        self._template = self._deployed() if self._rolls else {}
        self._find_mounts()
        self.plane.wait(self._mount_all, timeout=60, why=f"what {self.name} mounts", every=0.1)
        threading.Thread(target=self._follow, daemon=True).start()
        self.run()

    def run(self) -> None:
        """Start the process (again)."""
        with self._life:
            self._run()

    def _run(self) -> None:
        container = self._spec["containers"][0]
        environment: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            environment |= self._read("configmaps", source["configMapRef"]["name"]).get("data", {})
        environment |= {entry["name"]: self._here(entry["value"]) for entry in container.get("env", ())}
        arguments = [self._here(argument) for argument in container.get("args", ())]
        if container["name"] == "ateplace":
            program, needed = ateplace(self.code)
            argv = [*program, *arguments]
            environment |= needed | {
                "ATEPLACE_CLUSTER_KUBECONFIG": str(self.kubeconfig),
                "ATEPLACE_SERVE_HOST": self.address,
                "ATEPLACE_WEBHOOK_TLS_DIRECTORY": self._here("/etc/ateplace/webhook-tls"),
                "ATEPLACE_EXTENDER_TLS_DIRECTORY": self._here("/etc/ateplace/extender-tls"),
            }
        else:
            argv = [str(self.plane.binaries[container["command"][0]]), *arguments, "--secure-port=0"]
        self.plane.run(self.name, argv, environment | self._extra)

    def kill(self) -> None:
        """SIGKILL, as when a node loses power."""
        with self._life:
            self.plane.stop(self.name, signal.SIGKILL)

    def restart(self) -> None:
        """SIGTERM, wait, start again."""
        with self._life:
            self.plane.stop(self.name, timeout=60)
            self._run()

    def stop(self) -> None:
        """SIGTERM and wait; it stays down."""
        self._stopped.set()
        with self._life:
            self.plane.stop(self.name, timeout=60)

    @property
    def serves(self) -> bool:
        """Whether it is one of ours, with a health port; kube-scheduler has none here."""
        return bool(self._spec["containers"][0]["name"] == "ateplace")

    def url(self, path: str) -> str:
        """An address on its health port."""
        return f"http://{self.address}:8080{path}"

    def readiness(self) -> str:
        """Empty when ready, else why not."""
        try:
            answer = httpx.get(self.url("/readyz"), timeout=2, trust_env=False)
        except httpx.HTTPError as error:
            return f"{self.name}: {type(error).__name__}"
        return "" if answer.status_code == 200 else f"{self.name}: {answer.text.strip()}"

    def _here(self, text: str) -> str:
        for path, real in self._paths.items():
            text = text.replace(path, real)
        return text

    def _service_address(self) -> str:
        for service in self.plane.api.list(f"/api/v1/namespaces/{self.namespace}/services"):
            selector = service["spec"].get("selector") or {}
            if selector and selector.items() <= self._labels.items():
                return str(service["spec"]["clusterIP"])
        return "127.0.0.1"

    def _find_mounts(self) -> None:
        mounts = {mount["name"]: mount["mountPath"] for mount in self._spec["containers"][0].get("volumeMounts", ())}
        volumes = {volume["name"]: volume for volume in self._spec.get("volumes", ())}
        self._paths = {path: str(self._directory / name) for name, path in mounts.items()}
        self._mounted = [(self._directory / name, volumes[name]) for name in mounts]

    def _mount_all(self) -> bool:
        return all(self._mount(directory, volume) for directory, volume in self._mounted)

    def _mount(self, directory: Path, volume: Object) -> bool:
        """Write a volume's files as a kubelet does: a new directory, then one rename of the `..data` link."""
        files = self._files(volume)
        if files is None:
            return False
        directory.mkdir(parents=True, exist_ok=True)
        link = directory / "..data"
        now = {path.name: path.read_bytes() for path in link.iterdir()} if link.exists() else None
        if now == files:
            return True
        old = link.resolve() if link.exists() else None
        fresh = Path(tempfile.mkdtemp(prefix="..", dir=directory))
        for name, body in files.items():
            (fresh / name).write_bytes(body)
        swap = directory / "..swap"
        swap.unlink(missing_ok=True)
        swap.symlink_to(fresh.name)
        swap.rename(link)
        for name in files:
            with contextlib.suppress(FileExistsError):
                (directory / name).symlink_to(Path("..data") / name)
        if old is not None:
            shutil.rmtree(old)
        return True

    def _files(self, volume: Object) -> dict[str, bytes] | None:
        try:
            if "secret" in volume:
                secret = self._read("secrets", volume["secret"]["secretName"])
                return {name: base64.b64decode(value) for name, value in secret.get("data", {}).items()}
            config = self._read("configmaps", volume["configMap"]["name"])
            return {name: self._resolve(text).encode() for name, text in config.get("data", {}).items()}
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def _read(self, plural: str, name: str) -> Object:
        return self.plane.api.get(f"/api/v1/namespaces/{self.namespace}/{plural}/{name}")

    def _resolve(self, text: str) -> str:
        """A configuration file's paths, the credentials that a pod finds by itself and, as there is no cluster DNS
        here, the addresses of the Services in it."""

        def address(match: "re.Match[str]") -> str:
            service = self.plane.api.get(f"/api/v1/namespaces/{match['namespace']}/services/{match['name']}")
            return f"https://{service['spec']['clusterIP']}:"

        text = text.replace("\nclientConnection:\n", f"\nclientConnection:\n  kubeconfig: {self.kubeconfig}\n")
        return re.sub(r"https://(?P<name>[\w-]+)\.(?P<namespace>[\w-]+)\.svc:", address, self._here(text))

    def _follow(self) -> None:
        while not self._stopped.wait(FOLLOW_EVERY):
            with contextlib.suppress(httpx.HTTPError, ApiError, OSError, RuntimeError):  # the plane may be stopping
                if self._mount_all() and self._rolls:
                    self._roll()

    def _deployed(self) -> Object:
        template: Object = self.plane.api.get(self._deployment)["spec"]["template"]
        return template

    def _roll(self) -> None:
        """Start anew when the Deployment's template is another one; a process that is down stays down."""
        fresh = self._deployed()
        if fresh == self._template:
            return
        # The first mark comes while a kubelet still waits for the Secret; we are quicker, and have read what it means.
        marked = bool(_trusts(self._template)) or not _trusts(fresh)
        with self._life:
            self._template, self._spec = fresh, fresh["spec"]
            self._find_mounts()
            self.plane.wait(self._mount_all, timeout=60, why=f"what {self.name} mounts", every=0.1)
            if marked and not self._stopped.is_set() and self.plane.keeper.exit_code(self.name) is None:
                self.restart()


def _trusts(template: Object) -> str:
    annotations: dict[str, str] = template["metadata"].get("annotations") or {}
    return annotations.get(names.TRUST_ANNOTATION, "")


class Installation:
    """ateplace, installed on a plane with kubectl and running as processes, one for each Deployment."""

    def __init__(self, plane: ControlPlane, overlay: Path, **settings: Any) -> None:
        """`settings`: `group__field=value` for every role, as environment."""
        self.plane = plane
        self._extra = {f"ATEPLACE_{key.replace('__', '_').upper()}": str(value) for key, value in settings.items()}
        rendered = self._install(overlay)
        self.objects: list[Object] = [document for document in yaml.safe_load_all(rendered) if document]
        deployments = [document for document in self.objects if document["kind"] == "Deployment"]
        self.deployments = {item["metadata"]["name"].removeprefix("ateplace-"): item for item in deployments}
        self.pods = self._make_pods()

    def _install(self, overlay: Path) -> str:
        """Put an overlay's objects into the cluster; their text."""
        rendered = self.plane.kubectl("kustomize", str(overlay))
        self.plane.apply(rendered)
        return rendered

    def _make_pods(self) -> dict[str, Pod]:
        return {name: Pod(self.plane, item, self._extra, rolls=True) for name, item in self.deployments.items()}

    def start(self, *, timeout: float = 120) -> None:
        """Start all, the reconciler first because it makes what the others mount, and wait until each is ready."""
        for name in sorted(self.pods, key=lambda name: not name.startswith("reconciler")):
            self.pods[name].start()
        self.plane.wait(self.ready, timeout=timeout, why="ateplace to be ready")

    def ready(self) -> bool:
        """Whether every role says so; an AssertionError with the reasons otherwise."""
        reasons = [reason for pod in self.pods.values() if pod.serves and (reason := pod.readiness())]
        assert not reasons, reasons  # noqa: S101 - `plane.wait` shows it
        configuration = (
            f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{names.WEBHOOK_CONFIGURATION}"
        )
        hooks = self.plane.api.get(configuration)["webhooks"]
        assert all(hook["clientConfig"].get("caBundle") for hook in hooks), "no caBundle yet"  # noqa: S101
        return True
