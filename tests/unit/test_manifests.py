"""The manifests agree with the code, with each other and with what we promise about them."""

import importlib
import json
import re
from pathlib import Path

import pytest
import yaml

from ateplace import names
from ateplace.local import versions
from ateplace.local.api import Object
from ateplace.process import metrics
from ateplace.settings import Settings, load
from tests.deploying import BASE, COMPONENTS, DEPLOY, NAMESPACE, OVERLAYS, ROLES, SECOND_SCHEDULER, of_kind, render

DOCS = DEPLOY.parent / "docs"
EVERY = {"base": BASE, **OVERLAYS}
SETTINGS = Settings()
METRICS = (
    "ateplace.cluster.feed",
    "ateplace.process.health",
    "ateplace.process.http_server",
    "ateplace.certs.metrics",
    "ateplace.extender.metrics",
    "ateplace.reconciler.headroom.metrics",
    "ateplace.reconciler.metrics",
    "ateplace.webhook.metrics",
)


def deployments(overlay: Path = SECOND_SCHEDULER) -> dict[str, Object]:
    return of_kind(render(overlay), "Deployment")


def pod(deployment: Object) -> Object:
    spec: Object = deployment["spec"]["template"]["spec"]
    return spec


def container(deployment: Object) -> Object:
    (only,) = pod(deployment)["containers"]
    found: Object = only
    return found


