"""Ports and loopback networks that are ours for as long as we hold them.

A reserved port is bound, not listened on, with SO_REUSEPORT and SO_REUSEADDR. The Kubernetes binaries and etcd can
share a port by the one, our own servers by the other; no other program is given it in between, and the kernel frees it
with our process.
"""

import errno
import socket

from ateplace.errors import LocalError

NETWORK_GUARD = 20099
"""Binding 127.x.255.254 on this port marks the service network 127.x.0.0/16 as taken."""


class Reservations:
    """Ports and one service network, held until `release`."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def port(self) -> int:
        """A free port on 127.0.0.1."""
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        self._held.append(held)
        return int(held.getsockname()[1])

    def service_network(self) -> str:
        """A /16 of loopback addresses that no other plane on this machine uses."""
        for second in range(96, 128):
            guard = socket.socket()
            address = f"127.{second}.255.254"
            try:
                guard.bind((address, NETWORK_GUARD))
            except OSError as error:
                guard.close()
                if error.errno == errno.EADDRINUSE:
                    continue
                raise LocalError(f"{address}, where Services would be, cannot be used: {error.strerror}") from error
            self._held.append(guard)
            return f"127.{second}.0.0/16"
        raise LocalError("32 planes run on this machine already")

    def release(self) -> None:
        """Give everything back."""
        while self._held:
            self._held.pop().close()
