"""The Helm chart makes what kustomize makes, refuses values that it does not know, and is what its generator writes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ateplace.errors import LocalError
from ateplace.local.api import Object
from ateplace.settings import load
from release import chart
from release.chart import CHART, IN_MANIFESTS, identity
from tests.deploying import COMPONENTS, DEPLOY, NAMESPACE, OVERLAYS, SECOND_SCHEDULER, compose, of_kind, render
from tests.helming import helm, template
from tests.unit.test_manifests import STAND_IN_MANIFESTS

HASHED = re.compile(r"\b(ateplace-settings)-[a-z0-9]{10}\b")
SETTINGS = "ateplace-settings"
TESTED = yaml.safe_load((DEPLOY / "scheduler" / "kustomization.yaml").read_text("utf-8"))["images"][0]["newTag"]
"""The version of the kube-scheduler that the manifests name."""


def comparable(objects: list[Object]) -> dict[chart.Identity, Object]:
    """Objects by identity, without the two things in which helm and kustomize are known to differ.

    The namespace of a release is helm's own (`--create-namespace`), so the chart has no object for it. And the hash in
    the settings' name is not made the same way; that every pod refers to the name that there is, is checked here.
    """
    (settings,) = [name for name in of_kind(objects, "ConfigMap") if name.startswith(SETTINGS)]
    text = json.dumps(objects)
    assert set(HASHED.findall(text)) == {SETTINGS} and {found[0] for found in HASHED.finditer(text)} == {settings}
    found = json.loads(HASHED.sub(r"\1", text))
    assert len({identity(each) for each in found}) == len(found)
    return {identity(each): each for each in found if identity(each) != ("v1", "Namespace", "", NAMESPACE)}


def rendered(**values: Any) -> list[Object]:
    return template("--skip-tests", kubernetes=TESTED, **values)


ON = {"enabled": True}
ROLES = ("webhook", "extender", "reconciler", "scheduler")
DEVELOPMENT = {
    "image": {"repository": "ateplace", "tag": "dev"},
    "settings": {"log": {"level": "debug", "format": "text"}},
    **{role: {"replicas": 1} for role in ROLES},
}


@pytest.mark.parametrize(
    ("values", "overlay"),
    [
        ({}, "second-scheduler"),
        ({"certManager": ON}, "cert-manager"),
        ({"scheduler": {"enabled": False}}, "kube-scheduler-config"),
        (DEVELOPMENT, "dev"),
    ],
)
def test_values_make_an_overlay_object_by_object(values: dict[str, Any], overlay: str) -> None:
    assert comparable(rendered(**values)) == comparable(render(OVERLAYS[overlay]))


@pytest.mark.parametrize(
    ("value", "component"),
    [("monitors", "prometheus"), ("dashboard", "grafana"), ("certManager", "cert-manager")],
)
def test_a_value_makes_a_component_object_by_object(value: str, component: str, tmp_path: Path) -> None:
    composed = render(compose(tmp_path, SECOND_SCHEDULER, components=(COMPONENTS[component],)))
    assert comparable(rendered(**{value: ON})) == comparable(composed)


def test_all_that_can_be_switched_on_makes_all_of_it(tmp_path: Path) -> None:
    components = tuple(COMPONENTS[name] for name in ("cert-manager", "prometheus", "grafana"))
    composed = compose(tmp_path, SECOND_SCHEDULER, COMPONENTS["overprovisioner-only"], components=components)
    switches = dict.fromkeys(("certManager", "monitors", "dashboard", "overprovisioner"), ON)
    assert comparable(rendered(**switches)) == comparable(render(composed))


def test_without_our_scheduler_and_with_cert_manager_is_both(tmp_path: Path) -> None:
    composed = compose(tmp_path, OVERLAYS["kube-scheduler-config"], components=(COMPONENTS["cert-manager"],))
    made = rendered(scheduler={"enabled": False}, certManager=ON)
    assert comparable(made) == comparable(render(composed))


def test_the_committed_templates_are_what_the_generator_writes(capsys: pytest.CaptureFixture[str]) -> None:
    code = chart.main(check=True)
    assert (code, capsys.readouterr().out) == (0, ""), "`make chart` writes them"


def deployments(**values: Any) -> dict[str, Object]:
    return of_kind(rendered(**values), "Deployment")


def test_every_value_of_a_role_arrives() -> None:
    room = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    digest = "sha256:" + "0" * 64
    values: dict[str, Any] = {role: {"replicas": 3, "resources": room} for role in ROLES}
    values |= {
        "image": {"repository": "r.example/a", "tag": "v9", "digest": digest},
        "imagePullSecrets": [{"name": "pull"}],
        "tolerations": [{"key": "infra", "operator": "Exists"}],
    }
    values["scheduler"]["image"] = {"repository": "r.example/s", "tag": "v1.35.0"}
    found = deployments(**values)
    assert sorted(found) == sorted(f"ateplace-{role}" for role in ROLES)
    for name, deployment in found.items():
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert (deployment["spec"]["replicas"], container["resources"]) == (3, room)
        assert pod["imagePullSecrets"] == [{"name": "pull"}]
        assert pod["tolerations"] == [{"key": "infra", "operator": "Exists"}]
        wanted = "r.example/s:v1.35.0" if name == "ateplace-scheduler" else f"r.example/a:v9@{digest}"
        assert container["image"] == wanted
    (hook,) = of_kind(rendered(webhook={"failurePolicy": "Ignore"}), "MutatingWebhookConfiguration")["ateplace"][
        "webhooks"
    ]
    assert hook["failurePolicy"] == "Ignore"
    watched = rendered(monitors={"enabled": True, "labels": {"release": "kube-prometheus"}})
    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert of_kind(watched, kind)["ateplace"]["metadata"]["labels"]["release"] == "kube-prometheus"


@pytest.mark.parametrize("kubernetes", ["v1.34.4", "v1.33.13+k3s1", "v1.35.2-gke.1842000"])
def test_the_scheduler_is_of_the_clusters_version(kubernetes: str) -> None:
    (found,) = [
        each
        for each in template("--show-only", "templates/scheduler.yaml", kubernetes=kubernetes)
        if each["kind"] == "Deployment"
    ]
    version = re.split("[+-]", kubernetes)[0]
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.k8s.io/kube-scheduler:{version}"


def environment(**values: Any) -> dict[str, str]:
    (name,) = [name for name in of_kind(rendered(**values), "ConfigMap") if name.startswith(SETTINGS)]
    data: dict[str, str] = of_kind(rendered(**values), "ConfigMap")[name]["data"]
    return data


def test_settings_are_read_by_ateplace_as_they_were_given() -> None:
    given: dict[str, dict[str, Any]] = {
        "log": {"level": "debug"},
        "webhook": {"body_bytes": 16777216, "init_cpu": "250m"},
        "reconciler": {"linger": 90.5},
        "certs": {"managed": False},
    }
    loaded = load(environ=environment(settings=given)).settings.model_dump()
    for group, fields in given.items():
        assert {field: loaded[group][field] for field in fields} == fields
    assert load(environ=environment()).settings.log.format == "json"


def test_another_setting_is_another_name_that_every_role_refers_to() -> None:
    names = [
        {
            deployment["spec"]["template"]["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"]
            for name, deployment in deployments(settings={"reconciler": {"linger": linger}}).items()
            if name != "ateplace-scheduler"
        }
        for linger in (60, 61)
    ]
    assert [len(each) for each in names] == [1, 1] and names[0] != names[1]


def paths(schema: dict[str, Any], at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every object in the values' schema that says which keys it has."""
    document = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    if reference := schema.get("$ref"):
        schema = document["definitions"][reference.rpartition("/")[2]]
    if "properties" not in schema:
        return []
    return [at, *(path for name, each in schema["properties"].items() for path in paths(each, (*at, name)))]