@pytest.mark.parametrize("name", EVERY)
def test_every_pod_is_restricted_probed_bounded_and_spread(name: str) -> None:
    for deployment in deployments(EVERY[name]).values():
        spec, main = pod(deployment), container(deployment)
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert main["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"readinessProbe", "livenessProbe"} <= main.keys()
        assert {"cpu", "memory"} <= main["resources"]["requests"].keys() and "memory" in main["resources"]["limits"]
        assert spec["topologySpreadConstraints"] and spec["priorityClassName"] == "system-cluster-critical"
        assert spec["enableServiceLinks"] is False
        assert deployment["spec"]["replicas"] == (1 if name == "dev" else 2)


def test_every_deployment_has_an_account_and_a_disruption_budget_of_its_own() -> None:
    objects = render(SECOND_SCHEDULER)
    accounts = [pod(each)["serviceAccountName"] for each in deployments().values()]
    assert sorted(accounts) == sorted(of_kind(objects, "ServiceAccount")) == sorted(deployments())
    budgets = of_kind(objects, "PodDisruptionBudget")
    for name, deployment in deployments().items():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert budgets[name]["spec"]["selector"] == deployment["spec"]["selector"]
        assert budgets[name]["spec"]["maxUnavailable"] == 1


def test_a_pod_has_time_to_end_what_it_began() -> None:
    needed = SETTINGS.serve.drain + SETTINGS.serve.grace + SETTINGS.extender.deadline
    for role in ROLES:
        assert pod(deployments()[f"ateplace-{role}"])["terminationGracePeriodSeconds"] > needed + 5
        rolling = deployments()[f"ateplace-{role}"]["spec"]["strategy"]["rollingUpdate"]
        assert rolling == {"maxUnavailable": 0, "maxSurge": 1}


def test_ports_names_and_secrets_are_those_of_the_code() -> None:
    objects = render(SECOND_SCHEDULER)
    services = of_kind(objects, "Service")
    ports = {name: {port["name"]: port["port"] for port in each["spec"]["ports"]} for name, each in services.items()}
    health = SETTINGS.serve.health_port
    assert ports == {
        names.WEBHOOK_SERVICE: {"https": SETTINGS.webhook.port, "health": health},
        names.EXTENDER_SERVICE: {"https": SETTINGS.extender.port, "health": health},
        "ateplace-reconciler": {"health": health},
    }
    mounted = {
        volume["secret"]["secretName"]
        for each in deployments().values()
        for volume in pod(each).get("volumes", ())
        if "secret" in volume
    }
    assert mounted == {names.WEBHOOK_CERTIFICATE, names.EXTENDER_CERTIFICATE, names.SCHEDULER_CERTIFICATE}
    classes = {name: each["value"] for name, each in of_kind(objects, "PriorityClass").items()}
    assert classes == {names.ATEOM_PRIORITY_CLASS: 1000, names.PLACEHOLDER_PRIORITY_CLASS: -10}
    (namespace,) = of_kind(objects, "Namespace")
    assert namespace == NAMESPACE == names.NAMESPACE == SETTINGS.cluster.namespace


@pytest.mark.parametrize("name", EVERY)
def test_settings_in_a_manifest_are_settings_that_exist(name: str) -> None:
    objects = render(EVERY[name])
    (generated,) = [each for key, each in of_kind(objects, "ConfigMap").items() if key.startswith("ateplace-settings")]
    loaded = load(generated["data"])
    for role in ROLES:
        sources = container(of_kind(objects, "Deployment")[f"ateplace-{role}"])["envFrom"]
        assert sources == [{"configMapRef": {"name": generated["metadata"]["name"]}}]
    if name == "kube-scheduler-config":
        scheduler = yaml.safe_load((DEPLOY / "scheduler" / "default-scheduler.yaml").read_text())
        managed = scheduler["extenders"][0]["managedResources"][0]["name"]
        assert (loaded.settings.webhook.scheduler_name, loaded.settings.webhook.gating_resource) == ("", managed)
    assert loaded.settings.certs.managed is (name != "cert-manager")


def test_nothing_but_ateoms_outside_our_own_namespace_passes_through_the_webhook() -> None:
    (webhook,) = of_kind(render(BASE), "MutatingWebhookConfiguration")[names.WEBHOOK_CONFIGURATION]["webhooks"]
    assert webhook["objectSelector"]["matchExpressions"] == [{"key": names.POOL_LABEL, "operator": "Exists"}]
    (left_out,) = webhook["namespaceSelector"]["matchExpressions"]
    assert left_out["operator"] == "NotIn" and set(left_out["values"]) == {"kube-system", NAMESPACE}
    assert [(rule["operations"], rule["resources"]) for rule in webhook["rules"]] == [(["CREATE"], ["pods"])]
    assert (webhook["failurePolicy"], webhook["sideEffects"]) == ("Fail", "None")
    assert "caBundle" not in webhook["clientConfig"]
    for deployment in deployments().values():
        assert names.POOL_LABEL not in deployment["spec"]["template"]["metadata"]["labels"]
        assert "schedulerName" not in pod(deployment)


def test_policies_name_our_keys_and_our_accounts() -> None:
    policies = of_kind(render(BASE), "ValidatingAdmissionPolicy")
    bound = {each["spec"]["policyName"] for each in of_kind(render(BASE), "ValidatingAdmissionPolicyBinding").values()}
    assert bound == set(policies)
    text = json.dumps(policies["ateplace-nodes"])
    for word in (names.NODE_LABEL, names.CLAIM_PREFIX, "ateplace-extender", "ateplace-reconciler"):
        assert word in text
    assert names.FINALIZER in json.dumps(policies["ateplace-pools"])
    secrets = json.dumps(policies["ateplace-secrets"])
    for word in (
        names.CA_CERTIFICATE,
        names.WEBHOOK_CERTIFICATE,
        names.EXTENDER_CERTIFICATE,
        names.SCHEDULER_CERTIFICATE,
    ):
        assert word in secrets
    own = json.dumps(policies["ateplace-deployments"])
    for word in (names.TRUST_ANNOTATION, names.PLACEHOLDER_LABEL, *deployments()):
        assert f"'{word}'" in own
    placeholders = json.dumps(policies["ateplace-placeholders"])
    for word in (names.PLACEHOLDER_LABEL, names.POOL_UID_LABEL, names.PLACEHOLDER_PRIORITY_CLASS, names.NAMESPACE):
        assert f"'{word}'" in placeholders
    priorities = json.dumps(policies["ateplace-priorities"])
    classes = (names.ATEOM_PRIORITY_CLASS, names.PLACEHOLDER_PRIORITY_CLASS)
    for word in (*classes, names.POOL_LABEL, names.POOL_UID_LABEL, names.PLACEHOLDER_LABEL):
        assert f"'{word}'" in priorities


@pytest.mark.parametrize("path", sorted((DEPLOY / "scheduler").glob("*-scheduler.yaml")), ids=lambda path: path.name)
def test_a_release_waits_for_unbound_pods_as_long_as_the_shipped_scheduler_may_take_to_bind(path: Path) -> None:
    """Waiting for volumes is what takes longest: 600 s, where a configuration says nothing else."""
    for profile in yaml.safe_load(path.read_text())["profiles"]:
        given = {each["name"]: each["args"] for each in profile.get("pluginConfig", ())}
        bind = given.get("VolumeBinding", {}).get("bindTimeoutSeconds", 600)
        assert SETTINGS.reconciler.unbound_wait >= bind, profile["schedulerName"]


def test_no_role_can_bind_create_pods_or_read_any_secret_but_its_own() -> None:
    for overlay in EVERY.values():
        objects = render(overlay)
        for kind in ("Role", "ClusterRole"):
            for role in of_kind(objects, kind).values():
                for rule in role["rules"]:
                    assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
                    assert not {"pods/binding", "bindings", "pods/exec"} & set(rule["resources"])
                    if "secrets" in rule["resources"] and rule["verbs"] != ["create"]:
                        assert rule["resourceNames"] and "list" not in rule["verbs"]
                    if "pods" in rule["resources"]:
                        # Policies take back all pods but placeholders, and ateoms that were never bound
                        # (tests/control_plane/test_account_policies.py).
                        may = {"ateplace-extender", "ateplace-reconciler"}
                        ends = {"delete"} if role["metadata"]["name"] in may else set()
                        assert set(rule["verbs"]) <= {"list", "watch", *ends}
                    if "pods/status" in rule["resources"]:
                        assert (role["metadata"]["name"], rule["verbs"]) == ("ateplace-extender", ["patch"])
        for name in ("ateplace-evictions", "ateplace-nominations", "ateplace-strays"):
            policy = of_kind(objects, "ValidatingAdmissionPolicy")[name]
            bound = of_kind(objects, "ValidatingAdmissionPolicyBinding")[name]["spec"]
            assert (bound["policyName"], bound["validationActions"]) == (name, ["Deny"])
            assert policy["spec"]["failurePolicy"] == "Fail"


def test_with_cert_manager_nobody_of_ours_touches_secrets() -> None:
    objects = render(OVERLAYS["cert-manager"])
    for kind in ("Role", "ClusterRole"):
        for role in of_kind(objects, kind).values():
            assert not any("secrets" in rule["resources"] for rule in role["rules"])
    configuration = of_kind(objects, "MutatingWebhookConfiguration")[names.WEBHOOK_CONFIGURATION]
    source = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert source.removeprefix(f"{NAMESPACE}/") in of_kind(objects, "Certificate")
    secrets = {each["spec"]["secretName"] for each in of_kind(objects, "Certificate").values()}
    assert secrets == {
        names.CA_CERTIFICATE,
        names.WEBHOOK_CERTIFICATE,
        names.EXTENDER_CERTIFICATE,
        names.SCHEDULER_CERTIFICATE,
    }


def test_images_of_others_are_pinned_and_ours_is_named_in_one_place() -> None:
    images = {container(each)["image"] for each in deployments().values()}
    ours = {image for image in images if "ateplace" in image}
    assert len(ours) == 1
    (scheduler,) = images - ours
    tested = "|".join(re.escape(each.kubernetes) for each in versions.SUPPORTED.values())
    assert re.fullmatch(rf"registry\.k8s\.io/kube-scheduler:({tested})@sha256:[0-9a-f]{{64}}", scheduler)
    tag = next(iter(ours)).rpartition(":")[2]
    texts = [path.read_text() for path in DEPLOY.rglob("*.yaml")]
    assert sum(f"newTag: {tag}" in text for text in texts) == 1


def series() -> dict[str, set[str]]:
    """Every series that our processes expose, with its labels."""
    for module in METRICS:
        importlib.import_module(module)
    found: dict[str, set[str]] = {}
    for collector, exposed in metrics.REGISTRY._collector_to_names.items():
        labels = set(getattr(collector, "_labelnames", ()))
        for name in exposed:
            found[name] = labels | ({"le"} if name.endswith("_bucket") else set())
        describe = getattr(collector, "describe", None)
        if describe and not hasattr(collector, "_labelnames"):  # counted when it is scraped
            found |= {family.name: set(family._labelnames) for family in describe()}
    return found


SCRAPED = {"job", "namespace", "pod", "instance", "service", "endpoint", "container"}
USED = re.compile(r"\b(ateplace_\w+)(?:\{([^}]*)\})?")


def complaints(expression: str) -> list[str]:
    """What an expression asks for that nobody exposes."""
    known, wrong = series(), []
    for name, selector in USED.findall(expression):
        if name not in known:
            wrong.append(f"no series {name}")
            continue
        labels = set(re.findall(r"(\w+)\s*[=!]~?=?", selector))
        wrong += [f"{name} has no label {label}" for label in labels - known[name] - SCRAPED]
    if any(expression.count(left) != expression.count(right) for left, right in ("()", "[]", "{}")):
        wrong.append("unbalanced")
    return wrong


def test_every_alert_asks_for_what_there_is_and_says_what_to_do() -> None:
    document = yaml.safe_load((COMPONENTS["prometheus"] / "rules.yaml").read_text())
    (group,) = document["spec"]["groups"]
    headings = {line.removeprefix("### ") for line in (DOCS / "operations.md").read_text().splitlines()}
    names_of_alerts = [rule["alert"] for rule in group["rules"]]
    assert len(set(names_of_alerts)) == len(names_of_alerts) > 10
    for rule in group["rules"]:
        assert complaints(rule["expr"]) == [], rule["alert"]
        assert rule["labels"]["severity"] in {"warning", "critical"} and rule["annotations"]["summary"]
        assert rule["alert"] in headings
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{rule['alert'].lower()}"


def test_every_panel_of_the_dashboard_asks_for_what_there_is() -> None:
    dashboard = json.loads((COMPONENTS["grafana"] / "dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(panels) > 15 and len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels:
        assert panel["description"]
        for target in panel["targets"]:
            assert complaints(target["expr"]) == [], panel["title"]


def test_the_monitor_scrapes_every_service_of_ours() -> None:
    monitor = yaml.safe_load((COMPONENTS["prometheus"] / "monitor.yaml").read_text())
    wanted = monitor["spec"]["selector"]["matchLabels"]
    for service in of_kind(render(SECOND_SCHEDULER), "Service").values():
        assert wanted.items() <= service["metadata"]["labels"].items()
        ports = {port["name"] for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports


STAND_IN_MANIFESTS = {
    "substrate.pool_label": r"ate\.dev/worker-pool\b(?!-)",
    "substrate.atelet_namespace": r"\bate-system\b",
    "substrate.atelet_selector": r"'atelet'",
    "cluster.namespace": r"^(?! *(namespace|name): ateplace-system$).*\bateplace-system\b",
    "certs.scheduler_deployment": r"'ateplace-scheduler'|\bdeployment=\"ateplace-scheduler\""
    r"|\{name: ateplace-scheduler, count:|^kind: Deployment\nmetadata:\n  name: ateplace-scheduler$"
    r"|resources: \[deployments\]\n    resourceNames: \[ateplace-scheduler\]",
    "extender.client_name": r"^ +dnsNames: \[ateplace-scheduler\]$",
}
"""Settings whose value is in manifests too, and how it is written there (a namespace: not as an object's own)."""


def test_operations_says_in_which_manifests_a_setting_stands() -> None:
    page = (DOCS / "operations.md").read_text("utf-8")
    said = {
        setting: set(re.findall(r"`([\w/.-]+\.(?:yaml|json))`", where))
        for setting, where in re.findall(r"^\| `(\w+\.\w+)` \| (.+) \|$", page, re.MULTILINE)
    }
    # The chart is written from the others, and refuses these settings.
    written = DEPLOY / "chart"
    files = [path for path in DEPLOY.rglob("*") if path.suffix in {".yaml", ".json"} and written not in path.parents]
    texts = {str(path.relative_to(DEPLOY)): re.sub(r" *#.*", "", path.read_text("utf-8")) for path in files}
    found = {
        setting: {name for name, text in texts.items() if re.search(pattern, text, re.MULTILINE)}
        for setting, pattern in STAND_IN_MANIFESTS.items()
    }
    assert said == found
