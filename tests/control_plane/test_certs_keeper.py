"""The leader's part and `ateplace certs`, on a real API server."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ateplace import names
from ateplace.certs.authority import make_authority
from ateplace.certs.controller import Keeper
from ateplace.certs.pem import Pair, fingerprint, issuer_of, load_certificates, load_pair
from ateplace.certs.rotation import Phase, phase
from ateplace.cli import certs
from ateplace.errors import CertificateError, Forbidden
from ateplace.kube import Kube
from ateplace.local import ControlPlane
from ateplace.process import metrics
from ateplace.settings import Certs, Cluster, Settings

LEAVES = (names.WEBHOOK_CERTIFICATE, names.EXTENDER_CERTIFICATE, names.SCHEDULER_CERTIFICATE)
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


def settings_for(plane: ControlPlane, namespace: str, kubeconfig: Path | None = None, **certs: Any) -> Settings:
    cluster = Cluster(kubeconfig=str(kubeconfig or plane.kubeconfig), namespace=namespace)
    return Settings(cluster=cluster, certs=Certs(**{"settle": 0.0, **certs}))


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Kube]:
    kube = await Kube.connect(settings.cluster)
    try:
        yield kube
    finally:
        await kube.close()


def with_keeper(settings: Settings, main: Callable[[Keeper], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with connected(settings) as kube:
            await main(Keeper(kube, settings))

    asyncio.run(run())


async def step(keeper: Keeper) -> None:
    await keeper.bring_into_step()


async def until_steady(keeper: Keeper) -> None:
    async with asyncio.timeout(60):
        while phase((await keeper.bring_into_step()).world) is not Phase.STEADY:
            pass


def data(plane: ControlPlane, namespace: str, secret: str) -> dict[str, bytes]:
    found = plane.api.get(f"/api/v1/namespaces/{namespace}/secrets/{secret}")
    return {key: base64.b64decode(value) for key, value in found["data"].items()}


def versions(plane: ControlPlane, namespace: str) -> dict[str, str]:
    found = plane.api.list(f"/api/v1/namespaces/{namespace}/secrets")
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found}


def authorities(plane: ControlPlane, namespace: str, secret: str) -> set[str]:
    return {fingerprint(each) for each in load_certificates(data(plane, namespace, secret)["ca.crt"])}


def issuers(plane: ControlPlane, namespace: str) -> set[str]:
    """Who signed our leaves, each proven with the ca.crt beside it."""
    found = set()
    for secret in LEAVES:
        content = data(plane, namespace, secret)
        leaf = load_pair(Pair(content["tls.crt"], content["tls.key"]))
        issuer = issuer_of(leaf, load_certificates(content["ca.crt"]))
        assert issuer is not None
        found.add(fingerprint(issuer))
    return found


@pytest.fixture
def configuration(plane: ControlPlane, namespace: str) -> Iterator[Callable[[], list[bytes]]]:
    """Our MutatingWebhookConfiguration (it matches nothing); calling the fixture's value reads its caBundles."""
    hook = {
        "clientConfig": {"service": {"name": names.WEBHOOK_SERVICE, "namespace": namespace, "port": 443}},
        "rules": [{"apiGroups": ["none.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    webhooks = [{**hook, "name": f"{word}.ateplace.ate.dev"} for word in ("pods", "others")]
    manifest = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": names.WEBHOOK_CONFIGURATION},
        "webhooks": webhooks,
    }
    plane.api.post(CONFIGURATIONS, manifest)

    def bundles() -> list[bytes]:
        found = plane.api.get(f"{CONFIGURATIONS}/{names.WEBHOOK_CONFIGURATION}")
        return [base64.b64decode(each["clientConfig"].get("caBundle", "")) for each in found["webhooks"]]

    yield bundles
    plane.api.delete(f"{CONFIGURATIONS}/{names.WEBHOOK_CONFIGURATION}")


def cli(plane: ControlPlane, namespace: str, *arguments: str) -> str:
    flags = [f"--set=cluster.kubeconfig={plane.kubeconfig}", f"--set=cluster.namespace={namespace}"]
    result = CliRunner().invoke(certs.app, [*arguments, *flags], env={"COLUMNS": "200"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_bootstrap_makes_everything_and_changes_nothing_the_second_time(
    plane: ControlPlane, namespace: str, configuration: Callable[[], list[bytes]]
) -> None:
    report = json.loads(cli(plane, namespace, "bootstrap", "-o", "json"))
    assert (report["phase"], report["steps"], report["webhookConfiguration"]) == ("Steady", [], "in step")
    assert {row["secret"]: row["state"] for row in report["certificates"]} == dict.fromkeys(
        (names.CA_CERTIFICATE, *LEAVES), "good"
    )
    assert report["certificates"][1]["names"] == [
        f"ateplace-webhook.{namespace}.svc",
        f"ateplace-webhook.{namespace}.svc.cluster.local",
    ]
    assert len(issuers(plane, namespace)) == 1
    assert configuration() == [data(plane, namespace, names.CA_CERTIFICATE)["tls.crt"]] * 2
    for secret in (names.CA_CERTIFICATE, *LEAVES):
        assert plane.api.get(f"/api/v1/namespaces/{namespace}/secrets/{secret}")["type"] == "kubernetes.io/tls"
    before = versions(plane, namespace)
    shown = cli(plane, namespace, "bootstrap")
    assert versions(plane, namespace) == before
    assert "Phase Steady; caBundle: in step" in shown
    assert "PRIVATE" not in shown


def test_show_says_what_is_missing_and_writes_nothing(plane: ControlPlane, namespace: str) -> None:
    report = json.loads(cli(plane, namespace, "show", "-o", "json"))
    assert report["phase"] == "Missing"
    assert report["steps"] == ["MakeAuthority: there is no authority"]
    assert versions(plane, namespace) == {}


def test_a_missing_namespace_is_said_in_a_sentence(plane: ControlPlane) -> None:
    with pytest.raises(Exception, match='namespaces "nowhere" not found'):
        cli(plane, "nowhere", "bootstrap")


def test_many_leaders_at_once_make_one_authority(plane: ControlPlane, namespace: str) -> None:
    settings = settings_for(plane, namespace)

    async def main() -> None:
        async with connected(settings) as kube:
            keepers = [Keeper(kube, settings) for _ in range(6)]
            await asyncio.gather(*(keeper.bring_into_step() for keeper in keepers))

    asyncio.run(main())
    current = fingerprint(load_certificates(data(plane, namespace, names.CA_CERTIFICATE)["tls.crt"])[0])
    assert issuers(plane, namespace) == {current}
    assert all(authorities(plane, namespace, secret) == {current} for secret in LEAVES)


def test_a_stale_leader_cannot_undo_what_the_next_one_did(plane: ControlPlane, namespace: str) -> None:
    settings = settings_for(plane, namespace)

    async def main() -> None:
        async with connected(settings) as kube:
            stale, fresh = Keeper(kube, settings), Keeper(kube, settings)
            await fresh.bring_into_step()
            plane.api.delete(f"/api/v1/namespaces/{namespace}/secrets/{names.WEBHOOK_CERTIFICATE}")
            seen, steps = await stale.look()
            await fresh.bring_into_step()
            before = versions(plane, namespace)
            for step in steps:
                with pytest.raises(Exception, match="already exists"):
                    await stale._carry_out(step, seen)
            assert versions(plane, namespace) == before

    asyncio.run(main())


@pytest.mark.parametrize("damage", ["deleted", "key of another", "not ours"])
def test_a_damaged_leaf_is_made_anew_and_the_others_stay(plane: ControlPlane, namespace: str, damage: str) -> None:
    with_keeper(settings_for(plane, namespace), step)
    before = versions(plane, namespace)
    path = f"/api/v1/namespaces/{namespace}/secrets/{names.EXTENDER_CERTIFICATE}"
    other = plane.api.get(f"/api/v1/namespaces/{namespace}/secrets/{names.WEBHOOK_CERTIFICATE}")["data"]
    match damage:
        case "deleted":
            plane.api.delete(path)
        case "key of another":
            plane.api.patch(path, {"data": {"tls.key": other["tls.key"]}})
        case _:
            plane.api.patch(path, {"data": {key: other[key] for key in ("tls.crt", "tls.key")}})
    with_keeper(settings_for(plane, namespace), step)
    after = versions(plane, namespace)
    assert {name for name in before if before[name] != after[name]} == {names.EXTENDER_CERTIFICATE}
    assert len(issuers(plane, namespace)) == 1


def test_leaves_are_renewed_in_time_and_the_authority_stays(plane: ControlPlane, namespace: str) -> None:
    settings = settings_for(plane, namespace)
    with_keeper(settings, step)
    before, issuer = versions(plane, namespace), issuers(plane, namespace)

    async def main() -> None:
        async with connected(settings) as kube:
            for days, changed in ((18, set()), (21, set(LEAVES))):
                later = datetime.now(UTC) + timedelta(days=days)
                await Keeper(kube, settings, now=lambda moment=later: moment).bring_into_step()  # type: ignore[misc]
                after = versions(plane, namespace)
                assert {name for name in before if before[name] != after[name]} == changed

    asyncio.run(main())
    assert issuers(plane, namespace) == issuer


def test_a_lost_authority_is_replaced_and_the_lost_one_stays_trusted_until_nobody_needs_it(
    plane: ControlPlane, namespace: str
) -> None:
    with_keeper(settings_for(plane, namespace), step)
    (lost,) = issuers(plane, namespace)
    plane.api.delete(f"/api/v1/namespaces/{namespace}/secrets/{names.CA_CERTIFICATE}")

    with_keeper(settings_for(plane, namespace, settle=3600.0), step)
    assert issuers(plane, namespace) == {lost}
    assert all(len(authorities(plane, namespace, secret)) == 2 for secret in LEAVES)

    cli(plane, namespace, "scheduler-restarted")
    with_keeper(settings_for(plane, namespace), until_steady)
    (new,) = issuers(plane, namespace)
    assert new != lost
    assert all(authorities(plane, namespace, secret) == {new} for secret in LEAVES)


def test_a_scheduler_whose_pods_wait_for_their_secret_is_not_restarted_until_the_authority_changes(
    plane: ControlPlane, namespace: str
) -> None:
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"no": "node"}},
    }
    spec = {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    plane.api.post(deployments, {"metadata": {"name": "ateplace-scheduler"}, "spec": spec})

    def marks() -> tuple[str, str]:
        """On the template, and on the Secret."""
        secret = plane.api.get(f"/api/v1/namespaces/{namespace}/secrets/{names.SCHEDULER_CERTIFICATE}")
        deployment = plane.api.get(f"{deployments}/ateplace-scheduler")
        found = (deployment["spec"]["template"]["metadata"], secret["metadata"])
        one, two = (each.get("annotations", {}).get(names.TRUST_ANNOTATION, "") for each in found)
        return one, two

    with_keeper(settings_for(plane, namespace), until_steady)
    on_template, on_secret = marks()
    assert (on_template, bool(on_secret)) == ("", True)
    plane.api.delete(f"/api/v1/namespaces/{namespace}/secrets/{names.CA_CERTIFICATE}")

    async def until_restarted(keeper: Keeper) -> None:
        async with asyncio.timeout(60):
            while not marks()[0]:
                await keeper.bring_into_step()

    with_keeper(settings_for(plane, namespace), until_restarted)  # there is another authority, beside the lost one
    assert marks()[0] != on_secret


def test_drift_of_the_bundle_is_repaired_within_seconds(
    plane: ControlPlane, namespace: str, configuration: Callable[[], list[bytes]]
) -> None:
    settings = settings_for(plane, namespace)
    stranger = base64.b64encode(make_authority(datetime.now(UTC), 1).certificate).decode()

    async def main() -> None:
        async with connected(settings) as kube:
            running = asyncio.create_task(Keeper(kube, settings).run())
            try:
                good = await in_step(plane, namespace, configuration)
                for value in (stranger, None, stranger):
                    patch = [
                        {"op": "remove", "path": f"/webhooks/{index}/clientConfig/caBundle"}
                        if value is None
                        else {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": value}
                        for index in range(2)
                    ]
                    path = f"{CONFIGURATIONS}/{names.WEBHOOK_CONFIGURATION}"
                    await asyncio.to_thread(plane.api.patch, path, patch, kind="json")
                    began = time.monotonic()
                    assert await in_step(plane, namespace, configuration) == good
                    seconds = time.monotonic() - began
                    print(f"drift repaired after {seconds:.2f} s")
                    assert seconds < 20
            finally:
                running.cancel()
                await asyncio.wait([running])
        assert (metrics.REGISTRY.get_sample_value("ateplace_certificate_injections_total") or 0) >= 4

    asyncio.run(main())


async def in_step(plane: ControlPlane, namespace: str, configuration: Callable[[], list[bytes]]) -> bytes:
    async with asyncio.timeout(60):
        while True:
            bundles = await asyncio.to_thread(configuration)
            if plane.api.exists(f"/api/v1/namespaces/{namespace}/secrets/{names.CA_CERTIFICATE}"):
                good = data(plane, namespace, names.CA_CERTIFICATE)["tls.crt"]
                if set(bundles) == {good}:
                    return good
            await asyncio.sleep(0.05)


RULES = [
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": [names.CA_CERTIFICATE, *LEAVES],
        "verbs": ["get", "patch"],
    },
    {
        "apiGroups": ["apps"],
        "resources": ["deployments"],
        "resourceNames": [names.SCHEDULER],
        "verbs": ["get", "patch"],
    },
]
CLUSTER_RULES = [
    {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": ["mutatingwebhookconfigurations"],
        "resourceNames": [names.WEBHOOK_CONFIGURATION],
        "verbs": ["get", "patch", "list", "watch"],
    }
]


def test_these_rights_are_enough_and_nothing_less_than_the_leader_reads_the_authority(
    plane: ControlPlane, namespace: str, configuration: Callable[[], list[bytes]]
) -> None:
    group = "rbac.authorization.k8s.io"
    subjects = [{"kind": "ServiceAccount", "name": "leader", "namespace": namespace}]
    named = {"metadata": {"name": f"leader-{namespace}"}}
    plane.api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "leader"}})
    plane.api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "other"}})
    plane.api.post(f"/apis/{group}/v1/namespaces/{namespace}/roles", {**named, "rules": RULES})
    plane.api.post(f"/apis/{group}/v1/clusterroles", {**named, "rules": CLUSTER_RULES})
    for path, kind in ((f"namespaces/{namespace}/rolebindings", "Role"), ("clusterrolebindings", "ClusterRole")):
        reference = {"apiGroup": group, "kind": kind, "name": f"leader-{namespace}"}
        plane.api.post(f"/apis/{group}/v1/{path}", {**named, "roleRef": reference, "subjects": subjects})
    try:
        leader = settings_for(plane, namespace, plane.kubeconfig_for(service_account=f"{namespace}/leader"))
        other = settings_for(plane, namespace, plane.kubeconfig_for(service_account=f"{namespace}/other"))

        async def main() -> None:
            async with connected(leader) as kube:
                running = asyncio.create_task(Keeper(kube, leader).run())
                await in_step(plane, namespace, configuration)
                running.cancel()
                await asyncio.wait([running])
            async with connected(other) as kube:
                with pytest.raises(Forbidden):
                    await Keeper(kube, other).bring_into_step()

        asyncio.run(main())
        assert len(issuers(plane, namespace)) == 1
    finally:
        for kind in ("clusterrolebindings", "clusterroles"):
            plane.api.delete(f"/apis/{group}/v1/{kind}/leader-{namespace}")


def test_a_change_under_way_is_not_begun_again(plane: ControlPlane, namespace: str) -> None:
    async def main(keeper: Keeper) -> None:
        await keeper.bring_into_step()
        await keeper.change_authority("for a test")
        with pytest.raises(CertificateError, match="the phase is Publishing"):
            await keeper.change_authority("again")

    with_keeper(settings_for(plane, namespace), main)
