"""Our webhook as `ateplace webhook` serves it, with one pool that is known beforehand: no API server is needed."""

import argparse
import asyncio
import ssl
from pathlib import Path

import uvloop

from ateplace.process import logs
from ateplace.process.http_server import Server, limits
from ateplace.settings import Settings
from ateplace.webhook.app import application
from ateplace.webhook.mutate import rules


class OnePool:
    def __init__(self, pool: str, uid: str) -> None:
        self._pools = {pool: uid}

    def known(self, namespace: str, name: str) -> str | None:
        return self._pools.get(f"{namespace}/{name}")

    async def find(self, namespace: str, name: str, client: str = "") -> str | None:
        return None


async def serve(options: argparse.Namespace) -> None:
    settings = Settings()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.load_cert_chain(options.certs / "tls.crt", options.certs / "tls.key")
    app = application(rules(settings.webhook, settings.substrate), OnePool(options.pool, options.uid), ())
    bounds = limits(settings.serve, settings.webhook.body_bytes)
    server = Server(app, host="127.0.0.1", port=options.port, tls=tls, limits=bounds)
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--certs", type=Path)
    parser.add_argument("--pool")
    parser.add_argument("--uid")
    logs.setup(Settings().log)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(parser.parse_args()))
