"""The webhook: configured, trusted, and answering.

Whether it answers is found out by asking: the dry run of a pod whose pool does not exist must be refused by our
webhook, with its own sentence. Nothing is created, whatever the answer.
"""

import base64
import binascii

from cryptography import x509
from msgspec import Struct

from ateplace import names
from ateplace.certs.catalogue import service_names
from ateplace.certs.pem import dns_names, issuer_of, load_certificates
from ateplace.certs.store import Secret
from ateplace.cli.doctor.look import Look
from ateplace.cli.findings import APPLY, Finding, fail, ok, warn
from ateplace.errors import CertificateError, Forbidden, KubeError, Refused, Unavailable
from ateplace.kube import paths
from ateplace.kube.objects import Metadata
from ateplace.settings import PAUSE

NOBODY = "ateplace-doctor-asks"
"""A pool that does not exist."""
WHERE = "default"


class ClientConfig(Struct, rename="camel"):
    ca_bundle: str | None = None


class Hook(Struct, rename="camel"):
    name: str = ""
    failure_policy: str = "Fail"
    client_config: ClientConfig | None = None


class Configuration(Struct, rename="camel"):
    metadata: Metadata
    webhooks: list[Hook] | None = None


async def check(look: Look) -> list[Finding]:
    configuration = await look.find(paths.MUTATING_WEBHOOKS.named(names.WEBHOOK_CONFIGURATION), Configuration)
    if configuration is None or not configuration.webhooks:
        says = f"there is no MutatingWebhookConfiguration {names.WEBHOOK_CONFIGURATION}: ateoms are not prepared"
        return [fail(says, APPLY)]
    found = []
    for hook in configuration.webhooks:
        found += await _trust(look, hook)
        if hook.failure_policy != "Fail":
            says = f"failurePolicy is {hook.failure_policy}: ateoms made while the webhook is away are not prepared"
            found.append(warn(says, "fine if you chose it; the default overlay sets Fail"))
    return [*found, await _probe(look, configuration.webhooks[0].name)]


async def _trust(look: Look, hook: Hook) -> list[Finding]:
    try:
        pem = base64.b64decode((hook.client_config.ca_bundle if hook.client_config else None) or "")
        bundle = load_certificates(pem)
    except (CertificateError, binascii.Error):
        says = f"{hook.name} has no usable caBundle: the API server cannot trust the webhook"
        return [fail(says, repair(look))]
    path = paths.SECRETS.named(names.WEBHOOK_CERTIFICATE, look.namespace)
    try:
        secret = await look.find(path, Secret)
    except Forbidden:
        return [warn("the caBundle was not compared: Secrets may not be read", "let doctor `get secrets` there")]
    leaves = secret.certificates("tls.crt") if secret else []
    return [judge(bundle, leaves[0] if leaves else None, service_names(names.WEBHOOK_SERVICE, look.namespace)[0], look)]


def judge(bundle: list[x509.Certificate], leaf: x509.Certificate | None, name: str, look: Look) -> Finding:
    """Would the API server, trusting `bundle`, accept `leaf` for `name`?"""
    if leaf is None:
        return fail(f"the Secret {names.WEBHOOK_CERTIFICATE} holds no certificate", repair(look))
    if issuer_of(leaf, bundle) is None:
        return fail("the caBundle is not the authority that signed the webhook's certificate", repair(look))
    if name not in dns_names(leaf):
        return fail(f"the webhook's certificate is not for {name}", repair(look))
    return ok("the caBundle is the authority that signed the webhook's certificate")


def repair(look: Look) -> str:
    if look.settings.certs.managed:
        return "ateplace certs bootstrap (the reconciler does it by itself: see its logs for why it has not)"
    return "cert-manager does this: kubectl describe certificate -n " + look.namespace


async def _probe(look: Look, name: str) -> Finding:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NOBODY, "labels": {look.settings.substrate.pool_label: NOBODY}},
        "spec": {"containers": [{"name": "none", "image": PAUSE}]},
    }
    logs = f"kubectl logs -n {look.namespace} deployment/{names.WEBHOOK_SERVICE}"
    try:
        await look.kube.create(paths.PODS.within(WHERE), pod, object, query={"dryRun": "All"})
    except Unavailable as error:
        return fail(
            f"the API server cannot call the webhook: {error}",
            f"{logs}; kubectl get endpointslices -n {look.namespace}",
        )
    except Refused as error:
        return answered(str(error), name, logs)
    except KubeError as error:
        return fail(f"the webhook could not be tried: {error}", logs)
    return fail(
        "a pod of a pool that does not exist was admitted: the webhook is not called",
        "compare its rules and selectors: kubectl diff -f deploy/base/webhook-configuration.yaml",
    )


def answered(message: str, name: str, logs: str) -> Finding:
    """What a refusal of the dry run says about the webhook."""
    if f'admission webhook "{name}" denied' in message:
        return ok("the webhook answers")
    if "failed calling webhook" in message:
        return fail(f"the API server cannot call the webhook: {message}", logs)
    return warn(f"the webhook could not be tried: {message}", "let doctor create pods (a dry run) in `default`")