def nested(path: tuple[str, ...], value: object) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def test_an_unknown_key_is_refused_at_every_level() -> None:
    found = paths(json.loads((CHART / "values.schema.json").read_text("utf-8")))
    assert len(found) > 25 and ("settings", "reconciler") in found and ("scheduler", "image") in found
    for path in found:
        with pytest.raises(LocalError) as refused:
            rendered(**nested((*path, "unheard-of"), "x"))
        assert "unheard-of" in str(refused.value), path


@pytest.mark.parametrize(
    "values",
    [
        {"webhook": {"replicas": 0}},
        {"webhook": {"failurePolicy": "Sometimes"}},
        {"image": {"digest": "latest"}},
        {"settings": {"serve": {"health_port": 70000}}},
        {"settings": {"log": {"level": "loud"}}},
        {"settings": {"certs": {"managed": "perhaps"}}},
    ],
)
def test_a_value_that_does_not_fit_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(LocalError, match=next(iter(values))):
        rendered(**values)


def test_settings_that_manifests_name_too_are_no_values() -> None:
    assert set(STAND_IN_MANIFESTS) == IN_MANIFESTS
    with pytest.raises(LocalError, match="pool_label"):
        rendered(settings={"substrate": {"pool_label": "pool"}})


def test_the_defaults_are_allowed_and_documented_by_the_schema() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    assert set(schema["properties"]) - {"global"} == set(values)


def test_another_namespace_is_refused_with_a_sentence() -> None:
    with pytest.raises(LocalError, match="installed into the namespace ateplace-system"):
        template(namespace="elsewhere", kubernetes=TESTED)


def test_helm_has_no_complaint() -> None:
    said = helm("lint", "--strict", str(CHART), "--namespace", NAMESPACE)
    assert "1 chart(s) linted, 0 chart(s) failed" in said
