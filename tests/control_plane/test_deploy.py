"""The manifests on a real API server: every base, overlay and component is accepted, and stays as it was applied."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ateplace.local import ControlPlane, substrate
from ateplace.local.substrate import MANIFESTS
from tests import third_party
from tests.deploying import BASE, COMPONENTS, NAMESPACE, OVERLAYS, SECOND_SCHEDULER, assert_no_difference, compose

NEEDS = {
    "cert-manager": (third_party.CERT_MANAGER, ("certificates", "issuers")),
    "prometheus": (third_party.PROMETHEUS_OPERATOR, ("servicemonitors", "prometheusrules")),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    """A plane of its own: a webhook is registered here that nobody serves."""
    with ControlPlane(scheduler=False) as running:
        yield running


def apply(cluster: ControlPlane, kustomization: Path) -> list[str]:
    printed = cluster.kubectl("apply", "--server-side", "-k", str(kustomization))
    return printed.splitlines()


def define(cluster: ControlPlane, name: str) -> None:
    """Install what a kustomization of ours needs from others."""
    if name in NEEDS:
        for path in third_party.definitions(NEEDS[name][0], *NEEDS[name][1]):
            cluster.define(path)


def test_the_base_can_be_installed_before_agent_substrate(cluster: ControlPlane) -> None:
    lines = apply(cluster, BASE)
    assert f"namespace/{NAMESPACE} serverside-applied" in lines
    assert all(line.endswith(" serverside-applied") for line in lines), lines
    assert_no_difference(cluster, BASE)


@pytest.mark.versions
@pytest.mark.parametrize("name", sorted(OVERLAYS))
def test_an_overlay_is_accepted_and_there_is_no_difference_afterwards(cluster: ControlPlane, name: str) -> None:
    define(cluster, name)
    lines = apply(cluster, OVERLAYS[name])
    assert all(line.endswith(" serverside-applied") for line in lines), lines
    assert_no_difference(cluster, OVERLAYS[name])


def test_the_plain_overprovisioner_is_applied_by_itself(cluster: ControlPlane) -> None:
    directory = COMPONENTS["overprovisioner-only"]
    apply(cluster, directory)
    assert_no_difference(cluster, directory)


NOT_ON_TOP = {"atelet-gate", "atelet-priority", "overprovisioner-only", "cert-manager"}


@pytest.mark.parametrize("name", sorted(set(COMPONENTS) - NOT_ON_TOP))
def test_a_component_is_accepted_on_top_of_the_default_installation(
    cluster: ControlPlane, name: str, tmp_path: Path
) -> None:
    define(cluster, name)
    composed = compose(tmp_path, SECOND_SCHEDULER, components=(COMPONENTS[name],))
    lines = apply(cluster, composed)
    assert all(line.endswith(" serverside-applied") for line in lines), lines
    assert_no_difference(cluster, composed)


GATED = {
    "atelet": ({"ate.dev/atelet": "true"}, "system-node-critical"),
    "atelet-v1": ({"ate.dev/atelet": "true", "ate.dev/substrate-version": "v1"}, "ate-node-critical"),
}


def test_atelet_is_gated_by_the_components_in_the_kustomization_that_installs_it(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    """Both shapes at once: the class that Agent Substrate's own DaemonSet has is left as it is."""
    for name in ("old", "new"):
        manifest = (MANIFESTS / name / "atelet.yaml").read_text().replace("VERSION", "v1")
        documents = [one for one in yaml.safe_load_all(manifest) if one["kind"] in {"DaemonSet", "PriorityClass"}]
        (tmp_path / f"{name}.yaml").write_text(substrate.ungated(yaml.safe_dump_all(documents)))
    cluster.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ate-system"}}])
    components = (COMPONENTS["atelet-gate"], COMPONENTS["atelet-priority"])
    composed = compose(tmp_path, tmp_path / "old.yaml", tmp_path / "new.yaml", components=components)
    apply(cluster, composed)
    found = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in cluster.api.list(substrate.DAEMONSETS)}
    assert {name: (pod["nodeSelector"], pod.get("priorityClassName")) for name, pod in found.items()} == GATED


@pytest.mark.versions
def test_a_policy_of_ours_has_no_complaint_about_its_own_expressions(cluster: ControlPlane) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def warnings() -> dict[str, object]:
        policies = [item for item in cluster.api.list(path) if item["metadata"]["name"].startswith("ateplace-")]
        checked = {item["metadata"]["name"]: item.get("status", {}).get("typeChecking") for item in policies}
        return {} if len(policies) < 5 or None in checked.values() else checked

    found = cluster.wait(warnings, timeout=60, why="the policies to be type-checked")
    assert {name: each for name, each in found.items() if each} == {}
