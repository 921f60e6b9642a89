"""Our MutatingWebhookConfiguration's caBundle: which certificates the API server takes for our webhook's."""

import base64
from collections.abc import Callable

from msgspec import Struct, field

from ateplace.certs import metrics
from ateplace.errors import NotFound
from ateplace.kube import Kube, paths
from ateplace.kube.objects import Metadata
from ateplace.kube.watch import Watch


class ClientConfig(Struct):
    ca_bundle: str | None = field(name="caBundle", default=None)


class Webhook(Struct):
    client_config: ClientConfig = field(name="clientConfig", default_factory=ClientConfig)


class Configuration(Struct):
    """A MutatingWebhookConfiguration as far as we read it."""

    metadata: Metadata
    webhooks: list[Webhook] | None = None

    def bundles(self) -> tuple[str, ...]:
        return tuple(webhook.client_config.ca_bundle or "" for webhook in self.webhooks or ())


def repair(configuration: Configuration, bundle: bytes) -> list[dict[str, str]]:
    """The JSON patch after which every webhook in it trusts exactly `bundle`; empty when that is so already.

    It carries the version it was made for: positions in a list mean nothing in another.
    """
    wanted = base64.b64encode(bundle).decode()
    changes = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": wanted}
        for index, found in enumerate(configuration.bundles())
        if found != wanted
    ]
    if not changes:
        return []
    version = configuration.metadata.resource_version
    return [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}, *changes]


class Injector:
    """The configuration of one name."""

    def __init__(self, kube: Kube, name: str) -> None:
        self._kube = kube
        self._name = name

    async def read(self) -> Configuration | None:
        """The configuration as it is now; None when there is none."""
        try:
            return await self._kube.get(paths.MUTATING_WEBHOOKS.named(self._name), Configuration)
        except NotFound:
            return None

    async def write(self, over: Configuration, bundle: bytes) -> None:
        """Put it right; Conflict when it is another version by now."""
        patch = repair(over, bundle)
        if patch:
            await self._kube.patch(paths.MUTATING_WEBHOOKS.named(self._name), patch, Configuration, kind="json")
            metrics.INJECTED.inc()

    def watch(self, on_change: Callable[[], None]) -> Watch[Configuration, tuple[str, ...]]:
        """A watch that calls whenever a caBundle changes, or the configuration is created or deleted."""

        def changed(_key: str, _old: tuple[str, ...] | None, _new: tuple[str, ...] | None) -> None:
            on_change()

        return Watch(
            self._kube,
            paths.MUTATING_WEBHOOKS.everywhere,
            Configuration,
            Configuration.bundles,
            changed,
            field_selector=f"metadata.name={self._name}",
            name="webhook-configuration",
        )
