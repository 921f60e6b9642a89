"""The init container's script under a real busybox."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ateplace.settings import Substrate, Webhook
from ateplace.webhook import wait_container
from tests.unit import busybox

HOSTS = ["127.0.0.1", "::1"]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with busybox under the names that the image has: the only PATH of the script."""
    folder = tmp_path_factory.mktemp("bin")
    binary = busybox.find()
    for name in ("sh", "nc", "sleep", "true"):
        (folder / name).symlink_to(binary)
    return folder


@contextlib.contextmanager
def waiting(box: Path, host: str, port: int, deadline: int = 0) -> Iterator[subprocess.Popen[str]]:
    """The script, started exactly as the container's command says."""
    command = wait_container.container(Webhook(init_deadline=deadline), Substrate(atelet_port=port))["command"]
    process = subprocess.Popen(
        [str(box / command[0]), *command[1:]],
        env={"PATH": str(box), "HOST_IP": host},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def listen(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


@pytest.mark.parametrize("host", HOSTS)
def test_it_ends_at_once_when_atelet_answers_already(box: Path, host: str) -> None:
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        start = time.monotonic()
        with waiting(box, host, port) as process:
            output, errors = process.communicate(timeout=10)
        assert time.monotonic() - start < 5
    assert (process.returncode, output, errors) == (0, f"atelet answers on {host} port {port}\n", "")


@pytest.mark.parametrize("host", HOSTS)
def test_it_waits_says_so_and_sees_a_listener_appear(box: Path, host: str) -> None:
    port = free_port(host)
    with waiting(box, host, port) as process:
        # Whole seconds of the machine's uptime: a new one may begin in between.
        assert re.fullmatch(rf"waiting for atelet on {host} port {port} \(\d s so far\)", first_line(process))
        assert process.poll() is None
        with listen(host, port):
            output, errors = process.communicate(timeout=10)
    assert (process.returncode, output, errors) == (0, f"atelet answers on {host} port {port}\n", "")


def test_it_looks_ten_times_a_second_at_first(box: Path) -> None:
    """atelet starts at the same time as the ateom: every second between two looks would be lost on most starts."""
    took = []
    for _ in range(3):
        port = free_port("127.0.0.1")
        with waiting(box, "127.0.0.1", port) as process:
            first_line(process)  # said right before the first pause
            start = time.monotonic()
            with listen("127.0.0.1", port):
                process.communicate(timeout=10)
            took.append(time.monotonic() - start)
    assert min(took) < 0.4, took


def test_it_speaks_every_ten_seconds(box: Path) -> None:
    port = free_port("127.0.0.1")
    with waiting(box, "127.0.0.1", port) as process:
        said = [first_line(process)]
        start = time.monotonic()
        said.append(first_line(process))
        assert 5 < time.monotonic() - start < 20
    parts = [line.partition(f"waiting for atelet on 127.0.0.1 port {port} (") for line in said]
    first, second = (int(rest.removesuffix(" s so far)")) for _, _, rest in parts)
    assert 10 <= second - first < 20


def test_it_fails_at_the_deadline_and_says_why(box: Path) -> None:
    port = free_port("127.0.0.1")
    with waiting(box, "127.0.0.1", port, deadline=2) as process:
        _, errors = process.communicate(timeout=15)
    assert process.returncode == 1
    said = f"atelet did not answer on 127.0.0.1 port {port} within 2 s: is its pod on this node running?\n"
    assert errors == said


def test_a_server_that_says_nothing_counts_as_answering(box: Path) -> None:
    accepted = threading.Event()
    with listen("127.0.0.1", 0) as listener:

        def hold() -> None:
            connection, _ = listener.accept()
            accepted.set()
            with connection:
                connection.recv(1)

        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        with waiting(box, "127.0.0.1", listener.getsockname()[1]) as process:
            process.communicate(timeout=10)
        assert accepted.wait(5)
        thread.join(5)
    assert process.returncode == 0


@pytest.mark.parametrize("host", ["", "not-an-address.invalid", "999.1.1.1"])
def test_a_bad_address_is_waited_out_not_failed(box: Path, host: str) -> None:
    with waiting(box, host, 8085) as process:
        assert first_line(process).startswith("waiting for atelet on")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)


def test_an_image_without_nc_is_waited_out_not_failed(tmp_path: Path) -> None:
    binary = busybox.find()
    for name in ("sh", "sleep"):
        (tmp_path / name).symlink_to(binary)
    with waiting(tmp_path, "256.0.0.1", 1) as process:
        assert first_line(process).startswith("waiting for atelet on")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)


def test_a_deleted_pod_does_not_wait_for_its_grace_period(box: Path) -> None:
    port = free_port("127.0.0.1")
    with waiting(box, "127.0.0.1", port) as process:
        first_line(process)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(5) == 143
