"""docs/security.md says what is so: the figures of its limits are the code's, its policies those that are shipped."""

import json
import re
from pathlib import Path

import pytest

from ateplace import names, printable
from ateplace.cluster import claims, records, resources
from ateplace.extender import fit
from ateplace.kube import client, codec, watch
from ateplace.names import claim_key
from ateplace.process import health, http_connection, logs
from ateplace.process.http_connection import Limits
from ateplace.reconciler import events, pool_pods, pools
from ateplace.reconciler.headroom.controller import WORKERS
from ateplace.settings import Settings
from ateplace.webhook import pools as looks
from tests.deploying import SECOND_SCHEDULER, of_kind, render
from tests.unit import cluster

KIB, MIB = 1024, 1024 * 1024
SETTINGS = Settings()
SERVER = Limits(body_bytes=1)
PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
TABLE = PAGE.partition("\n## Limits\n")[2].partition("\n## ")[0]
ROWS = {row.split(" | ")[0].removeprefix("| "): row for row in TABLE.splitlines() if row.startswith("| ")}
LOOKING = SETTINGS.reconciler.workers // 2
CLAIM = len(claim_key(cluster.pool("0" * 36).uid)) + len(claims.claim_value())
"""Bytes that one claim takes of a Node's annotations."""

FIGURES = {
    "one request": [
        f"{SETTINGS.serve.header_bytes // KIB} KiB and {http_connection.HEADERS} headers",
        f"body {SETTINGS.webhook.body_bytes // MIB} MiB (webhook)",
        f"and {SETTINGS.extender.body_bytes // MIB} MiB (extender)",
        f"{SETTINGS.serve.request_deadline:g} s until it has arrived whole",
    ],
    "all unfinished requests of a port": [f"{SERVER.held_bytes // MIB} MiB"],
    "connections of a TLS port": [f"{SETTINGS.serve.max_connections} (`serve.max_connections`)"],
    "TLS handshakes of one address": [
        f"{SERVER.handshakes_at_once} at once, then {SERVER.handshakes:g} a second",
        f"at most {SETTINGS.serve.request_deadline:g} s",
    ],
    "connections of port 8080": [f"{health.LIMITS.max_connections}, {health.LIMITS.per_address} for an address"],
    "metrics": [{1.0: "once a second at most"}[health.EVERY]],
    "other pages of port 8080": [f"{health.PROBES:g} probes and {health.PAGES:g} pages a second"],
    "reviews of pools that do not exist": [
        f"{looks.RATE:g} reads of the API a second",
        {1.0: "one a second for a name"}[looks.MOMENT],
        f"{looks.WAITING} reviews wait, {looks.WAITING // 2} of one address",
    ],
    "log lines": [f"{logs.BURST} of the same warning, then one a second", f"{printable.LONGEST:,} characters a field"],
    "what is printed": [f"{printable.LONGEST:,} characters a text"],
    "Pod, whatever it requests": [f"{resources.NAMES} resources", f"object over {codec.FAT_BYTES // KIB} KiB"],
    "all shapes of pods together": [f"{resources.CACHE_BYTES // MIB} MiB for each of three caches"],
    "Node": [
        f"{records.LABELS} labels and {records.LABELS} taints",
        f"{records.LABEL_BYTES // KIB} KiB of labels",
        f"{claims.ANNOTATION_BYTES // KIB} KiB of annotations",
    ],
    "WorkerPool": [f"{records.FINALIZERS} finalizers", f"{records.TEXT} characters of an annotation"],
    "one WorkerPool, in requests": [
        f"{pool_pods.SETS} reads of ReplicaSets at most",
        f"every {pools.LOOK_AGAIN:g} s, later ever more rarely up to every {pools.LONGEST:g} s",
    ],
    "one WorkerPool, in placeholders and Events": [
        f"{events.OBJECT_BURST} Events at once, then one in {events.OBJECT_SECONDS:g} s"
    ],
    "one namespace, in requests of the reconciler": [f"({LOOKING // 4} of {LOOKING})"],
    "namespace with many WorkerPools": [
        f"{CLAIM} bytes of annotations for each",
        f"some {(claims.ANNOTATION_BYTES - fit.SPARE_BYTES) // CLAIM // 100 * 100:,} claims",
    ],
    "object that cannot be read, deep or odd": [{10.0: "one log line in ten seconds"}[watch.WARN_SECONDS]],
    "list page": [
        f"{client.PAGE_BYTES // MIB} MiB of answer",
        f"which may have {codec.OBJECT_BYTES // MIB} MiB",
    ],
}
NO_FIGURE = {
    "what",
    "Pod with thousands of containers",
    "mirror pod",
    "pod that names a pool that is not there",
    "object nested deeper than 1,000 levels",
    "any of the above, at random",
}
"""Rows whose figure is no constant of ours: their tests have it."""


@pytest.mark.parametrize("row", FIGURES)
def test_a_limit_is_as_the_page_says(row: str) -> None:
    for words in FIGURES[row]:
        assert words in ROWS[row]


def test_the_page_has_every_policy_that_is_shipped_and_no_other() -> None:
    """And says whom each binds: the first ones our accounts, the last three everyone."""
    policies = of_kind(render(SECOND_SCHEDULER), "ValidatingAdmissionPolicy")
    said = re.findall(r"^\| `(ateplace-[a-z-]+)` \|", PAGE, re.MULTILINE)
    assert sorted(said) == sorted(policies)
    ours = [
        bool(re.search(r"userInfo\.username", json.dumps(policies[name]["spec"]["matchConditions"]))) for name in said
    ]
    assert ours == [True] * 9 + [False] * 3


def test_every_row_is_looked_at() -> None:
    assert WORKERS == LOOKING, "one figure is said for pools and for headroom"
    assert set(ROWS) == {*FIGURES, *NO_FIGURE}


def test_claims_of_so_many_pools_fit_on_a_node_and_no_more() -> None:
    """Each of them takes what it is counted for, and the rest is left to others."""
    assert claims.CLAIM_BYTES >= CLAIM
    most = (claims.ANNOTATION_BYTES - fit.SPARE_BYTES) // CLAIM
    assert names.claimed_pool(claim_key("0" * 36)) == "0" * 36
    for count, reason in ((most, ""), (most + 1, fit.ANNOTATIONS)):
        known = cluster.ledger(cluster.pool(), cluster.node("n1", annotation_bytes=count * CLAIM))
        assert fit.unfit(cluster.case(known), known.nodes["n1"]) == reason, count
