"""`python -m ateplace.local.realnode.tunnel SOCKET NODES`: how the API server reaches real nodes and their pods.

The machine has no route to them. The API server's egress selector sends every connection into the cluster to this
proxy (HTTP CONNECT on a Unix socket), which dials from inside the right node's network namespace. Loopback addresses,
where KWOK's nodes and roles that run as processes are, are dialled here; any other address is refused.

Each node describes itself in NODES/<name>/network.json: its process 1, its namespace and its networks.
"""

import contextlib
import ipaddress
import json
import socket
import sys
from pathlib import Path

from ateplace.local.realnode import relay
from ateplace.local.realnode.namespaces import Network

REQUEST_BYTES = 4096
"""More than any CONNECT request has."""


def describe(directory: Path, pid: int, networks: list[str]) -> None:
    """For a node: say where it is."""
    with Network(pid) as network:
        content = {"pid": pid, "inode": network.inode, "networks": networks}
    part = directory / "network.part"
    part.write_text(json.dumps(content))
    part.replace(directory / "network.json")


def dial(nodes: Path, host: str, port: int) -> socket.socket:
    """Connect to an address of a node, or of loopback; OSError otherwise."""
    address = ipaddress.ip_address(host)
    if address.is_loopback:
        made = socket.create_connection((host, port), 10)
        made.settimeout(None)
        return made
    for described in sorted(nodes.glob("*/network.json")):
        node = json.loads(described.read_text())
        if any(address in ipaddress.ip_network(each) for each in node["networks"]):
            with Network(node["pid"], node["inode"]) as network:
                return network.connect(host, port)
    raise OSError(f"{host} is on no real node")


def _serve(client: socket.socket, nodes: Path) -> None:
    with client:
        request = b""
        while b"\r\n\r\n" not in request and len(request) < REQUEST_BYTES:
            if not (data := client.recv(REQUEST_BYTES)):
                return
            request += data
        try:
            method, target, _ = request.split(b" ", 2)
            host, _, port = target.decode().rpartition(":")
            if method != b"CONNECT":
                raise ValueError(method)  # noqa: TRY301 - answered as any other request that is none
            far = dial(nodes, host.strip("[]"), int(port))
        except (OSError, ValueError) as error:
            sys.stderr.write(f"{request[:100]!r}: {error}\n")
            with contextlib.suppress(OSError):
                client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        with far:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            relay.join(client, far)


def main() -> None:
    """Serve until we are stopped."""
    server, nodes = Path(sys.argv[1]), Path(sys.argv[2])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(server))
        listener.listen(128)
        while True:
            client, _ = listener.accept()
            relay.start(_serve, client, nodes)


if __name__ == "__main__":
    main()
