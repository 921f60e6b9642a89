"""A release's life under load: installed, upgraded, rolled back and uninstalled with helm, and no pod is refused."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ateplace.local import ControlPlane, substrate
from ateplace.local.witness import Witness
from release.chart import CHART
from tests.deploying import NAMESPACE
from tests.helming import RELEASE, Release, helm
from tests.load import Load, failed_calls
from tests.versions import previous_release

pytestmark = pytest.mark.long

WORK = "agents"
RATE = 5
ROLES = ("webhook", "extender", "reconciler", "scheduler")
NEXT = "99.0.0"
"""The version of the chart that is upgraded to: it names another image, so every pod is replaced."""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return previous_release(tmp_path_factory.mktemp("older"))


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with ControlPlane(nodes=8) as running:
        substrate.install(running)
        running.api.post("/api/v1/namespaces", {"metadata": {"name": WORK}})
        substrate.pool(running, WORK, "web", resources={"requests": {"cpu": "50m", "memory": "32Mi"}})
        yield running


def package(chart: Path, directory: Path, *arguments: str) -> Path:
    helm("package", str(chart), "--destination", str(directory), *arguments)
    (made,) = directory.glob("*.tgz")
    return made


def roll(release: Release) -> None:
    """All Deployments at once, as a cluster does."""
    with ThreadPoolExecutor() as threads:
        list(threads.map(release.roll, ROLES))


def images(plane: ControlPlane) -> set[str]:
    found = plane.api.list(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")
    containers = [each["spec"]["template"]["spec"]["containers"][0] for each in found]
    return {each["image"].rpartition(":")[2] for each in containers if each["name"] == "ateplace"}


def test_no_pod_is_refused_from_installation_to_the_end(plane: ControlPlane, older: Path, tmp_path: Path) -> None:
    first = package(older / "deploy" / "chart", tmp_path / "first")
    second = package(CHART, tmp_path / "second", "--version", NEXT, "--app-version", NEXT)
    version = first.stem.removeprefix("ateplace-")
    counts: dict[str, int] = {}
    with Load(plane, WORK, "web", rate=RATE) as load:

        def goes_on(step: str) -> None:
            """Some seconds of load after a step, and no pod refused until then."""
            before = load.created
            plane.wait(lambda: load.created >= before + 4 * RATE, timeout=120, why=f"pods after {step}")
            counts[step] = load.created - sum(counts.values())
            assert load.blamed() == [], step

        goes_on("nothing")
        # While no webhook answers, pods pass: installed with Fail, those of the first seconds would be refused.
        with Release(plane, first, code=older, values={"webhook.failurePolicy": "Ignore"}) as release:
            goes_on("helm install")
            release.helm("upgrade", RELEASE, str(first), "--reuse-values", "--set", "webhook.failurePolicy=Fail")
            goes_on("helm upgrade, to refuse")
            assert release.test()[0] == 0
            with Witness(plane) as witness:
                release.helm("upgrade", RELEASE, str(second), "--reset-then-reuse-values")
                assert images(plane) == {f"v{NEXT}"}
                release.change(None)
                roll(release)
                goes_on("helm upgrade")
                assert release.test()[0] == 0
                release.helm("rollback", RELEASE, "2")
                assert images(plane) == {f"v{version}"}
                release.change(older)
                roll(release)
                goes_on("helm rollback")
                plane.wait(release.ready, timeout=60, why="everything to be ready")
                plane.wait(load.placed, timeout=60, why="every pod to be bound")
                assert (witness.violations(), witness.bound > 8 * RATE) == ([], True)
            failed = [line for line in failed_calls(plane) if "context canceled" not in line]
            assert release.revisions() == [
                (1, f"ateplace-{version}", "superseded"),
                (2, f"ateplace-{version}", "superseded"),
                (3, f"ateplace-{NEXT}", "superseded"),
                (4, f"ateplace-{version}", "deployed"),
            ]
            release.helm("uninstall", RELEASE)
            with ThreadPoolExecutor() as ending:
                list(ending.map(lambda pod: pod.stop(), release.pods.values()))
        goes_on("helm uninstall")
    print(f"{load.created} pods at {load.rate:.1f}/s, {len(load.failures)} refused: {counts}")
    assert load.blamed() == []
    assert failed == [], "but for what a stock kube-scheduler drops when it is told to end"


KINDS = (
    "deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,resourcequotas,networkpolicies,"
    "poddisruptionbudgets,clusterroles,clusterrolebindings,priorityclasses,mutatingwebhookconfigurations,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)
MADE_BY_US = {
    f"secret/ateplace-{name}" for name in ("ca", "webhook-tls", "extender-tls", "scheduler-client")
}  # as with kubectl: they go with the namespace


def test_helm_test_names_who_is_not_ready_and_uninstall_leaves_certificates_only(plane: ControlPlane) -> None:
    def ours() -> set[str]:
        found = plane.kubectl("get", KINDS, "--all-namespaces", "--output=name").split()
        return {name for name in found if "/ateplace" in name}

    with Release(plane, CHART, code=None, values={}) as release:
        code, said = release.test()
        assert (code, len(said.splitlines())) == (0, 3), said
        installed = ours()
        assert len(installed) > 60
        for pod in release.of("extender"):
            pod.stop()
        code, said = release.test()
        wrong = [line for line in said.splitlines() if not line.endswith(" ready")]
        assert code == 1 and len(wrong) == 1, said
        release.helm("uninstall", RELEASE)
        for pod in release.pods.values():
            pod.stop()
    assert installed > MADE_BY_US
    plane.wait(lambda: ours() == MADE_BY_US, timeout=60, why="helm's objects to be gone", every=1)
