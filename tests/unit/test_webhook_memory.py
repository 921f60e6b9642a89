"""Whoever reaches the webhook's port cannot make it outgrow the memory that its manifest gives it."""

import contextlib
import re
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ateplace import settings
from tests.unit.sockets import answer, request

ROOT = Path(__file__).parents[2]
CONNECTIONS = settings.Serve().max_connections - 8

SERVER = """
import asyncio, uvloop
from ateplace import settings
from ateplace.cli import main as cli
from ateplace.process.http_server import Server, limits
from tests.unit.sockets import Tls
from ateplace.webhook import app, mutate

class NoPools:
    def known(self, namespace, name): return None
    async def find(self, namespace, name, client=""): return None

async def main():
    options = settings.Settings()
    served = app.application(mutate.rules(options.webhook, options.substrate), NoPools(), ())
    bounds = limits(options.serve, options.webhook.body_bytes)
    server = Server(served, host="127.0.0.1", port=0, tls=Tls().server, limits=bounds)
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()

uvloop.run(main())
"""

BODY = b"POST /mutate HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 4000000\r\n\r\n"
ATTACKS = {
    "many headers": [b"POST /mutate HTTP/1.1\r\n" + b"a:b\r\n" * 12_000],
    "long headers": [b"POST /mutate HTTP/1.1\r\na: " + b"x" * 65_000],
    "bodies": [BODY + b"x" * 130_000, b"x" * 130_000, b"x" * 250_000],
}


def memory_limit() -> int:
    documents = yaml.safe_load_all((ROOT / "deploy/base/webhook.yaml").read_text("utf-8"))
    deployment = next(each for each in documents if each["kind"] == "Deployment")
    limit: str = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    return int(limit.removesuffix("Mi"))


def most_memory(process: int) -> int:
    """MiB, at the peak."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text("utf-8"))
    assert found
    return int(found[1]) // 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("attack", ATTACKS)
def test_as_many_clients_as_there_may_be_cannot_have_more_memory_than_there_is(attack: str) -> None:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with contextlib.ExitStack() as stack:
        server = subprocess.Popen([sys.executable, "-c", SERVER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        stack.enter_context(server)
        stack.callback(server.kill)
        assert server.stdout
        port = int(server.stdout.readline())
        clients = []
        for _ in range(CONNECTIONS):
            raw = socket.create_connection(("127.0.0.1", port), timeout=60)
            clients.append(stack.enter_context(trusting.wrap_socket(raw)))
        for part in ATTACKS[attack]:
            for client in clients:
                with contextlib.suppress(OSError):  # refused, for the right reason
                    client.sendall(part)
        with trusting.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=60)) as last:
            last.sendall(request("/mutate"))
            assert answer(last).status == 400  # so all that was sent before has been read
        # A fifth is left to what the real process has besides: its watches, and the allocator's holes.
        assert most_memory(server.pid) < 0.8 * memory_limit()
