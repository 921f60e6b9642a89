"""What doctor says of versions, images, rights and settings, as tables."""

from datetime import UTC, datetime

import pytest

from ateplace.certs import authority
from ateplace.certs.pem import load_certificates
from ateplace.cli.doctor import configured, rbac, versions, webhook
from ateplace.cli.findings import APPLY, some
from ateplace.settings import Settings, load
from tests.unit.doctoring import IMAGES, LINGER, LOOK, SETTINGS, begins, given, granted, images, installed


@pytest.mark.parametrize(
    ("version", "level"),
    [("v1.36.3", "ok"), ("v1.36.0-gke.100", "ok"), ("v1.32.1", "warn"), ("v1.29.9", "fail"), ("master", "warn")],
)
def test_api_server_versions(version: str, level: str) -> None:
    assert versions.judge_server(version).level == level


@pytest.mark.parametrize(
    ("found", "missing"),
    [
        ((1, 31), ["streaming lists", "image volumes"]),
        ((1, 32), ["image volumes"]),
        ((1, 33), ["streaming lists", "image volumes"]),
        ((1, 34), ["image volumes"]),
        ((1, 35), []),
        ((1, 37), []),
        ((2, 0), []),
    ],
)
def test_what_a_version_of_kubernetes_lacks_is_said(found: versions.Minor, missing: list[str]) -> None:
    """The defaults of the feature gates WatchList and ImageVolume; 1.33 had the former switched off again."""
    assert [one.partition(":")[0] for one in versions.lacks(found)] == [f"no {name}" for name in missing]


def test_an_old_version_that_was_tested_is_in_order_and_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "TESTED", ((1, 33),))
    told = versions.judge_server("v1.33.13")
    assert (told.level, told.says) == (
        "ok",
        "Kubernetes v1.33.13; no streaming lists: watches begin with a paged list, which takes the API server more "
        "memory; no image volumes: placeholders do not pull the ateom image before a burst",
    )


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    tags, expected = IMAGES[name]
    begins(versions.judge_images(images(**tags), "v1.36.3", LOOK), *expected)


@pytest.mark.parametrize(
    ("server", "tag"),
    [("v1.35.4", "v1.35.4"), ("v1.35.4-gke.100", "v1.35.4"), ("v1.35.4+k3s1", "v1.35.4"), ("v1.35", "v1.35.x")],
)
def test_the_image_for_a_scheduler_that_is_too_new_exists(server: str, tag: str) -> None:
    """Its tags have three numbers, and a digest that stays would win over the tag."""
    fix = versions.judge_images(images(scheduler="r/s:v1.36.3@sha256:00"), server, LOOK)[0].fix
    assert fix == f"in deploy/scheduler/kustomization.yaml set newTag to {tag} and remove the digest, then {APPLY}"
    assert "kubectl apply" in fix


def test_the_ca_bundle_must_be_the_authority_of_the_serving_certificate() -> None:
    now = datetime.now(UTC)
    ca, other = authority.make_authority(now, days=1), authority.make_authority(now, days=1)
    name = "ateplace-webhook.ateplace-system.svc"
    leaf = load_certificates(authority.issue(ca, authority.Wanted(authority.Use.SERVER, (name,)), now, 1).certificate)[
        0
    ]
    bundle = load_certificates(ca.certificate)
    assert webhook.judge(bundle, leaf, name, LOOK).level == "ok"
    assert "not the authority" in webhook.judge(load_certificates(other.certificate), leaf, name, LOOK).says
    assert "is not for other.svc" in webhook.judge(bundle, leaf, "other.svc", LOOK).says
    assert "holds no certificate" in webhook.judge(bundle, None, name, LOOK).says


@pytest.mark.parametrize(
    ("message", "level"),
    [
        ('403 admission webhook "pods.x" denied the request: there is no WorkerPool', "ok"),
        ('500 failed calling webhook "pods.x": connection refused', "fail"),
        ('403 pods is forbidden: User "eve" cannot create resource "pods"', "warn"),
    ],
)
def test_what_the_answer_to_the_dry_run_says_about_the_webhook(message: str, level: str) -> None:
    assert webhook.answered(message, "pods.x", "kubectl logs").level == level


@pytest.mark.parametrize("account", rbac.NEEDED)
def test_doctor_asks_for_exactly_the_rights_that_are_shipped(account: str) -> None:
    asked = {
        (right.group, right.resource, verb, right.own, right.name)
        for right in rbac.needed(Settings())[account]
        for verb in right.verbs
    }
    assert asked == granted(account)


def test_rights_are_asked_for_by_the_names_that_are_set() -> None:
    settings = load({}, ["certs.scheduler_deployment=mine"]).settings
    asked = {(right.resource, right.name) for right in rbac.needed(settings)["ateplace-reconciler"]}
    assert ("deployments", "mine") in asked
    assert ("daemonsets", "atelet") not in asked


def test_some_names_of_many() -> None:
    assert some(["b", "a"]) == "a, b"
    assert some("edcba") == "a, b, c and 2 more"


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_an_installation(name: str) -> None:
    found, told, expected = SETTINGS[name]
    begins(configured.judge(found, told), *expected)


def test_doctor_judges_by_the_installations_settings_except_where_it_is_given_others() -> None:
    found = installed(
        reconciler={LINGER: "60", "ATEPLACE_WEBHOOK_PORT": "9443", "ATEPLACE_CLUSTER_REQUEST_TIMEOUT": "3"}
    )
    wanted = given("reconciler.linger=60", "webhook.port=8443").settings
    assert configured.effective(found, given("webhook.port=8443")) == wanted
    broken = installed(reconciler={LINGER: "never"})
    assert configured.effective(broken, given("webhook.port=9443")) == given("webhook.port=9443").settings
