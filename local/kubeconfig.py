"""Opens a kubeconfig that the local plane wrote."""

import base64
import ssl
import tempfile
from pathlib import Path

import yaml

from ateplace.local.api import Api


def connect(path: Path) -> Api:
    """An `Api` with the credentials of a kubeconfig of ours."""
    document = yaml.safe_load(path.read_text("utf-8"))
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    if "token" in user:
        return Api(cluster["server"], context, user["token"])
    with tempfile.TemporaryDirectory() as scratch:
        pair = Path(scratch) / "pair.pem"
        pair.touch(mode=0o600)
        encoded = (user["client-certificate-data"], user["client-key-data"])
        pair.write_bytes(b"".join(base64.b64decode(part) for part in encoded))
        context.load_cert_chain(pair)
    return Api(cluster["server"], context)
