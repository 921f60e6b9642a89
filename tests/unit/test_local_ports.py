"""Which loopback networks a plane takes, and what it says when there is none."""

import errno
import os
import socket

import pytest

from ateplace.errors import LocalError
from ateplace.local.ports import Reservations


def test_a_taken_network_is_passed_over() -> None:
    first, second = Reservations(), Reservations()
    try:
        assert first.service_network() != second.service_network()
    finally:
        first.release()
        second.release()


def test_a_network_that_cannot_be_had_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Socket(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL), address)

    monkeypatch.setattr(socket, "socket", Socket)
    with pytest.raises(LocalError, match=r"127\.96\.255\.254, where .* cannot be used: Cannot assign"):
        Reservations().service_network()


def test_a_reserved_port_is_ours_to_listen_on_and_nobody_elses() -> None:
    held = Reservations()
    try:
        port = held.port()
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            pass
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
    finally:
        held.release()
