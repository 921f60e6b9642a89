"""Joins TCP connections, one thread a direction."""

import contextlib
import socket
import threading
from collections.abc import Callable

Dial = Callable[[], socket.socket]


def serve(listener: socket.socket, dial: Dial) -> None:
    """In a thread of its own: join every connection that the listener accepts with a fresh one from `dial`."""

    def accept() -> None:
        while True:
            near, _ = listener.accept()
            start(_join, near, dial)

    start(accept)


def start(act: Callable[..., object], *arguments: object) -> None:
    """Call it in a thread that ends with the process."""
    threading.Thread(target=act, args=arguments, daemon=True).start()


def _join(near: socket.socket, dial: Dial) -> None:
    with near, contextlib.suppress(OSError), dial() as far:
        join(near, far)


def join(near: socket.socket, far: socket.socket) -> None:
    """Carry bytes both ways until both have ended; the caller closes them."""
    for each in (near, far):
        if each.family == socket.AF_INET:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    back = threading.Thread(target=_pump, args=(far, near), daemon=True)
    back.start()
    _pump(near, far)
    back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:  # one side is gone: there is nothing to wait for on the other either
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
    else:
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
