"""A registry for one node: serves images to its containerd, and writes down what was pulled."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

from ateplace.local.realnode import RealNode
from ateplace.local.realnode.oci import Image

PORT = 5000


class Registry:
    """Listens inside the node, for the length of a `with` block. `host` is the first part of the images' names."""

    def __init__(self, node: RealNode, host: str, image: Image) -> None:
        self.pulled: list[str] = []
        """Digests, in the order of being asked for."""
        place = node.registries / host
        place.mkdir(parents=True)
        (place / "hosts.toml").write_text(f'server = "http://127.0.0.1:{PORT}"\n')
        digest = str(image.descriptor["digest"])
        pulled = self.pulled

        class Handler(BaseHTTPRequestHandler):
            """A tag is whatever the one image is called; anything else is asked for by its digest."""

            def do_GET(self) -> None:
                _, kind, asked = urlsplit(self.path).path.rsplit("/", 2)
                wanted = asked if asked in image.blobs else digest if kind == "manifests" else ""
                if not wanted:
                    self.send_error(404)
                    return
                blob = image.blobs[wanted]
                media = str(image.descriptor["mediaType"]) if wanted == digest else "application/octet-stream"
                self.send_response(200)
                self.send_header("Content-Type", media)
                self.send_header("Content-Length", str(len(blob)))
                self.send_header("Docker-Content-Digest", wanted)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(blob)
                    pulled.append(wanted)

            do_HEAD = do_GET  # noqa: N815 - as http.server wants it

            def log_message(self, *_: object) -> None:
                """Nothing: `pulled` says it."""

        with node.network() as network:
            listener = network.listen(PORT)
        self._server = ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener

    def __enter__(self) -> "Registry":
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
