"""The placeholders that the reconciler makes, for tests of what it may write."""

import json

from ateplace.cluster.records import PoolRecord
from ateplace.local.api import Object
from ateplace.reconciler.headroom import placeholder
from ateplace.settings import Settings
from tests.features import has


def placeholders_of(pool: str, namespace: str, uid: str = "u", *, prepull: bool | None = None) -> Object:
    """The Deployment that the reconciler makes, with everything that it ever copies and the API server takes.

    `prepull`: with or without the volume, whatever the API server takes."""
    record = PoolRecord(uid, namespace, pool, 1, deleting=False, finalizers=(), headroom="1", warm=True)
    shape = placeholder.AteomShape(
        requests=(("cpu", 100), ("memory", 1 << 26), ("example.com/kvm", 1)),
        image="registry.example/ateom:1",
        node_selector={"ate.dev/sandboxClass": "microvm"},
        tolerations=[{"operator": "Exists"}],
        affinity={"podAntiAffinity": {}},
        runtime_class="kata",
    )
    prepull = has("image volumes") if prepull is None else prepull
    made: Object = json.loads(json.dumps(placeholder.deployment(record, shape, 0, Settings(), prepull=prepull)))
    return made
